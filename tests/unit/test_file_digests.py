"""File digests: one descriptor, a stamp before and after, clear refusals, bounded threads."""

import os
from pathlib import Path

import pytest
from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.files import digest as digest_module
from prepcache.keys.files.digest import digest_file, digest_tree, read_file, read_files, walk_tree
from prepcache.keys.files.stat_cache import StatCache, stamp_of
from support.leaks import Leaks
from support.observing import told_by_child

OLD_NS = 10**18


def old_memo(folder: Path) -> StatCache:
    """A memo to which every stamp is old."""
    return StatCache(folder / "memo", window_ns=lambda device: -(10**20))


@pytest.mark.parametrize(
    "size", [0, 1, digest_module.READ_BYTES - 1, digest_module.READ_BYTES, 3 * digest_module.READ_BYTES + 7]
)
def test_the_digest_is_blake3_of_all_bytes(tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    digest, stamp, _ = digest_file(str(tmp_path / "f"), None)
    assert digest == blake3(data).digest()
    assert stamp == stamp_of((tmp_path / "f").stat())


@pytest.mark.parametrize(
    ("change", "is_read_again"),
    [
        (lambda f: f.write_bytes(b"2"), True),
        (lambda f: os.utime(f, ns=(OLD_NS, OLD_NS)), True),
        (lambda f: (f.with_name("g").write_bytes(b"2"), f.with_name("g").rename(f)), True),
        (lambda f: os.chmod(f, 0o600), True),
        (lambda f: f.read_bytes(), False),
    ],
    ids=["written", "times put back", "replaced", "mode changed", "only read"],
)
def test_what_may_change_bytes_makes_the_memo_ask_again(tmp_path, change, is_read_again):
    memo = old_memo(tmp_path)
    (tmp_path / "f").write_bytes(b"1")
    os.utime(tmp_path / "f", ns=(OLD_NS, OLD_NS))
    _, before, _ = digest_file(str(tmp_path / "f"), memo)
    change(tmp_path / "f")
    os.utime(tmp_path / "f", ns=(OLD_NS, OLD_NS)) if is_read_again else None
    digest, after, _ = digest_file(str(tmp_path / "f"), memo)
    assert digest == blake3((tmp_path / "f").read_bytes()).digest()
    assert (before != after) == is_read_again


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    hash_once = digest_module._hash
    readings = []

    def hash_and_write(fd: int, expected_bytes: int) -> tuple[bytes, int]:
        result = hash_once(fd, expected_bytes)
        if not readings:
            path.write_bytes(b"longer")
        readings.append(result)
        return result

    monkeypatch.setattr(digest_module, "_hash", hash_and_write)
    assert digest_file(str(path), None)[0] == blake3(b"longer").digest()
    assert len(readings) == 2


def test_a_file_that_never_holds_still_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"")
    hash_once = digest_module._hash

    def hash_and_write(fd: int, expected_bytes: int) -> tuple[bytes, int]:
        with path.open("ab") as file:
            file.write(b"x")
        return hash_once(fd, expected_bytes)

    monkeypatch.setattr(digest_module, "_hash", hash_and_write)
    with pytest.raises(UnkeyableError, match="changes while it is read"):
        digest_file(str(path), None)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path):
    for name in ("absent", "pipe", "."):
        if name == "pipe":
            os.mkfifo(tmp_path / name)
        with pytest.raises(UnkeyableError, match=str(tmp_path)):
            digest_file(str(tmp_path / name), None)
    with pytest.raises(UnkeyableError, match="null"):
        digest_file("a\0b", None)


def test_the_first_unreadable_file_of_many_is_named(tmp_path):
    names = [str(tmp_path / f"{i}") for i in range(50)]
    for name in names:
        Path(name).write_bytes(b"")
    os.unlink(names[7])
    before = Leaks()
    with pytest.raises(UnkeyableError, match="/7' cannot be read"):
        read_files(names, None)
    assert not before.threads()


def test_a_forked_child_can_hash_after_its_parent_did(tmp_path):
    names = [str(tmp_path / f"{i}") for i in range(32)]
    for name in names:
        Path(name).write_bytes(os.urandom(200_000))
    memo = old_memo(tmp_path)
    expected = [x.digest.hex() for x in read_files(names, memo)]
    assert expected == [blake3(Path(name).read_bytes()).hexdigest() for name in names]

    def again() -> list[str]:
        memo._pending.clear()
        return [x.digest.hex() for x in read_files(names, memo)]

    assert told_by_child(again) == expected


def test_a_tree_is_listed_with_links_followed(tmp_path):
    (tmp_path / "t" / "b").mkdir(parents=True)
    (tmp_path / "t" / "b" / "x").write_bytes(b"x")
    (tmp_path / "t" / "a").symlink_to("b")
    (tmp_path / "t" / "gone").symlink_to("nowhere")
    top = os.fsencode(f"{tmp_path}/t/")
    rows = sorted((os.path.relpath(path, top), info is None) for path, info in walk_tree(top))
    assert rows == [(b"a", False), (b"a/x", False), (b"b", False), (b"b/x", False), (b"gone", True)]


def test_a_young_file_is_said_to_be_so_without_a_memo_too(tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x").write_bytes(b"x")
    assert read_file(str(tmp_path / "t" / "x"), None).is_racy
    assert digest_tree(str(tmp_path / "t"), None, "stat").is_racy


def test_a_name_in_a_tree_cannot_hold_another_files_digest(tmp_path):
    data = next(
        data for n in range(99) if not {0, ord("/")} & set(blake3(data := b"%d" % n).digest())
    )  # its digest can stand in a name
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    (one / "a").write_bytes(data)
    (one / "b").write_bytes(b"b")
    with open(os.fsencode(two) + b"/a" + blake3(data).digest() + b"fb", "wb") as file:
        file.write(b"b")
    assert digest_tree(str(one), None, "stat").digest != digest_tree(str(two), None, "stat").digest


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda t: (t / "x").mkdir(), lambda t: (t / "x").symlink_to("nowhere")),
        (lambda t: (t / "ab").write_bytes(b"c"), lambda t: (t / "a").write_bytes(b"bc")),
    ],
    ids=["kind", "name and bytes"],
)
def test_what_is_in_a_tree_counts_by_kind_name_and_bytes(tmp_path, one, two):
    found = []
    for name, make in (("one", one), ("two", two)):
        (tmp_path / name).mkdir()
        make(tmp_path / name)
        found.append(digest_tree(str(tmp_path / name), None, "stat").digest)
    assert found[0] != found[1]
