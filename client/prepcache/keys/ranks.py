"""Notes on ranks in a key: what tells the processes of a job apart makes each of them do all the work.

    RANK = int(os.environ["RANK"])
    def prep(path):
        if RANK == 0: print(path)       # RANK counts, so each rank has a key of its own

Nothing is looked for unless the job's environment has such a variable.
"""

from __future__ import annotations

import dis
import linecache
import os
import re
from collections.abc import Iterable
from types import CodeType, FunctionType

from prepcache.keys.code.fingerprint import nested

_RANK = re.compile(
    "(.*_)?(rank|rankid|procid|localid|nodeid|process_index)"
    "|is_(local_)?(main|master)(_process)?|is_rank_zero",
    re.IGNORECASE,
)
"""How launchers call such a variable, and jobs what they make of it."""
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


def notes(functions: Iterable[FunctionType], values: Iterable[str], variables: Iterable[str]) -> list[str]:
    """What to say of ranks that count.

    Args:
        functions: all that are reached.
        values: the labels of values and attributes that count.
        variables: the environment variables that count.
    """
    if not any(map(_RANK.fullmatch, os.environ)) or any(os.environ.get(size) == "1" for size in _SIZES):
        return []
    codes = [code for function in functions for code in nested(function.__code__)]
    labels = [label.partition("#")[0] for label in values if not label.startswith("config.")]
    names = {*variables, *(label.rpartition(".")[2] for label in labels)}
    return [_line(name, _reading(codes, name)) for name in sorted(names) if _RANK.fullmatch(name)]


def _line(name: str, reading: tuple[str, int] | None) -> str:
    where = ""
    if reading is not None:
        path, number = reading
        where = f" ({os.path.basename(path)}:{number}: {linecache.getline(path, number).strip()})"
    return (
        f"{name} differs between the processes of this job and is in the key{where}, so every rank "
        f"preprocesses all items: exclude it with untracked=({name!r},), or read it outside the function"
    )


def _reading(codes: Iterable[CodeType], name: str) -> tuple[str, int] | None:
    """The file and line of the first code that names a global, an attribute or a text."""
    for code in codes:
        for step in dis.get_instructions(code):
            line = step.positions.lineno if step.positions is not None else None
            if step.argval == name and step.opname.startswith("LOAD") and line is not None:
                return code.co_filename, line
    return None
