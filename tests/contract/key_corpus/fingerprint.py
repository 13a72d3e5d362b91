"""Fingerprints projects of the corpus, each in a forked process of its own.

    python -m key_corpus.fingerprint MODULE:MAKER PLAN ANSWERS

Reads {case index: {"project", "environ", "runs", "observed"}} and writes {case index: answer}. MAKER returns
the keyer, with all that it needs imported; that answers for the globals of a project's job and the case:
{mode: digest or `refused: ...`, "items": [digest], "stale", "observed"}. This process never runs a project.
"""

import gc
import json
import os
import sys
import traceback
import types
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch  # noqa: F401  (imported once, by the parent)

Keyer = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def load(project: Path) -> dict[str, Any]:
    """Runs job.py as `__main__` and returns its globals."""
    main = types.ModuleType("__main__")
    script = project / "job.py"
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    sys.path.insert(0, str(project))
    sys.argv = [str(script)]
    exec(compile(script.read_text(), str(script), "exec", dont_inherit=True), main.__dict__)
    return main.__dict__


def in_a_fork(keyer: Keyer, case: dict[str, Any]) -> dict[str, Any]:
    """One case in a child process; what it raises is the answer's `error`."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.environ.update(case["environ"])
            answer = keyer(load(Path(case["project"])), case)
        except BaseException:  # noqa: BLE001 (the parent tells it as the case's answer)
            answer = {"error": traceback.format_exc()}
        try:
            with os.fdopen(write_fd, "w") as out:
                json.dump(answer, out)
            status = 0
        finally:
            os._exit(status)
    os.close(write_fd)
    with os.fdopen(read_fd) as source:
        text = source.read()
    os.waitpid(pid, 0)
    return dict(json.loads(text)) if text else {"error": "the process died"}


def main() -> None:
    module, _, name = sys.argv[1].partition(":")
    keyer: Keyer = getattr(import_module(module), name)()
    plan = json.loads(Path(sys.argv[2]).read_text())
    gc.collect()
    gc.freeze()  # no collection in a fork looks through torch
    answers = {index: in_a_fork(keyer, case) for index, case in plan.items()}
    Path(sys.argv[3]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
