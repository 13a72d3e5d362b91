"""Fingerprints projects of the corpus, each in a forked process of its own.

    python -m key_corpus.fingerprint PLAN ANSWERS

Reads {case index: {"project", "environ", "runs", "observed"}} and writes {case index: {"script", "function",
"items", "observed", "stale"}}. A digest may be `refused: ...`, where the key was refused. The parent imports
what is slow once; it never runs a project.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import types
from pathlib import Path
from typing import Any

import torch  # noqa: F401  (imported once, by the parent)
from prepcache.observe import Observer, still_true

import prepcache
from prepcache import items as item_keys
from prepcache import recipe as recipes


def load(project: Path) -> dict[str, Any]:
    """Runs job.py as `__main__` and returns its globals."""
    main = types.ModuleType("__main__")
    script = project / "job.py"
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    sys.path.insert(0, str(project))
    sys.argv = [str(script)]
    exec(compile(script.read_text(), str(script), "exec"), main.__dict__)
    return main.__dict__


def keyed(project: Path, runs: bool) -> dict[str, Any]:
    """The recipe in both modes, the item digests, and what was observed."""
    job = load(project)
    answer: dict[str, Any] = {}
    for mode in ("script", "function"):
        options = {"code": mode, **job.get("options", {})}
        try:
            recipe = recipes.recipe(job["fn"], config=job.get("config"), **options)
            answer[mode] = recipe.digest
        except prepcache.UnkeyableError as error:
            answer[mode] = f"refused: {error}"
    hasher = {key: job[key] for key in ("root", "read") if key in job}
    answer["items"] = [item_keys.item_digest(item, **hasher) for item in job.get("items", [])]
    if runs:
        observer = Observer(recipe)
        with observer.watching([]):
            job["fn"](job["items"][0])
        answer["observed"] = observer.taken()
    return answer


def in_a_fork(project: Path, case: dict[str, Any]) -> dict[str, Any]:
    """One case in a child process; what it raises is the answer's `error`."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.environ.update(case["environ"])
            answer = keyed(project, case["runs"])
            answer["stale"] = still_true(case["observed"]) if case["observed"] else None
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
    plan = json.loads(Path(sys.argv[1]).read_text())
    answers = {index: in_a_fork(Path(case["project"]), case) for index, case in plan.items()}
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
