"""A bound method counts by what it reads of its object, and by all of it where it hands the object on."""

from functools import cached_property, partialmethod
from typing import Any

import pytest

from prepcache import UnkeyableError, recipe


class Base:
    __slots__ = ()

    def scaled(self, item: float) -> float:
        return item * self.scale  # type: ignore[attr-defined, no-any-return]


class Checked:
    """Sees what is set, and is not asked for it."""

    def __set__(self, owner: Any, value: int) -> None:
        vars(owner)["checked"] = abs(value)


class Deleted:
    def __delete__(self, owner: Any) -> None:
        owner.window = owner.size


class Looked(property):
    def __get__(self, owner: Any, cls: Any = None) -> Any:
        return owner.size


class Data(Base):
    """As a LightningDataModule, with a trainer that no key can hold."""

    __slots__ = ("__dict__", "slot")
    kind = "rgb"
    checked, deleted, looked = Checked(), Deleted(), Looked(lambda self: 0)

    def __init__(self, **changed: Any) -> None:
        self.size, self.scale, self.batch_size, self.slot, self.seen = 2, 1.0, 8, 0, 0
        self.nested = {"depth": 1}
        self.trainer = (n for n in ())
        vars(self).update({name: value for name, value in changed.items() if name != "slot"})
        self.slot = changed.get("slot", 0)

    @property
    def half(self) -> float:
        return self.size / 2

    @cached_property
    def table(self) -> list[int]:
        return [self.depth] * 3

    @property
    def depth(self) -> int:
        return int(self.nested["depth"])

    def plain(self, item: float) -> float:
        return item * self.size

    def through(self, item: float) -> Any:
        self.last = item
        return [self.scaled(item) + self.half for _ in range(2)], self.table, self.slot, self.kind

    def counting(self, item: float) -> float:
        self.seen += 1
        return item * self.size

    @property
    def area(self) -> float:
        return 0.0

    @area.setter
    def area(self, given: float) -> None:
        self.side = given * self.scale

    def set_by_property(self, item: float) -> float:
        self.area = item
        return self.side

    def nested_code(self, item: float) -> Any:
        def made(x: float) -> float:
            return x * self.size

        return made(item)

    def reads_checked(self, item: float) -> Any:
        return self.checked

    def deletes(self, item: float) -> None:
        del self.window

    def described(self, item: float) -> Any:
        return self.looked

    def deletes_by_class(self, item: float) -> None:
        del self.deleted

    def handed_on(self, item: float) -> Any:
        return vars(self)["size"] * item

    def returned(self, item: float) -> Any:
        return self

    def sized(self, item: float, by: int) -> float:
        return item * self.size * by

    doubled = partialmethod(sized, by=2)

    def aliased(self, item: float) -> Any:
        me = self
        return me.size * item

    def called_super(self, item: float) -> float:
        return super().scaled(item)


class Dynamic(Data):
    def __getattr__(self, name: str) -> Any:
        return self.size if name == "other" else 0

    @property
    def failing(self) -> Any:
        raise AttributeError

    def unknown(self, item: float) -> Any:
        return self.other * item

    def by_property(self, item: float) -> Any:
        return self.failing * item


class Setting(Data):
    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value * self.scale if name == "seen" else value)


def digest(name: str, cls: type[Data] = Data, **changed: Any) -> str:
    return recipe(getattr(cls(**changed), name), code="function").digest


@pytest.mark.parametrize("name", ["plain", "through", "counting", "nested_code", "doubled"])
def test_what_is_not_read_of_self_does_not_count(name):
    before = digest(name)
    assert digest(name, batch_size=16) == digest(name, trainer=open) == digest(name, more=1) == before


@pytest.mark.parametrize(("name", "changed"), [
    ("plain", {"size": 3}), ("doubled", {"size": 3}), ("through", {"scale": 2.0}), ("through", {"size": 3}),
    ("through", {"nested": {"depth": 2}}), ("through", {"slot": 1}), ("through", {"kind": "gray"}),
    ("counting", {"seen": 5}), ("nested_code", {"size": 3}), ("set_by_property", {"scale": 2.0}),
    ("through", {"table": [7]}), ("deletes", {"window": 2}),
])  # fmt: skip
def test_what_is_read_of_self_counts(name, changed):
    assert digest(name, **changed) != digest(name)


DESCRIBED = ("described", "reads_checked", "deletes_by_class")


@pytest.mark.parametrize("name", ["handed_on", "returned", "aliased", "called_super", *DESCRIBED])
def test_an_object_that_is_handed_on_counts_whole(name):
    with pytest.raises(UnkeyableError, match=r"preprocess\.__self__\.trainer"):
        digest(name)
    assert digest(name, trainer=None, batch_size=16) != digest(name, trainer=None)


@pytest.mark.parametrize(
    ("name", "cls"),
    [("unknown", Dynamic), ("by_property", Dynamic), ("counting", Setting), ("deletes", Setting)],
)
def test_a_class_that_finds_attributes_itself_counts_whole(name, cls):
    with pytest.raises(UnkeyableError, match=r"preprocess\.__self__\.trainer"):
        digest(name, cls)


@pytest.mark.parametrize("cls", [Dynamic, Setting])
def test_what_such_a_class_is_not_asked_for_does_not_count(cls):
    """As of a module of torch's that a trainer is attached to."""
    assert digest("plain", cls, trainer=open) == digest("plain", cls) != digest("plain", cls, size=3)


def test_an_attribute_that_is_read_is_named_and_left_out():
    with pytest.raises(UnkeyableError, match=r"preprocess\.__self__\.size.*untracked=\('size',\)"):
        digest("plain", size=(n for n in ()))
    left_out = [recipe(Data(size=n).plain, code="function", untracked=("size",)).digest for n in (1, 2)]
    assert left_out[0] == left_out[1]
