"""A process that has imported what jobs need, and forks one for each order: an import of torch takes 1.4 s.

Run as a program with the number of an inherited unix socket, and modules to import besides. An order is a
message `{"argv", "environ", "cwd"}` with the job's three standard streams. The answers are `{"pid"}`, and
`{"pid", "status"}` when that process has ended.

A forked job differs from a started one in what is loaded already, in its hash seed, which is the server's,
and in whose child it is.
"""

import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import types
from contextlib import suppress
from typing import Any

ORDER_BYTES = 1 << 17


def serve(control: socket.socket) -> dict[str, Any]:
    """Forks jobs until the other side closes the socket. Returns only in a job: its order."""
    wake, waker = socket.socketpair()
    for one in (wake, waker):
        one.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only a Python handler wakes the loop
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([control, wake], [], [])
        if wake in ready:
            with suppress(BlockingIOError):
                wake.recv(4096)
            _tell_who_ended(control)
        if control in ready:
            message, streams, _, _ = socket.recv_fds(control, ORDER_BYTES, 3)
            if not message:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (wake, waker, control):
                    one.close()
                for number, fd in enumerate(streams):
                    os.dup2(fd, number)
                os.closerange(3, max(streams) + 1)
                return dict(json.loads(message))
            for fd in streams:
                os.close(fd)
            control.send(json.dumps({"pid": pid}).encode())


def _tell_who_ended(control: socket.socket) -> None:
    with suppress(ChildProcessError, BrokenPipeError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            control.send(json.dumps({"pid": pid, "status": status}).encode())


def say(**told: Any) -> None:
    """In a job: one line to the test."""
    print(json.dumps(told), flush=True)


def hear(word: str) -> None:
    """In a job: waits for this line from the test."""
    assert sys.stdin.readline() == f"{word}\n"


def become(argv: list[str], environ: dict[str, str], cwd: str) -> None:
    """Runs a script as `python argv...` does. What it raises ends this process as it would end that one."""
    faulthandler.enable()  # a test that waits in vain asks by SIGABRT what the job is at
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[:] = argv
    mine = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [os.path.dirname(os.path.abspath(argv[0])), *(one for one in sys.path[1:] if one != mine)]
    main = types.ModuleType("__main__")
    main.__file__ = argv[0]
    sys.modules["__main__"] = main
    with open(argv[0], encoding="utf-8") as script:
        code = compile(script.read(), argv[0], "exec", dont_inherit=True)
    try:
        exec(code, main.__dict__)
    except Exception as error:  # noqa: BLE001 - the traceback must not show this module
        trace = error.__traceback__
        sys.excepthook(type(error), error, trace and trace.tb_next)
        sys.exit(1)


if __name__ == "__main__":
    for module in ("numpy", "prepcache", *sys.argv[2:]):
        importlib.import_module(module)
    for name in ("CachedDataset", "CachedIterableDataset", "Client"):
        getattr(sys.modules["prepcache"], name)  # loads what it needs
    if "SABOTAGE" in os.environ:
        importlib.import_module("sabotage.run").apply(os.environ["SABOTAGE"])
    gc.collect()
    gc.freeze()
    become(**serve(socket.socket(fileno=int(sys.argv[1]))))
