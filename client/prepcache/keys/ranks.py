"""Ranks in a key: variables that tell the processes of one job apart, and make each of them do all the work.

    RANK = int(os.environ["RANK"])
    def prep(path):
        if RANK == 0: print(path)       # RANK counts, so each rank has a key of its own

Nothing is looked for unless the job's environment has such a variable.
"""

from __future__ import annotations

import ast
import dis
import linecache
import os
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType
from typing import Any

VARIABLES = frozenset(
    {
        "RANK", "LOCAL_RANK", "GLOBAL_RANK", "NODE_RANK", "GROUP_RANK", "ROLE_RANK", "SLURM_PROCID",
        "SLURM_LOCALID", "SLURM_NODEID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK",
        "PMIX_RANK", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "JSM_NAMESPACE_RANK", "HOROVOD_RANK",
        "HOROVOD_LOCAL_RANK", "PALS_RANKID", "PET_NODE_RANK", "ACCELERATE_PROCESS_INDEX",
    }
)  # fmt: skip
_NAMES = frozenset({"rank", "local_rank", "global_rank", "node_rank", "process_index", "local_process_index"})
_ASKED = frozenset({"get_rank", "get_local_rank", "get_node_local_rank", "process_index", "local_rank"})
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")


def notes(
    functions: Iterable[FunctionType], values: dict[str, Any], variables: Iterable[str], places: Iterable[str]
) -> list[str]:
    """What to say of ranks that count.

    Args:
        functions: all that are reached.
        values: what holds each value that counts, by label.
        variables: the environment variables that count.
        places: of attributes of objects that count.
    """
    if VARIABLES.isdisjoint(os.environ) or any(os.environ.get(size) == "1" for size in _SIZES):
        return []
    codes = [code for function in functions for code in _codes(function.__code__)]
    found = [(name, _reading(codes, name)) for name in variables if name in VARIABLES]
    known: dict[int, set[str]] = {}
    for label, owner in values.items():
        name = label.rpartition(".")[2].partition("#")[0]
        if name.lower() in _NAMES or (isinstance(owner, dict) and name in _ranks_of(owner, known)):
            found.append((name, _reading(codes, name)))
    for place in places:
        name = place.rpartition(".")[2]
        if name.lower() in _NAMES and not place.startswith("config."):
            found.append((name, _reading(codes, name)))
    return [_line(name, reading) for name, reading in dict(sorted(found)).items()]


def _line(name: str, reading: tuple[str, int] | None) -> str:
    where = ""
    if reading is not None:
        path, number = reading
        where = f" ({os.path.basename(path)}:{number}: {linecache.getline(path, number).strip()})"
    return (
        f"{name} tells the processes of this job apart and is in the key{where}, so every rank makes all "
        f"samples by itself: leave it out with untracked=({name!r},), or read it outside of the function"
    )


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes(const)


def _reading(codes: Iterable[CodeType], name: str) -> tuple[str, int] | None:
    """The file and line of the first code that names a global, an attribute or a text."""
    for code in codes:
        for step in dis.get_instructions(code):
            line = step.positions.lineno if step.positions is not None else None
            if step.argval == name and step.opname.startswith("LOAD") and line is not None:
                return code.co_filename, line
    return None


def _ranks_of(space: dict[str, Any], known: dict[int, set[str]]) -> set[str]:
    """The globals of a module that its text makes of a rank, or of another such global."""
    if id(space) not in known:
        known[id(space)] = set()
        file = space.get("__file__")
        if isinstance(file, str) and file.endswith(".py"):
            try:
                tree = ast.parse("".join(linecache.getlines(file)))
            except (SyntaxError, ValueError):
                return known[id(space)]
            known[id(space)] = _assigned(tree)
    return known[id(space)]


def _assigned(tree: ast.Module) -> set[str]:
    ranks: set[str] = set()
    for statement in ast.walk(tree):
        if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) or statement.value is None:
            continue
        if _is_of_rank(statement.value, ranks):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            ranks.update(
                node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)
            )
    return ranks


def _is_of_rank(value: ast.expr, ranks: set[str]) -> bool:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in VARIABLES:
            return True
        if isinstance(node, ast.Name) and (node.id in ranks or node.id in _ASKED):
            return True
        if isinstance(node, ast.Attribute) and node.attr in _ASKED:
            return True
    return False
