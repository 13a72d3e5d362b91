"""What a session tells of its job and its recipes, as the daemon takes it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from prepcache.protocol import wire


class RecipeLike(Protocol):
    """What a session needs of a recipe (recipe.Recipe)."""

    @property
    def digest(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def parts(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Known:
    """What a new session has to tell again of a recipe, without the job's function that a recipe holds."""

    digest: str
    name: str
    parts: Mapping[str, Any]

    @classmethod
    def of(cls, recipe: RecipeLike) -> Known:
        return cls(recipe.digest, recipe.name, recipe.parts)


def job_name() -> str:
    """What people call this process: its script."""
    script = script_run()
    return plain(Path(script).name if script not in ("", "-c", "-m") else "python")


def is_first_rank() -> bool:
    """Whether no variable says that this is another rank of a job than the first."""
    ranks = (os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    return all(rank in ("", "0") for rank in ranks)


def script_run() -> str:
    """`sys.argv[0]`; "" in a program that embeds Python and gives it no command line."""
    return next(iter(getattr(sys, "argv", ())), "")


def plain(name: str) -> str:
    """A name as messages carry it: printable, and not long."""
    return "".join(c for c in name if c.isprintable())[:256]


def fitting(parts: Mapping[str, Any]) -> dict[str, Any]:
    """The readable parts, less the largest members where all of them are more than a daemon takes."""
    sizes = {name: len(json.dumps(value, default=str)) for name, value in parts.items()}
    kept = dict(parts)
    while sum(sizes[name] for name in kept) > wire.MAX_PARTS_BYTES:
        del kept[max(kept, key=lambda name: sizes[name])]
    return kept
