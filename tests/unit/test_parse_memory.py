"""Parse results kept between runs: used under the very stamp they were made under, or not at all."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from prepcache.errors import UnkeyableError
from prepcache.keys.code import memory
from prepcache.keys.code.memory import Memory


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "prep.py"
    path.write_text("def f(x): return x\n")
    return path


def later() -> float:
    """A clock by which every file of the test is old."""
    return time.time() + 60


def kept(source: Path) -> Memory:
    made = Memory(str(source), clock=later)
    made.parsed(str(source), "prep.py")
    made.save()
    return made


def count_parses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    parses: list[str] = []
    parse = memory.parse
    monkeypatch.setattr(memory, "parse", lambda data, name: parses.append(name) or parse(data, name))
    return parses


def test_an_unchanged_file_is_not_parsed_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept(source).parsed(str(source), "prep.py")
    parses = count_parses(monkeypatch)
    after = Memory(str(source), clock=later).parsed(str(source), "prep.py")
    assert parses == []
    assert after.definitions == before.definitions
    assert after.digest == before.digest


def test_an_edited_file_is_parsed_again_though_its_mtime_was_put_back(source: Path) -> None:
    before = kept(source).parsed(str(source), "prep.py")
    status = source.stat()
    source.write_text("def f(x): return y\n")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = Memory(str(source), clock=later).parsed(str(source), "prep.py")
    assert after.digest != before.digest


def test_a_file_as_young_as_the_clock_can_tell_is_not_kept(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Memory(str(source), clock=lambda: source.stat().st_ctime + memory.RACY_S / 2)
    made.parsed(str(source), "prep.py")
    made.save()
    parses = count_parses(monkeypatch)
    Memory(str(source), clock=later).parsed(str(source), "prep.py")
    assert parses == ["prep.py"]


@pytest.mark.parametrize("damage", [b"", b"not json", b"\0" * 100, None])
def test_a_damaged_shard_is_an_empty_one(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    before = kept(source).parsed(str(source), "prep.py")
    (shard,) = (tmp_path / "cache").rglob("*.json")
    text = shard.read_bytes()
    shard.write_bytes(text.replace(before.digest[:8].encode(), b"00000000") if damage is None else damage)
    parses = count_parses(monkeypatch)
    assert Memory(str(source), clock=later).parsed(str(source), "prep.py").digest == before.digest
    assert parses == ["prep.py"]


def test_a_cache_that_cannot_be_written_is_none(source: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert kept(source).parsed(str(source), "prep.py").digest


def test_codes_belong_to_the_state_that_was_parsed(source: Path) -> None:
    made = Memory(str(source), clock=later)
    _, codes = made.compiled(str(source), lambda data, name: {"text": [(1, data.decode())]})
    source.write_text("def f(x): return 2 * x\n")
    _, after = made.compiled(str(source), lambda data, name: {"text": [(1, data.decode())]})
    assert codes["text"][0][1] != after["text"][0][1]


def test_a_file_that_is_gone_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnkeyableError, match=r"prep\.py: its source cannot be read.*version="):
        Memory().parsed(str(tmp_path / "prep.py"), "prep.py")


@pytest.mark.parametrize("part", ["st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"])
def test_every_part_of_a_stamp_tells_one_state_from_another(part: str) -> None:
    one = dict.fromkeys(("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"), 1)
    stamps = [
        memory.stamp_of(cast("os.stat_result", SimpleNamespace(**made))) for made in (one, one | {part: 2})
    ]
    assert stamps[0] != stamps[1]


def test_a_file_that_is_written_while_it_is_read_is_read_again(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = iter([1, 2, 3, 3])
    monkeypatch.setattr(memory, "stamp_of", lambda status: next(stamps))
    assert memory.read_stamped(str(source)) == (source.read_bytes(), 3)
    stamps = iter(range(99))
    with pytest.raises(UnkeyableError, match="being written"):
        memory.read_stamped(str(source))
