"""Item digests over generated data sets on a real disk, against an oracle that reads the files."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.items import ItemHasher
from prepcache.keys.markers import Plain, plain

NAMES = ("a", "b", "c/x", "c/y")
CONTENTS = (b"", b"1", b"2")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "c").mkdir()
        yield Path(name)


leaf = (
    st.sampled_from(NAMES).map(lambda name: ("path", name))
    | st.sampled_from(NAMES).map(lambda name: ("str", name))
    | st.sampled_from(NAMES).map(lambda name: ("plain", name))
    | st.sampled_from(["text", "", 1, 1.0, True, None, b"a"]).map(lambda value: ("value", value))
)
shape = st.recursive(
    leaf,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda x: ("tuple", x))
        | st.lists(inner, max_size=3).map(lambda x: ("list", x))
        | st.dictionaries(st.sampled_from("pq"), inner, max_size=2).map(lambda x: ("dict", x))
    ),
    max_leaves=5,
)
disk = st.fixed_dictionaries({name: st.none() | st.sampled_from(CONTENTS) for name in NAMES})


def build(shape: Any, folder: Path) -> Any:
    kind, value = shape
    if kind in ("path", "str", "plain"):
        name = str(folder / value)
        return Path(name) if kind == "path" else plain(name) if kind == "plain" else name
    if kind == "value":
        return value
    if kind == "dict":
        return {key: build(inner, folder) for key, inner in value.items()}
    return (tuple if kind == "tuple" else list)(build(inner, folder) for inner in value)


def meaning(item: Any) -> Any:
    """What an item stands for, as a value that Python compares."""
    kind = type(item).__name__
    if isinstance(item, Plain):
        return ("plain", item.value)
    if isinstance(item, (str, Path)) and str(item) and Path(item).is_file():
        return (kind, "file", str(item), Path(item).read_bytes())
    if isinstance(item, (tuple, list)):
        return (kind, tuple(meaning(x) for x in item))
    if isinstance(item, dict):
        return (kind, frozenset((k, meaning(v)) for k, v in item.items()))
    return (kind, item)


def arrange(folder: Path, contents: dict[str, bytes | None]) -> None:
    for name, data in contents.items():
        path = folder / name
        if data is None:
            path.unlink(missing_ok=True)
        elif not path.exists() or path.read_bytes() != data:
            path.write_bytes(data)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=st.lists(shape, min_size=1, max_size=5), before=disk, after=disk)
def test_digests_are_equal_exactly_when_items_mean_the_same(folder, shapes, before, after):
    items = [build(some, folder) for some in shapes]
    memo = StatCache(folder / "memo", window_ns=lambda device: 10**10)
    seen: dict[bytes, Any] = {}
    for contents in (before, after):
        arrange(folder, contents)
        stamps = ItemHasher(stat_cache=memo).digest_many(items)
        for i, item in enumerate(items):
            digest, means = stamps.digests[i].tobytes(), meaning(item)
            assert seen.setdefault(digest, means) == means
            assert [key for key, value in seen.items() if value == means] == [digest]
            assert stamps.changed(i) == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shapes=st.lists(shape, min_size=1, max_size=5), before=disk, after=disk)
def test_a_change_after_opening_is_seen_in_each_item_it_reaches(folder, shapes, before, after):
    """The stamps are young, so even a change within the same tick of the clock has to be seen."""
    items = [build(some, folder) for some in shapes]
    arrange(folder, before)
    stamps = ItemHasher(stat_cache=StatCache(folder / "memo")).digest_many(items)
    meant = [meaning(item) for item in items]
    arrange(folder, after)
    for i, item in enumerate(items):
        if meaning(item) != meant[i]:
            assert stamps.changed(i) != []
        elif before == after:
            assert stamps.changed(i) == []
