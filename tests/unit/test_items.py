"""Item digests: what a path, a str, a value and an object in an item stand for."""

import logging
import math
import os
import pickle
import re
import socket
import sys
import textwrap
from pathlib import Path, PureWindowsPath
from typing import Any, NamedTuple

import pytest

from prepcache import item_digest, register_key
from prepcache.errors import UnkeyableError
from prepcache.keys import items as items_module
from prepcache.keys.encoding import encoder
from prepcache.keys.files.stat_cache import StatCache
from prepcache.keys.items import ItemHasher, load
from prepcache.keys.markers import plain, tree
from prepcache.keys.recipes import with_classes
from support.projects import Project, project_fixture  # noqa: F401


class Pair(NamedTuple):
    image: Any
    label: Any


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"a")
    (tmp_path / "b.txt").write_bytes(b"b")
    (tmp_path / "copy of a.txt").write_bytes(b"a")
    (tmp_path / "d" / "sub").mkdir(parents=True)
    (tmp_path / "d" / "sub" / "x.txt").write_bytes(b"x")
    return tmp_path


def hasher(folder: Path, **options: Any) -> ItemHasher:
    memo = StatCache(folder / "memo", window_ns=lambda device: -(10**20))
    return ItemHasher(stat_cache=memo, **options)


def digests(hasher: ItemHasher, items: list[Any]) -> list[str]:
    return [row.tobytes().hex() for row in hasher.digest_many(items).digests]


def test_a_name_below_the_root_is_not_the_same_name_elsewhere(here, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    (root / "a.txt").write_bytes(b"a")
    assert item_digest(root / "a.txt", root=root) != item_digest(Path("a.txt"), root=root)


def test_the_short_way_and_the_general_way_agree(here, monkeypatch):
    items: list[list[Any]] = [
        [Path("a.txt"), Path("b.txt")], ["a.txt", "b.txt"], ["a.txt", "text"], [1, 2**80],
        [Path("a.txt"), Path("d"), Path("absent"), 1], [("a.txt", Path("b.txt"))],
        [(Path("a.txt"), 1), (Path("b.txt"), 2)],
        [(1, Path("a.txt"), "text", Path("b.txt"), 2.0), (1, Path("b.txt"), "more", Path("b.txt"), -0.0)],
        [("a.txt", None), ("b.txt", True)], [(1, 2), (1, 2, 3)], [(), ()],
        [(b"x", True, None), (b"", False, None)],
        [{"image": "a.txt", "label": 3}, {"image": "b.txt", "label": 4}],
        [{"label": 3, "image": Path("a.txt")}, {"image": Path("b.txt"), "label": 4}],
        [{"b": 1, "aa": "x", "a": Path("a.txt")}, {"b": 2, "aa": "y", "a": Path("b.txt")}],
        [{"a.txt": 1}, {"a.txt": 2}], [{}, {}],
    ]  # fmt: skip

    def found(root: Path | None) -> Any:
        both = [ItemHasher(root).digest_many(some) for some in items]
        unchanged = [[one.changed(i) for i in range(len(one.digests))] for one in both]
        return [one.digests.tolist() for one in both], unchanged

    (here / "text").touch()  # which is text all the same: it does not look like a path
    for root in (None, here):
        short = found(root)
        with monkeypatch.context() as patch:
            patch.setattr(items_module, "_by_columns", lambda run, encoder: None)
            general = found(root)
        assert short == general


def test_a_block_border_changes_nothing(here, monkeypatch):
    items = [Path("a.txt"), 1, ("b.txt", 2), "text", Path("d"), Path("absent"), "b.txt"] * 3
    whole = ItemHasher().digest_many(items)
    monkeypatch.setattr("prepcache.keys.items.BLOCK_ITEMS", 2)
    parts = ItemHasher().digest_many(items)
    assert (whole.digests == parts.digests).all()
    assert [parts.changed(i) for i in range(len(items))] == [[]] * len(items)


def test_read_leaves_the_name_out_and_hands_over_the_contents(here):
    one, copy = Path("a.txt"), Path("copy of a.txt")
    for read in ("bytes", "text"):
        assert item_digest(one, read=read) == item_digest(copy, read=read)  # type: ignore[arg-type]
        assert item_digest((one, 1), read=read) != item_digest((one, 2), read=read)  # type: ignore[arg-type]
    assert item_digest(one, read="bytes") != item_digest(one, read="text") != item_digest(one)
    assert load(one, "bytes") == b"a"
    assert load("a.txt", "text") == "a"
    assert load(({"image": one}, "a.txt"), "bytes") == ({"image": b"a"}, "a.txt")
    assert load(Pair(one, 1), "bytes") == Pair(b"a", 1)
    with pytest.raises(FileNotFoundError):
        load(PureWindowsPath(r"d\sub\x.txt"), "bytes")


def test_a_name_counts_where_the_contents_cannot_take_its_place(here):
    """A str inside an item, and a path that is a key, reach the function as they are."""
    for wrap in (lambda x: (str(x), 1), lambda x: {x: 1}):
        one, copy = (
            item_digest(wrap(Path("a.txt")), read="bytes"),
            item_digest(wrap(Path("copy of a.txt")), read="bytes"),
        )
        assert one != copy


@pytest.mark.parametrize("item", [Path("absent"), "absent", Path("d"), "d"], ids=repr)
def test_read_takes_files_only(here, item):
    with pytest.raises(UnkeyableError, match=r"items\[0\]"):
        item_digest(item, read="bytes")


def test_a_directory_is_a_tree_or_plain(here):
    assert len({item_digest((1, tree("d"))), item_digest((1, plain("d"))), item_digest((1, Path("d")))}) == 3
    assert load((1, tree("d"), plain("d"))) == (1, "d", "d")


def test_a_path_that_names_nothing_is_a_reported_name(here):
    stamps = ItemHasher().digest_many([Path("absent"), ("absent", Path("missing/too"))])
    assert stamps.typed_names == ["absent", "missing/too"]
    assert item_digest(Path("absent")) != item_digest("absent")


def test_a_set_of_paths_is_looked_up_in_one_order(here):
    paths = [Path(f"{number}.txt") for number in range(99)]
    assert hasher(here).probe({*paths}) == hasher(here).probe({*paths[::-1]})


def test_str_that_name_files_are_reported(here, caplog):
    hashes = ItemHasher()
    with caplog.at_level(logging.WARNING):
        hashes.digest_many(["a.txt", "text", ("b.txt", 1)]).warn()
        hashes.digest_many(["text"]).warn()
    lines = [record.getMessage() for record in caplog.records]
    assert [line[:40] for line in lines] == ["prepcache: 2 str in the items name files"]


def test_special_files_are_refused(here):
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        for name in ("pipe", "socket", "/dev/null"):
            for item in (Path(name), (Path(name),), Path("d") if name == "pipe" else Path(name)):
                if item == Path("d"):
                    os.mkfifo("d/pipe")
                with pytest.raises(UnkeyableError, match="is a pipe, a socket or a device"):
                    item_digest(item)


def test_links_in_a_circle_are_refused(here):
    (here / "loop").symlink_to("loop")
    (here / "d" / "sub" / "up").symlink_to("..")
    with pytest.raises(UnkeyableError, match="cannot be looked up"):
        item_digest(Path("loop"))
    with pytest.raises(UnkeyableError, match="sub/up' is a link to one of its parent directories"):
        item_digest(Path("d"))


@pytest.mark.parametrize("text", ["", "\0", "x" * 5000, "\ud800", "a.txt/b", "x" * 300, "loop"], ids=repr)
def test_text_that_can_be_no_file_is_text(here, text):
    (here / "loop").symlink_to("loop")
    assert item_digest(text) != item_digest(text + "!")


def test_a_name_that_is_no_utf8_is_a_name(here):
    raw = b"\xff.txt"
    Path(os.fsdecode(raw)).write_bytes(b"1")
    before = item_digest(Path(os.fsdecode(raw)))
    Path(os.fsdecode(raw)).write_bytes(b"2")
    assert item_digest(Path(os.fsdecode(raw))) != before


def test_a_registered_type_counts_so_in_a_run(here, monkeypatch):
    monkeypatch.setattr(encoder, "_registered", {})
    monkeypatch.setattr(encoder, "_writers", {})
    register_key(int, lambda value: "number")
    assert len(set(digests(ItemHasher(), [1, 2, 3]))) == 1


def test_known_files_are_not_read_again(here, monkeypatch):
    read: list[int] = []
    read_files = items_module.read_files
    monkeypatch.setattr(
        items_module, "read_files", lambda names, cache: read.append(len(names)) or read_files(names, cache)
    )
    items = [Path("a.txt"), ("b.txt", 1), Path("d")]
    first = hasher(here)
    table = first.digest_many(items).digests
    again = hasher(here).digest_many(items).digests
    assert (table == again).all()
    hasher(here, trust="content").digest_many(items)
    assert read == [2, 0, 2]


def touch(path: Path) -> None:
    info = path.stat()
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1_000_000))


@pytest.mark.parametrize(
    "wrap",
    [lambda p: p, lambda p: (p, 1), lambda p: {"x": [1, p]}, lambda p: [*[Path("d")] * 30, p]],
    ids=["path", "tuple", "dict", "many"],
)
def test_a_changed_file_is_named(here, wrap):
    items = [wrap(Path("a.txt")), wrap(Path("b.txt")), 1]
    stamps = hasher(here).digest_many(items)
    names = list(dict.fromkeys(hasher(here).probe(items[1])[0]))
    assert [stamps.changed(i) for i in range(3)] == [[], [], []]
    touch(here / "b.txt")
    assert [stamps.changed(i) for i in range(3)] == [[], names, []]
    (here / "b.txt").unlink()
    assert stamps.changed(1) == names


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_digests_are_stable_until_an_item_is_altered(here, monkeypatch, is_elsewhere):
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    inner = {"label": 1}
    files = Path("a.txt"), "a.txt", ("b.txt", 2), Path("d"), Path("absent")
    items = ["x", *files, inner, [Path("b.txt"), inner]]
    stamps = hasher(here).digest_many(items)
    before = [row.tobytes() for row in stamps.digests]
    if is_elsewhere:
        stamps = pickle.loads(pickle.dumps(stamps))
    assert stamps.hasher.digests_now(items) == before
    assert [stamps.hasher.digests_now([item])[0] for item in items] == before
    inner["label"] = 2
    now = [stamps.hasher.digests_now([item])[0] for item in items]
    assert stamps.hasher.digests_now(items) == now
    assert [a == b for a, b in zip(now, before, strict=True)] == [True] * 6 + [False] * 2


def test_who_trusts_contents_only_reads_again_to_see_a_change(here, monkeypatch):
    found = {}
    for trust in ("stat", "content"):
        stamps = hasher(here, trust=trust).digest_many([Path("a.txt")])
        with monkeypatch.context() as patch:
            patch.setattr(ItemHasher, "read_again", lambda self, item: b"other bytes")
            found[trust] = stamps.changed(0)
    assert found == {"stat": [], "content": ["a.txt"]}


def test_what_appears_or_changes_in_a_directory_is_seen(here):
    stamps = hasher(here).digest_many([Path("d"), Path("absent"), "later.txt"])
    assert [stamps.changed(i) for i in range(3)] == [[], [], []]
    (here / "d" / "new").write_bytes(b"")
    (here / "absent").write_bytes(b"")
    (here / "later.txt").write_bytes(b"")
    assert [stamps.changed(i) for i in range(3)] == [["d"], ["absent"], ["later.txt"]]


class Plain:
    def __init__(self, **state: Any) -> None:
        vars(self).update(state)


def test_a_file_that_an_object_names_counts_by_its_bytes(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = item_digest(Plain(path=path))
    hasher = ItemHasher()
    names, stamps = hasher.probe(Plain(path=path))
    path.write_text("three")
    assert item_digest(Plain(path=path)) != before
    assert names == [str(path)]
    assert hasher.probe(Plain(path=path))[1] != stamps


def test_what_has_no_stable_bytes_is_refused_with_the_ways_out():
    with socket.socket() as held, pytest.raises(UnkeyableError) as caught:
        item_digest([Plain(deep=held)])
    message = caught.value.message
    assert message.startswith("items[0][0].deep: socket.socket has no stable bytes")
    for way in ("__prepcache_key__", "register_key", "pass plain values as the item"):
        assert way in message
    with pytest.raises(UnkeyableError, match=r"items\[0\]: builtins.module.*pass plain values as the item"):
        item_digest(sys)


ITEMS = """
import functools
def g(x): return x + 1
class Item:
    def __init__(self, **state): vars(self).update(state)
    def method(self): return 1
    def __getstate__(self): return {**vars(self)}
class Made(Item):
    def __reduce__(self): return make, ()
class Restored(Item):
    def __reduce__(self): return object, (), {}, None, None, restore
def make(): return Made()
def restore(item, state): pass
"""


@pytest.mark.parametrize(
    "item",
    [
        "Item(callable=g)",
        "Item(state=[g])",
        "Item(func=functools.partial(g))",
        "(g, 1)",
        "Made()",
        "Restored()",
        "lambda: 1",
    ],
)
def test_a_function_of_the_project_in_an_item_is_refused(project, item):
    """Also one that makes an item anew."""
    project.write(specs=ITEMS + f"def item(): return {item}")
    with pytest.raises(UnkeyableError, match=r"function specs\..*plain values"):
        item_digest(project.load("specs").item())


def test_a_class_that_an_item_holds_counts_by_its_definition(project):
    def keys(expression: str) -> tuple[str, str]:
        cls = "type('C', (), {'__module__': __name__, 'g': g})"
        project.write(
            prep="def f(x): return x",
            specs=ITEMS.replace("+ 1", expression) + f"def item(): return Item(cls={cls})",
        )
        made = project.recipe(code="function")
        hasher = ItemHasher()
        digests = hasher.digest_many([project.load("specs").item()]).digests
        return with_classes(made, hasher.classes).digest, digests.tobytes().hex()

    before = keys("+ 1")
    assert keys("+ 1") == before
    after = keys("+ 2")
    assert after[0] != before[0]
    assert after[1] == before[1]


@pytest.mark.parametrize("item", [re.compile("a"), textwrap.dedent, {"of": math.sqrt}])
def test_a_library_s_function_counts_by_name(item):
    assert item_digest(item) == item_digest(item) != item_digest(textwrap.indent)
