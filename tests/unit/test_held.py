"""A data set that its own function holds: refused, or told of, before anything waits for itself."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import prepcache
from prepcache import CachedDataset, UnkeyableError
from prepcache.errors import PreprocessError

pytestmark = pytest.mark.usefixtures("no_daemon")


class ByMethod(CachedDataset):
    def __init__(self, **options: Any) -> None:
        self.size = 3
        super().__init__([1, 2], self.make, progress=False, **options)

    def make(self, item: int) -> int:
        return item * self.size


class ByClosure(CachedDataset):
    def __init__(self, **options: Any) -> None:
        super().__init__([1, 2], lambda item: item * len(self), progress=False, **options)


@pytest.mark.parametrize("kind", [ByMethod, ByClosure])
@pytest.mark.parametrize("options", [{}, {"lazy": True}, {"code": "function"}], ids=str)
def test_a_data_set_that_is_being_opened_is_refused(kind, options):
    words = r"(__self__|\[self\]): .* \(it is a data set that is not open yet, .*config="
    with pytest.raises(UnkeyableError, match=words):
        kind(**options)


opened: list[CachedDataset] = []


def first_of_itself(item: int) -> Any:
    return opened[0][0]


def length_of_itself(item: int) -> Iterator[Any]:
    yield len(opened[0])


class Known(CachedDataset):
    """Its function finds it in the middle of its opening."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        opened[:] = [self]
        super().__init__(*arguments, progress=False, code=None, version=1, **options)


def test_a_function_that_asks_for_its_own_sample_is_refused():
    ds = Known([1, 2], first_of_itself, lazy=True)
    with pytest.raises(PreprocessError, match=r"item 0 \(1\) failed: RecursionError: the function") as told:
        ds[0]
    assert str(told.value).count("PreprocessError") == 0


@pytest.mark.parametrize("who", ["here", "a worker", "a thread"])
def test_a_function_that_asks_for_its_own_length_does_not_wait(who):
    with ThreadPoolExecutor(1) as pool:
        options: Any = {"here": {}, "a worker": {"num_workers": 1}, "a thread": {"executor": pool}}[who]
        with pytest.raises(PreprocessError, match="would wait forever: pass it what it needs in config="):
            Known([1, 2], length_of_itself, expand=True, **options)


class Holder:
    """As data modules of training frameworks have it: made anew by each stage."""

    made: Any = None

    def make(self, item: int) -> int:
        return item + 1

    def make_by_state(self, item: int) -> int:
        return item + len(vars(self))

    def set_up(self, function: Callable[[int], int], **options: Any) -> Any:
        self.made = CachedDataset([1, 2], function, **options)
        return self.made.recipe.digest


def test_samples_beside_a_method_that_reads_none_do_not_count():
    holder = Holder()
    assert holder.set_up(holder.make) == holder.set_up(holder.make)
    assert holder.set_up(holder.make_by_state) != holder.set_up(holder.make_by_state)
    options: Any = {"untracked": ("made",)}
    function = Holder().make_by_state
    assert holder.set_up(function, **options) == holder.set_up(function, **options)


class Scaled(CachedDataset):
    scale = 1

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) * self.scale


def double(item: int) -> int:
    return item * 2


def test_what_a_subclass_adds_counts_where_it_is_held():
    held = Scaled([1, 2], double, progress=False)

    def make(item: int) -> Any:
        return held[item]

    before = prepcache.recipe(make).digest
    assert prepcache.recipe(make).digest == before
    held.scale = 5
    assert prepcache.recipe(make).digest != before
