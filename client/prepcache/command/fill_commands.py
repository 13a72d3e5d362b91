"""`prepcache fill` and `prepcache plan`: the data set of a training script, without training.

Unlike all other commands, these run the user's file: what is to be preprocessed is what its code opens.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prepcache.command.cli_tables import AsJson, emit, fields
from prepcache.daemon.client import Client
from prepcache.errors import ConfigError
from prepcache.protocol.units import count_text, size_text, span_text

if TYPE_CHECKING:
    from prepcache.dataset_options import OpeningMode

_SUMMED = ("items", "hit", "computed", "waited", "declined", "not_stored", "seconds")
_SHARD = re.compile(r"(\d{1,6})/(\d{1,6})\Z")

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE:DATASET",
        help="A function in FILE that returns a CachedDataset, or a global that is one.",
    ),
]


def fill(
    target: Target,
    shard: Annotated[
        str, typer.Option("--shard", metavar="I/N", help="Only part I (from 0) of N, as in a job array.")
    ] = "0/1",
    as_json: AsJson = False,
) -> None:
    """Preprocess what is missing of a data set, without training.

    FILE is imported, which runs its top level: put its training loop under `if __name__ == "__main__":`, or
    into a function. With --shard, only the items of that part are preprocessed.

    Commands and jobs that fill the same data set at once divide the work, with or without --shard.

    Example: prepcache fill train.py:make_dataset --shard $SLURM_ARRAY_TASK_ID/8
    """
    from prepcache.daemon.session import Session
    from prepcache.dataset_options import OpeningMode

    given = _SHARD.match(shard)
    if given is None or not int(given[1]) < int(given[2]):
        raise typer.BadParameter("must be I/N with I from 0 to N - 1, as 0/8", param_hint="--shard")
    datasets = _opened(target, OpeningMode(shard=int(given[1]), shards=int(given[2])))
    Session.current(Client()).close()  # waits for commits that are under way, as the end of a job does
    reports = [ds.report() for ds in datasets]
    told = {name: sum(getattr(one, name) for one in reports) for name in _SUMMED}
    made = f"{told['computed']:,} computed in {span_text(told['seconds'])} of work"
    lost = f"{told['declined']:,} declined, {told['not_stored']:,} not stored"
    others = f"{told['waited']:,} from other jobs, {lost}"
    items = count_text(told["items"], "item", "items")
    emit(told, as_json, lambda: typer.echo(f"{items}: {told['hit']:,} hit, {made}, {others}"))
    if told["declined"] or told["not_stored"]:
        raise typer.Exit(1)


def plan(target: Target, as_json: AsJson = False) -> None:
    """Say how much a fill would make, what that takes, and why.

    FILE is imported, which runs its top level: put its training loop under `if __name__ == "__main__":`, or
    into a function. A loop at the top level runs, and preprocesses what it reads; so does `cached()`.

    Seconds and bytes are estimated from what this function's items have taken before.

    Example: prepcache plan train.py:make_dataset
    """
    from prepcache.dataset_options import OpeningMode

    plans = [_plan(ds) for ds in _opened(target, OpeningMode(prepares=False))]
    emit(plans, as_json, lambda: _show(plans))


def _show(plans: list[dict[str, Any]]) -> None:
    for one in plans:
        cost = "unknown: the cache has no samples of this function to estimate from"
        if one["seconds"] is not None:
            cost = f"about {span_text(one['seconds'])} of work and {size_text(one['bytes'])}"
        typer.echo(f"{one['name']}: {one['items']:,} items, {one['hit']:,} hit, {one['missing']:,} missing")
        if one["missing"]:
            fields({"  to come": cost, "  why": "\n".join(one["why"])})


def _plan(ds: Any) -> dict[str, Any]:
    hit = ds.cached()
    missing = len(ds.items) - hit
    items = cost_s = size_bytes = 0.0
    with Client() as client:
        for entry in client.entries(name=ds.name):
            items += entry.items
            cost_s += entry.cost_s
            size_bytes += entry.size_bytes
    return {
        "name": ds.name,
        "recipe": ds.recipe.digest,
        "items": len(ds.items),
        "hit": hit,
        "missing": missing,
        "why": list(ds.report().why),
        "seconds": cost_s / items * missing if items else None,
        "bytes": size_bytes / items * missing if items else None,
    }


def _opened(target: str, mode: OpeningMode) -> list[Any]:
    """The data sets that a file's function, or the file itself, opens. Raises ConfigError without any."""
    from prepcache.dataset_options import opened_as

    file, _, name = target.rpartition(":")
    path = Path(file).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if spec is None or spec.loader is None:
        raise ConfigError(f"{target}: write FILE:DATASET of an existing Python file, as in train.py:make")
    if path.stem in sys.modules:
        raise ConfigError(f"{file}: a module named {path.stem} is already loaded: rename the file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    argv, sys.argv, is_function = sys.argv, [file], False
    try:
        with opened_as(mode):
            spec.loader.exec_module(module)
            if not hasattr(module, name):
                raise ConfigError(f"{file} defines no {name!r}")
            found: Any = getattr(module, name)
            with contextlib.suppress(TypeError, ValueError):  # it takes arguments, or is no function
                inspect.signature(found).bind()
                is_function = True
            if is_function:
                found()
                found = next(iter(mode.opened), None)
    finally:
        sys.argv = argv
    if not any(found is one for one in mode.opened):
        raise ConfigError(
            f"{file}: {name} opened no CachedDataset: give a function without arguments that returns one, or "
            "a global that is one"
        )
    return mode.opened
