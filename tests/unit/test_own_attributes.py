"""An instance counts by what its base holds and by all that it has of its own."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import random
import types
import zoneinfo
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch

from prepcache import item_digest, recipe


class Ordered(collections.OrderedDict[str, int]):
    pass


class Defaults(collections.defaultdict[str, object]):
    pass


@dataclasses.dataclass
class Sizes(list[int]):
    name: str = "a"


@dataclasses.dataclass
class Window(collections.deque[int]):
    name: str = "a"


@dataclasses.dataclass
class Labels(dict[str, int]):
    name: str = "a"


@dataclasses.dataclass
class Draws(random.Random):
    name: str = "a"


class Level(enum.Enum):
    LOW = 1


class Zone(zoneinfo.ZoneInfo):
    pass


class Mapped(np.memmap[Any, Any]):
    pass


class Source(torch.Generator):
    pass


class Layer(torch.nn.Module):
    __slots__ = ("scale",)


def sample(item: object) -> object:
    return item


def key(value: object) -> str:
    return recipe(sample, config={"of": value}).digest


def ordered(*names: str) -> Ordered:
    return Ordered((name, 1) for name in names)


def moved() -> Ordered:
    found = ordered("a", "b")
    found.move_to_end("a")
    return found


def sizes(cls: Any, *more: Any) -> Any:
    made = cls()
    made.update(dict.fromkeys(more, 1)) if isinstance(made, dict) else made.extend(more)
    return made


PAIRS = {
    "order of an OrderedDict": (ordered("a", "b"), moved()),
    "factory of a defaultdict": (Defaults(int), Defaults(float)),
    "elements of a list with fields": (sizes(Sizes), sizes(Sizes, 1)),
    "elements of a deque with fields": (sizes(Window), sizes(Window, 1)),
    "entries of a dict with fields": (sizes(Labels), sizes(Labels, "a")),
}


@pytest.mark.parametrize(("one", "other"), PAIRS.values(), ids=PAIRS)
def test_all_that_a_built_in_base_holds_counts(one: object, other: object) -> None:
    assert item_digest(one) != item_digest(other)
    assert key(one) != key(other)


def seeded(cls: Any) -> Any:
    made = cls()
    made.seed(1)
    return made


MAKERS: dict[str, Any] = {
    "ordered dict": lambda: ordered("a"),
    "list with fields": Sizes,
    "member of an enum": lambda: Level.LOW,
    "array in a file": lambda: np.array([1, 2]).view(Mapped),
    "time zone": lambda: Zone("UTC"),
    "generator of torch": lambda: Source().manual_seed(1),
    "module with slots": Layer,
    "tokenizer": lambda: tokenizers.Tokenizer(tokenizers.models.BPE()),
    "generator with fields": lambda: seeded(Draws),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_attributes_of_an_instance_count_beside_its_base(make: Any) -> None:
    keys = []
    for scale in (1, 1, 2):
        value = make()
        value.scale = scale
        keys.append(key(value))
    assert keys[0] == keys[1] != keys[2]


class Labeller:
    def __init__(self, size: int) -> None:
        self.size = size

    def label(self) -> int:
        return self.size


def test_a_method_or_partial_in_an_item_counts_by_its_parts() -> None:
    made = [
        Labeller(1).label,
        Labeller(2).label,
        types.MethodType(sample, Labeller(1)),
        functools.partial(sample, 1),
        functools.partial(sample, 2),
        functools.partial(key, 1),
        [1].count,
        [2].count,
        len,
    ]
    assert len({item_digest(one) for one in made}) == len(made)
    assert item_digest(Labeller(1).label) == item_digest(Labeller(1).label)
