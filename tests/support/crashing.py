"""Cutting a store's process short: the driver of `store_actor`, strace, and a disk to pull the plug of."""

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

from prepcache.daemon.client import Client
from prepcached.store.layout import Layout
from prepcached.store.records import Limits
from prepcached.store.store import Store
from support import stores
from support.forked import Forked, JobServer
from support.serving import wait_until
from support.stores import RECIPE, item

ATTACH_TIMEOUT_S = 20
SUPPORT = Path(__file__).parent
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


class StoreProcess:
    """Forks processes that do one thing to a store (store_actor.py)."""

    def __init__(self) -> None:
        self._server = JobServer("support.store_actor")
        self.close = self._server.close

    def _begin(self, root: Path, act: str, limits: Limits = stores.ROOMY) -> Forked:
        order = json.dumps({"root": str(root), "act": act, "limits": asdict(limits)})
        child = self._server.start([str(SUPPORT / "store_actor.py"), order], os.environ, SUPPORT)
        ready = child.hear()
        assert ready == {"ready": child.pid}, (ready, child.communicate())
        return child

    def run(
        self, root: Path, act: str, *inject: str, limits: Limits = stores.ROOMY
    ) -> tuple[bool, dict[str, Any]]:
        """Lets a child act under strace with these injections; (was it killed, what it said)."""
        child = self._begin(root, act, limits)
        with attached(child.pid, injecting(inject)):
            child.tell("go")
            said = child.hear()
        if said:
            child.tell("check")
            said |= child.hear()
        return _is_killed(child, said), said

    def calls(self, root: Path, act: str, log: Path) -> list[str]:
        """The calls that an act makes durable things with, in order, paths for descriptors."""
        child = self._begin(root, act)
        trace = ["-y", "-o", str(log), "-e", "trace=rename,fsync,fdatasync,unlink"]
        with attached(child.pid, trace):
            child.tell("go")
            child.hear()
        child.tell("check")
        child.communicate()
        return [line for line in _joined(log.read_text().splitlines()) if "(" in line]


def _is_killed(child: Forked, said: dict[str, Any]) -> bool:
    """Whether a child was killed; else it must have ended well."""
    _, err = child.communicate()
    assert child.returncode in (0, -signal.SIGKILL), f"ended with {child.returncode}, {said}: {err}"
    return child.returncode != 0


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


class Clients:
    """Forks jobs (client_actor.py)."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._server = JobServer("support.client_actor")
        self.close = self._server.close
        self._environ = environ

    def fill(self, salt: int, items: int, *, is_shared: bool = True) -> dict[str, Any]:
        """Lets a child open a data set; how many items it hit and computed."""
        self._order(salt, items, is_shared=is_shared)
        return self.ended()

    def cut_short(self, salt: int, items: int, inject: str, *, cut: str, is_shared: bool = True) -> bool:
        """The same, with an injection into one thread of "the job" or of "its commit"; was it killed?"""
        thread = self.begin(salt, items, cut=cut, is_shared=is_shared)
        with attached(thread, injecting((inject,)), follows=False):
            self.go_on()
            said = self._job.hear()
        return _is_killed(self._job, said)

    def begin(self, salt: int, items: int, *, cut: str, is_shared: bool = True) -> int:
        """Lets a child come as far as where "the job" or "its commit" begins; the thread that waits there."""
        self._order(salt, items, is_shared=is_shared, cut=cut)
        return int(self._job.hear()["ready"])

    def go_on(self) -> None:
        self._job.tell("go")

    @property
    def has_said(self) -> bool:
        """Whether something that was said was not heard yet."""
        return bool(select.select([self._job.stdout], [], [], 0)[0])

    def ended(self) -> dict[str, Any]:
        """What a child that went on says in the end."""
        said = self._job.hear()
        assert not _is_killed(self._job, said) and said
        return said

    def _order(self, salt: int, items: int, *, is_shared: bool, cut: str | None = None) -> None:
        order = json.dumps({"salt": salt, "items": items, "is_shared": is_shared, "cut": cut})
        self._job = self._server.start([str(SUPPORT / "client_actor.py"), order], self._environ, SUPPORT)


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
        """Waits for other mount namespaces that hold it: a mount would find the broken one again."""
        _run("umount", str(self.path))
        assert wait_until(lambda: not _run("losetup", "-j", str(self._image)), 30)

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


def _run(*command: str) -> bytes:
    return subprocess.run(command, check=True, capture_output=True).stdout


def check_tidy(folder: Path) -> None:
    """Of a dead client nothing is left, as the daemon in the folder says itself."""
    layout = Layout(os.fspath(folder / "root"))
    with contextlib.closing(Client(f"unix://{folder}/s.sock")) as client:

        def is_tidy() -> bool:
            stats = client.stats()
            left = ("sessions", "leases", "waiting", "held_bytes", "staged_bytes", "reserved_bytes")
            return not any(stats[name] for name in left) and not os.listdir(layout.staging)

        assert wait_until(is_tidy, 10), (client.stats(), os.listdir(layout.staging))
        assert client.verify().bad == ()
        assert not os.listdir(layout.tmp)


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
