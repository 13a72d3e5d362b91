"""The map process: its answers are those of reading, and whatever becomes of it nothing else changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from prepcache.errors import UnkeyableError
from prepcache.keys.files import digest as digest_module
from prepcache.keys.files import map_main, mapped
from prepcache.keys.files.digest import Digested, read_file, read_files, stamp_of
from prepcache.keys.files.mapped import MapProcess
from prepcache.keys.files.stat_cache import Memo
from support.leaks import Leaks

KEYS = str(Path(map_main.__file__).parent)
PATCHED = f"import os, sys; sys.path.append({KEYS!r}); import map_main\n"
RUN = "\nmap_main.main()\n"

Run = Callable[[str], None]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[MapProcess]:
    """The map processes that were started; every file is for them."""
    monkeypatch.setattr(digest_module, "MAP_BYTES", 0)
    monkeypatch.setattr(digest_module, "LARGE_BYTES", 0)
    monkeypatch.setattr(digest_module, "MEANWHILE_BYTES", -1)
    monkeypatch.setattr(mapped, "START_S", 60.0)
    made: list[MapProcess] = []
    start = MapProcess.start

    def spied(threads: int) -> MapProcess | None:
        process = start(threads)
        if process is not None:
            made.append(process)
        return process

    monkeypatch.setattr(MapProcess, "start", spied)
    return made


@pytest.fixture
def run_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Has a script run in the place of `map_main`."""
    command = mapped._command

    def run(text: str) -> None:
        (tmp_path / "script.py").write_text(text)
        patched = [str(tmp_path / "script.py") if w == map_main.__file__ else w for w in command(1) or []]
        monkeypatch.setattr(mapped, "_command", lambda threads: patched)

    return run


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str | bytes]:
    """The files that this process read itself."""
    names: list[str | bytes] = []
    read_once = digest_module._read

    def spied(
        name: str | bytes, memo: Memo | None, buffer: memoryview, below: int | None = None
    ) -> Digested | int:
        found = read_once(name, memo, buffer, below)
        if not isinstance(found, int):
            names.append(name)
        return found

    monkeypatch.setattr(digest_module, "_read", spied)
    return names


def made(folder: Path, *sizes: int) -> list[str]:
    """Files of these sizes, mostly holes."""
    names = []
    for i, size in enumerate(sizes):
        path = folder / f"{i}"
        with path.open("wb") as file:
            file.write(os.urandom(min(size, 5000)))
            file.truncate(size)
        names.append(str(path))
    return names


def expected(names: list[str]) -> list[bytes]:
    return [blake3(Path(name).read_bytes()).digest() for name in names]


def status(process: MapProcess) -> int | None:
    return process._process.returncode


@pytest.mark.parametrize("threads", [1, 3])
def test_it_answers_with_blake3_of_all_bytes_and_the_stamp(
    tmp_path: Path, started: list[MapProcess], reads: list[str | bytes], threads: int
) -> None:
    window = map_main.WINDOW_BYTES
    names = made(tmp_path, 0, 1, 4095, 4096, 4097, 10**6, window - 1, window, window + 1)
    found = read_files(names, None, threads)
    assert [x.digest for x in found] == expected(names)
    assert [x.stamp for x in found] == [stamp_of(os.stat(name)) for name in names]
    assert len(started) == 1
    assert reads == []


def test_each_file_is_hashed_by_the_threads_asked_for() -> None:
    for threads, count in ((1, 1), (3, 4)):  # the main thread waits for the three
        process = MapProcess.start(threads)
        assert process is not None
        with process:
            assert process.has_started(30)
            assert len(os.listdir(f"/proc/{process._process.pid}/task")) == count


def test_files_are_read_while_it_starts(
    tmp_path: Path, started: list[MapProcess], reads: list[str | bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = made(tmp_path, 3000, 1000, 2000, 4000)
    monkeypatch.setattr(digest_module, "MEANWHILE_BYTES", 3000)
    has_started = MapProcess.has_started
    monkeypatch.setattr(MapProcess, "has_started", lambda self, s: has_started(self, 30) if s else None)
    assert [x.digest for x in read_files(names, None, 1)] == expected(names)
    assert reads == [names[1], names[2], names[0]]


def test_a_small_total_starts_none(
    tmp_path: Path, started: list[MapProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = made(tmp_path, 1000, 1000)
    monkeypatch.setattr(digest_module, "MAP_BYTES", 2001)
    assert [x.digest for x in read_files(names, None, 1)] == expected(names)
    assert started == []


def test_a_file_that_shrinks_while_mapped_does_not_kill_the_job(
    tmp_path: Path, started: list[MapProcess], run_instead: Run, reads: list[str | bytes]
) -> None:
    names = made(tmp_path, 30_000_000, 20_000_000, 10_000_000)
    run_instead(
        PATCHED + "from types import SimpleNamespace\n"
        "import mmap\n"
        "def mapped(fd, *rest, **named):\n"
        "    window = mmap.mmap(fd, *rest, **named)\n"
        f"    if os.fstat(fd).st_ino == {os.stat(names[1]).st_ino}:\n"
        f"        os.truncate({names[1]!r}, 4096)\n"
        "    return window\n"
        "map_main.mmap = SimpleNamespace(**{**vars(mmap), 'mmap': mapped})" + RUN
    )
    found = read_files(names, None, 1)
    assert [x.digest for x in found] == expected(names)
    assert found[1].stamp[2] == 4096
    assert [status(process) for process in started] == [-signal.SIGBUS]
    assert set(reads) == set(names)  # its answers are sent a window at a time


def test_a_file_that_changes_while_it_is_mapped_is_read_again(
    tmp_path: Path, started: list[MapProcess], run_instead: Run, reads: list[str | bytes]
) -> None:
    names = made(tmp_path, 1000, 900)
    run_instead(
        PATCHED + "stamp = map_main._stamp\n"
        "def changing(fd):\n"
        "    before = stamp(fd)\n"
        "    if before[2] == 1000:\n"
        f"        os.write(os.open({names[0]!r}, os.O_WRONLY | os.O_APPEND), b'more')\n"
        "    return before\n"
        "map_main._stamp = changing" + RUN
    )
    found = read_files(names, None, 1)
    assert [x.digest for x in found] == expected(names)
    assert found[0].stamp[2] == 1004
    assert reads == [names[0]]
    assert len(started) == 1


@pytest.mark.parametrize(
    "script",
    [
        "raise SystemExit(1)",
        "import os; os.write(0, b'x')",
        "import os; os.kill(os.getpid(), 9)",
        "import os; os.write(0, b'1'); os.kill(os.getpid(), 9)",
        "import os; os.write(0, b'1'); os.read(0, 9999); os.kill(os.getpid(), 9)",
        "import os; os.write(0, b'1'); os.read(0, 9999); os.write(0, b'\\1half')",
    ],
    ids=["exits", "says nonsense", "killed", "killed when ready", "killed when told", "answers by half"],
)
def test_if_it_dies_files_are_read(
    tmp_path: Path, started: list[MapProcess], run_instead: Run, script: str, reads: list[str | bytes]
) -> None:
    names = made(tmp_path, 10, 5000)
    run_instead(script)
    assert [x.digest for x in read_files(names, None, 2)] == expected(names)
    assert set(reads) == set(names)
    assert len(started) == 1


def test_if_it_does_not_get_ready_files_are_read(
    tmp_path: Path, started: list[MapProcess], run_instead: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = made(tmp_path, 10)
    monkeypatch.setattr(mapped, "START_S", 0.01)
    run_instead("import os; os.read(0, 1)")
    assert [x.digest for x in read_files(names, None, 1)] == expected(names)
    assert [status(process) for process in started] == [-signal.SIGKILL]


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (sys, "executable", "/opt/painter/painter"),
        (sys, "executable", None),
        (sys, "executable", "/nowhere/python"),
        (sys, "frozen", True),
        (mapped.blake3, "__file__", None),
    ],
)
def test_where_no_interpreter_can_be_started_files_are_read(
    tmp_path: Path,
    started: list[MapProcess],
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    value: object,
) -> None:
    monkeypatch.setattr(owner, name, value, raising=False)
    names = made(tmp_path, 10)
    assert [x.digest for x in read_files(names, None, 1)] == expected(names)
    assert started == []


def test_an_answer_that_does_not_fit_the_file_is_not_believed(
    tmp_path: Path, started: list[MapProcess], run_instead: Run, reads: list[str | bytes]
) -> None:
    names = made(tmp_path, 10)
    (tmp_path / "other").write_bytes(b"x")
    run_instead(
        PATCHED + "answer = map_main.answer\n"
        f"map_main.answer = lambda name, *rest: answer({os.fsencode(tmp_path / 'other')!r}, *rest)" + RUN
    )
    assert [x.digest for x in read_files(names, None, 1)] == expected(names)
    assert reads == names
    assert len(started) == 1


def test_where_a_hook_forbids_processes_files_are_read(
    tmp_path: Path, started: list[MapProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_: object, **__: object) -> None:
        raise RuntimeError("no processes here")

    monkeypatch.setattr(subprocess, "Popen", forbid)
    names = made(tmp_path, 10)
    assert [x.digest for x in read_files(names, None, 1)] == expected(names)
    assert started == []


def test_what_cannot_be_read_is_named_as_ever(tmp_path: Path, started: list[MapProcess]) -> None:
    names = made(tmp_path, 10, 20)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnkeyableError, match="is a pipe"):
        read_files([*names, str(tmp_path / "pipe")], None, 1)
    hasher = blake3()
    for name in ("pipe", "absent", "."):
        answer = map_main.answer(os.fsencode(tmp_path / name), hasher, os.getppid())
        assert answer == map_main._NOT_HASHED


def test_a_file_that_vanishes_before_mapping_is_named(
    tmp_path: Path, started: list[MapProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = made(tmp_path, 10, 20)
    has_started = MapProcess.has_started

    def and_vanishes(self: MapProcess, wait_s: float) -> bool | None:
        Path(names[1]).unlink(missing_ok=True)
        return has_started(self, wait_s)

    monkeypatch.setattr(MapProcess, "has_started", and_vanishes)
    with pytest.raises(UnkeyableError, match="/1' cannot be read"):
        read_files(names, None, 1)


def test_answers_in_one_process_are_those_of_reading(tmp_path: Path) -> None:
    names = made(tmp_path, 5, map_main.WINDOW_BYTES + 5)
    hasher = blake3(b"left over")
    for name in names:
        answer = map_main.answer(os.fsencode(name), hasher, os.getppid())
        is_hashed, *stamp, digest = mapped._ANSWER.unpack(answer)
        assert (is_hashed, tuple(stamp), digest) == (True, *read_file(name, None)[1::-1])


def test_a_file_that_did_not_hold_still_has_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = made(tmp_path, 10)
    stamp = map_main._stamp

    def and_changes(fd: int) -> tuple[int, int, int, int, int] | None:
        before = stamp(fd)
        with open(name, "ab") as file:
            file.write(b"more")
        return before

    monkeypatch.setattr(map_main, "_stamp", and_changes)
    assert map_main.answer(os.fsencode(name), blake3(), os.getppid()) == map_main._NOT_HASHED


def test_numbers_that_need_64_bits_come_as_the_stamp_has_them() -> None:
    packed = map_main.ANSWER.pack(True, 2**64 - 1, 2**63 + 5, 3, -4, 5, bytes(32))
    device, inode = (digest_module.signed(number) for number in (2**64 - 1, 2**63 + 5))
    assert mapped._ANSWER.unpack(packed) == (True, device, inode, 3, -4, 5, bytes(32))


def test_only_an_old_file_is_remembered(
    tmp_path: Path, started: list[MapProcess], reads: list[str | bytes]
) -> None:
    names = made(tmp_path, 10, 20)
    assert all(x.is_racy for x in read_files(names, None, 1))
    memo = Memo(tmp_path / "memo", window_ns=lambda device: -(10**20))
    found = read_files(names, memo, 1)
    assert [memo.get(x.stamp) for x in found] == expected(names)
    assert reads == []
    assert len(started) == 2


def test_its_job_gone_it_ends_after_a_window(tmp_path: Path) -> None:
    (name,) = made(tmp_path, 10)
    program = PATCHED + (
        "from blake3 import blake3\n"
        f"map_main.answer({os.fsencode(name)!r}, blake3(), os.getppid() + 1)\n"
        "os._exit(0)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 1


def test_it_waits_for_names_for_a_limited_time(
    tmp_path: Path, run_instead: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped, "SILENCE_S", 1)
    process = MapProcess.start(1)
    assert process is not None
    with process:
        assert process.has_started(30)
        assert process._process.wait(30) == 1


def test_it_leaves_no_core_file(tmp_path: Path, started: list[MapProcess], run_instead: Run) -> None:
    names = made(tmp_path, 10)
    run_instead(
        PATCHED + "import resource\n"
        "resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)\n"
        "def limit(*_):\n"
        "    soft, _ = resource.getrlimit(resource.RLIMIT_CORE)\n"
        f"    open({str(tmp_path / 'limit')!r}, 'w').write(str(soft))\n"
        "    return map_main._NOT_HASHED\n"
        "map_main.answer = limit" + RUN
    )
    assert [x.digest for x in read_files(names, None, 1)] == expected(names)
    assert (tmp_path / "limit").read_text() == "0"


def test_it_inherits_no_descriptor_and_none_is_left(
    tmp_path: Path, started: list[MapProcess], run_instead: Run
) -> None:
    names = made(tmp_path, 10)
    before = Leaks()
    read_files(names, None, 2)
    assert not before.descriptors()
    inherited = os.open(names[0], os.O_RDONLY)
    os.set_inheritable(inherited, True)
    run_instead(
        f"import os; open({str(tmp_path / 'fds')!r}, 'w').write(','.join(os.listdir('/proc/self/fd')))"
    )
    read_files(names, None, 2)
    os.close(inherited)
    assert set((tmp_path / "fds").read_text().split(",")) == {"0", "1", "2", "3", "4"}  # the file, the folder
    assert all(status(process) is not None for process in started)


def test_an_interrupted_job_leaves_no_process(
    tmp_path: Path, started: list[MapProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(digest_module, "_digested", interrupt)
    with pytest.raises(KeyboardInterrupt):
        read_files(made(tmp_path, 10, 10), None, 1)
    assert [status(process) is not None for process in started] == [True]


def test_a_job_that_dies_of_broken_pipes_survives_a_dead_process(tmp_path: Path) -> None:
    (name,) = made(tmp_path, 10)
    program = (
        "import signal, sys; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
        "from prepcache.keys.files import mapped\n"
        "mapped._command = lambda threads: [sys.executable, '-c', 'import os; os.write(0, b\"1\")']\n"
        "with mapped.MapProcess.start(1) as process:\n"
        "    assert process.has_started(30)\n"
        "    process._process.wait(30)\n"
        f"    assert list(process.hash([{name!r}])) == []\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_it_serves_forked_children_and_threads(
    tmp_path: Path, started: list[MapProcess], reads: list[str | bytes]
) -> None:
    names = made(tmp_path, 10, 5_000_000)
    wanted = expected(names)
    assert [x.digest for x in read_files(names, None, 2)] == wanted
    child = os.fork()
    if child == 0:
        try:
            found = [x.digest for x in read_files(names, None, 2)]
            os._exit(0 if found == wanted and not reads and len(started) == 2 else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0) == (child, 0)
    found: list[list[bytes]] = []
    threads = [
        threading.Thread(target=lambda: found.append([x.digest for x in read_files(names, None, 1)]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 3
    assert len(started) == 4
    assert reads == []
