"""Cutting a store's process short: the driver of `store_actor`, strace, and a disk to pull the plug of."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from prepcached.store.records import Limits
from prepcached.store.store import Store
from support import stores
from support.fork_processes import Running
from support.stores import RECIPE, item

ATTACH_TIMEOUT_S = 20
BEFORE = {item(name) for name in range(8)}
AFTER = {
    "commit": BEFORE | {item("new"), item("newer")},
    "replace": BEFORE,
    "delete": BEFORE - {item(0)},
    "merge": BEFORE,
}
"""The items of a store before an act of store_actor.py, and after it."""


def needs(*tools: str) -> pytest.MarkDecorator:
    """Skips, saying why, where the test cannot be done."""
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if os.geteuid() != 0:
        return pytest.mark.skip(reason="needs root (ptrace of another process, mounts)")
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


class StoreProcess(Running):
    """A running `store_actor`."""

    def __init__(self) -> None:
        super().__init__("support.store_actor", os.environ)

    def run(
        self, root: Path, act: str, *inject: str, limits: Limits = stores.ROOMY
    ) -> tuple[bool, dict[str, Any]]:
        """Lets a child act under strace with these injections; (was it killed, what it said)."""
        self._say(json.dumps({"root": str(root), "act": act, "limits": asdict(limits)}))
        ready = self._hear()
        assert "ready" in ready, ready
        with attached(ready["ready"], injecting(inject)):
            self._say("go")
            said = self._hear()
        status = said
        if "status" not in said:
            self._say("check")
            said |= self._hear()
            status = self._hear()
        is_killed = os.WIFSIGNALED(status["status"]) and os.WTERMSIG(status["status"]) == signal.SIGKILL
        assert is_killed or status["status"] == 0, f"{act} under {inject} ended with {status}, {said}"
        return is_killed, said

    def calls(self, root: Path, act: str, log: Path) -> list[str]:
        """The calls that an act makes durable things with, in order, paths for descriptors."""
        self._say(json.dumps({"root": str(root), "act": act, "limits": asdict(stores.ROOMY)}))
        pid = self._hear()["ready"]
        trace = ["-y", "-o", str(log), "-e", "trace=rename,fsync,fdatasync,unlink"]
        with attached(pid, trace):
            self._say("go")
            self._hear()
        self._say("check")
        while "status" not in self._hear():
            pass
        return [line for line in _joined(log.read_text().splitlines()) if "(" in line]


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """The calls of a trace, where strace has cut one in two at the call of another thread."""
    begun: dict[str, str] = {}
    for line in lines:
        pid, _, call = line.partition(" ")
        if call.endswith("<unfinished ...>"):
            begun[pid] = line.removesuffix("<unfinished ...>")
        elif (resumed := re.match(r"\s*<\.\.\. \w+ resumed>", call)) is not None:
            yield begun.pop(pid) + call[resumed.end() :]
        else:
            yield line


class Clients(Running):
    """A running `client_actor`."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__("support.client_actor", environ)

    def fill(self, salt: int, items: int, *, is_shared: bool = True) -> dict[str, Any]:
        """Lets a child open a data set; how many items it hit and computed."""
        self._order(salt, items, is_shared=is_shared)
        return self.ended()

    def cut_short(self, salt: int, items: int, inject: str, *, cut: str, is_shared: bool = True) -> bool:
        """The same, with an injection into one thread of "the job" or of "its commit"; was it killed?"""
        thread = self.begin(salt, items, cut=cut, is_shared=is_shared)
        with attached(thread, injecting((inject,)), follows=False):
            self.go_on()
            said = self._hear()
        if "status" not in said:
            said |= self._hear()
        is_killed = os.WIFSIGNALED(said["status"]) and os.WTERMSIG(said["status"]) == signal.SIGKILL
        assert is_killed or said["status"] == 0, said
        return is_killed

    def begin(self, salt: int, items: int, *, cut: str, is_shared: bool = True) -> int:
        """Lets a child come as far as where "the job" or "its commit" begins; the thread that waits there."""
        self._order(salt, items, is_shared=is_shared, cut=cut)
        return int(self._hear()["ready"])

    def go_on(self) -> None:
        self._say("go")

    @property
    def has_said(self) -> bool:
        """Whether something that was said was not heard yet."""
        return bool(select.select([self._process.stdout], [], [], 0)[0])

    def ended(self) -> dict[str, Any]:
        """What a child that went on says in the end."""
        said, status = self._hear(), self._hear()
        assert status == {"status": 0}, (said, status)
        return said

    def _order(self, salt: int, items: int, *, is_shared: bool, cut: str | None = None) -> None:
        order = {"salt": salt, "items": items, "is_shared": is_shared, "cut": cut}
        self._say(json.dumps(order))


def injecting(rules: tuple[str, ...]) -> list[str]:
    calls = ",".join(sorted({rule.partition(":")[0] for rule in rules}))
    options = ["-o", "/dev/null", "-e", f"trace={calls}"]
    for rule in rules:
        options += ["-e", f"inject={rule}"]
    return options


@contextlib.contextmanager
def attached(pid: int, options: list[str], *, follows: bool = True) -> Iterator[None]:
    """strace on a running process, attached on entry; on one thread alone if it does not follow."""
    command = ["strace", *(["-f"] if follows else []), "-p", str(pid), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert b"attached" in line, line
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(ATTACH_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()  # letting go of a process that dies just then, strace waits for ever


class Disk:
    """An xfs on a loop device, whose plug can be pulled."""

    def __init__(self, folder: Path) -> None:
        self._image, self.path = folder / "disk.img", folder / "disk"
        self.path.mkdir()
        with open(self._image, "wb") as file:
            file.truncate(300 << 20)
        _run("mkfs.xfs", "-q", "-f", str(self._image))
        self.mount()

    def mount(self, options: str = "loop") -> None:
        _run("mount", "-o", options, str(self._image), str(self.path))

    def unmount(self) -> None:
        _run("umount", str(self.path))

    def pull_the_plug(self) -> None:
        """Everything that was not synced is lost, the log included."""
        self.shut_down()
        self.plug_in_again()

    def shut_down(self) -> None:
        """From now on every access fails with EIO."""
        _run("xfs_io", "-x", "-c", "shutdown", str(self.path))

    def plug_in_again(self) -> None:
        self.unmount()
        self.mount()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def whole(root: Path) -> set[bytes]:
    """Restarts on a root after a crash: the items that it serves, after everything about it was proved.

    Only whole artifacts are served, disk use is the index's sum, `check` finds nothing, and no
    temporary or staged file is left.
    """
    store = Store(root, limits=stores.ROOMY)
    try:
        store.sweep_staging(lambda _: False)
        assert store.check() == []
        items = stores.items_of(store)
        assert len(items) == len(set(items)), "an item is served twice"
        assert store.verify().bad == ()
        stats = store.stats()
        assert stats.disk_bytes == stores.disk_use(store)
        assert stats.damaged == 0
        assert not any((root / "v1" / "tmp").iterdir())
        assert not any((root / "v1" / "staging").iterdir())
        generation = store.generation(RECIPE)
        assert stores.put(store, "after the crash").generation > generation
        return set(items)
    finally:
        store.close()
