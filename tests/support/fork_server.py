"""What a fork server does: a process that imports once, then forks a child for every order of the test.

Orders and answers are lines of JSON on its stdin and stdout, which its children share.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any


def say(message: dict[str, Any]) -> None:
    """One line to the test; a short write is atomic."""
    os.write(1, json.dumps(message).encode() + b"\n")


def hear() -> str:
    """One line from the test, read byte by byte: the rest of the pipe may be a sibling's."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            break
        line += piece
    return line.decode().strip()


def fork_for_orders(act: Callable[[dict[str, Any]], None]) -> None:
    """Forks a child for every order, and says how it ended."""
    if "SABOTAGE" in os.environ:
        import_module("sabotage.run").apply(os.environ["SABOTAGE"])
    while line := hear():
        pid = os.fork()
        if pid == 0:
            try:
                act(json.loads(line))
                os._exit(0)
            except BaseException:  # noqa: BLE001 - the loop above is the parent's, not the child's
                traceback.print_exc()
            finally:
                os._exit(70)
        say({"status": os.waitpid(pid, 0)[1]})
