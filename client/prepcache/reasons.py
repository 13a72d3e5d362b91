"""Reasons: why samples of a data set were there or not, in the lines that people read.

    miss prep.tokenize: config.max_len 128 -> 256; 300 items, 0 hit, 300 to preprocess; recipe 7c86560b2a6d
    miss prep.tokenize: 3 of 2,000 items not cached: a.txt, b.txt, c.txt; ...

Invariants:
    1. A hit costs no request, a miss at most one, of at most `ASK_S`; a job never fails over its reason,
       and the daemon is not given up for it.
    2. What is told to the daemon (`ArtifactSet.why`), and so to other users, names files, never values.

Not here: the difference between recipes (explain.py).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from prepcache.daemon.description import fitting
from prepcache.digests import RecipeDigest
from prepcache.errors import DaemonUnreachable, PrepcacheError
from prepcache.fill.call import paths_in
from prepcache.protocol import explain, wire
from prepcache.protocol.units import count_text, shortened
from prepcache.report import Report
from prepcache.settings import Mode

if TYPE_CHECKING:
    from prepcache.daemon.client import Client
    from prepcache.index.artifact_set import ArtifactSet
    from prepcache.index.item_index import Catalogue
    from prepcache.keys.items import Stamps
    from prepcache.protocol import inspection
    from prepcache.report import Tally

ASK_S = 1.0
NAMED_ITEMS = 3
PATH_CHARS = 120
WITHOUT = "without the cache"
"""After the warning that tells why: no daemon, or one that refuses."""
NOT_KEPT = "PREPCACHE=readonly: new samples are not stored"
NEW_CACHE = "nothing of this name is cached yet"
"""As the daemon says; of the new cache that it begins with it need not be asked."""
NOT_KNOWN = "reason unknown: the daemon did not answer in time; try `prepcache explain`"
_TAKEN = {"folder": "listed", "module": "imported", "distribution": "imported"}
"""A file may have been opened, asked for, or named to a library: used."""


def opening_line(
    name: str, recipe: str, report: Report, to_do: int, reasons: Sequence[str], mode: Mode = Mode.ON
) -> str:
    """The line at open: hit or miss, and why; or that there is nothing to look for.

    Args:
        report: as of the opening.
        to_do: distinct items that are to be preprocessed.
        reasons: of the miss.
    """
    if not report.items:
        return f"empty {name}: no items; check the glob or the folder; recipe {recipe[:12]}"
    items = count_text(report.items, "item", "items")
    if not to_do:
        return f"hit {name}: {items}; recipe {recipe[:12]}"
    counts = f"{items}, {report.hit:,} hit, {to_do:,} to preprocess"
    if mode is Mode.READONLY:  # else nobody sees why the next run, and each epoch, is as slow
        reasons = [*reasons, NOT_KEPT]
    return f"miss {name}: {'; '.join(reasons)}; {counts}; recipe {recipe[:12]}"


def barred_line(client: Client) -> str:
    """Why this user's own daemon is asked where a system service runs; empty after the first time."""
    global _has_told_barred
    if _has_told_barred or client.endpoint.launcher is None:
        return ""
    from prepcache.daemon import launcher

    line = launcher.barred()
    _has_told_barred = bool(line)
    return line


_has_told_barred = False


def stream_line(name: str, recipe: str, artifacts: ArtifactSet) -> tuple[str, list[str]]:
    """The line at the opening of a stream, whose items are not known yet, and why nothing is there."""
    if there := artifacts.index.items:
        return f"stream {name}: {count_text(there, 'item is', 'items are')} cached; recipe {recipe[:12]}", []
    reasons = _why_nothing(artifacts)
    if not reasons:
        explanation = ask(artifacts)
        reasons = [NOT_KNOWN if explanation is None else told(explanation)]
    said = WITHOUT if reasons == [artifacts.client.budget.warned] else "; ".join(reasons)
    return f"stream {name}: nothing is cached: {said}; recipe {recipe[:12]}", reasons


def why_missing(
    artifacts: ArtifactSet, catalogue: Catalogue, items: Sequence[Any], root: str | os.PathLike[str] | None
) -> list[str]:
    """Why items of a data set that has just been opened are not there; empty if all are."""
    if not len(catalogue.missing):
        return []
    if lines := _why_unasked(artifacts):
        return lines
    cue = ""
    if lines := _why_nothing(artifacts):
        cue = "observed" if artifacts.changed_inputs else ""
    elif artifacts.has_any:
        lines, cue = [_missing_items(artifacts, catalogue, items, root)], "data"
    else:
        explanation = ask(artifacts)
        return [NOT_KNOWN if explanation is None else told(explanation)]
    artifacts.why, artifacts.why_cue = shortened("; ".join(lines), wire.MAX_WHY), cue
    return lines


def _why_nothing(artifacts: ArtifactSet) -> list[str]:
    """Why nothing was looked for, or what was found does not count; empty if neither is so."""
    if lines := _why_unasked(artifacts):
        return lines
    if artifacts.mode is Mode.REFRESH:
        return ["PREPCACHE=refresh: cached samples are not used"]
    return changed_inputs(artifacts)


def _why_unasked(artifacts: ArtifactSet) -> list[str]:
    """Why the daemon has told nothing, and what is known nevertheless; empty if it was asked."""
    if artifacts.session.is_away and artifacts.client.has_started_empty:
        return [NEW_CACHE]
    return [artifacts.reason] if artifacts.reason else []


def ask(artifacts: ArtifactSet) -> inspection.Explanation | None:
    """The daemon's explanation of a recipe without artifacts; None if it gives none in time."""
    from prepcache.protocol import inspection

    recipe, session = artifacts.recipe, artifacts.session
    client: Client = session.client  # the process's one: another would keep a connection of its own open
    is_registered = artifacts.mode.is_writing
    asked = inspection.ExplainRequest(
        recipe=RecipeDigest(recipe.digest), parts=None if is_registered else fitting(recipe.parts)
    ).to_json()

    def attempt(left_s: float) -> inspection.Explanation | None:
        transport = client.transport
        try:
            answer = transport.call("POST", "/v1/explain", asked, limit_s=min(left_s, ASK_S))
            return transport.read(inspection.Explanation, answer)
        except DaemonUnreachable:  # invariant 1: the next request that matters will tell
            return None

    try:
        found: inspection.Explanation | None = session.run(attempt)
    except PrepcacheError:
        return None
    return found


def told(explanation: inspection.Explanation) -> str:
    """An explanation on one line; where a file counted as a whole, how less of it counts."""
    is_file = any(one.section == "file" for one in explanation.differences)
    return f"{explanation.summary} ({explain.COUNTS_FILES})" if is_file else explanation.summary


def changed_inputs(artifacts: ArtifactSet) -> list[str]:
    """Inputs that the function was seen to take, and that are not what they were: a line each."""
    lines = []
    for name, kind in artifacts.changed_inputs.items():
        tag, _, rest = name.partition(":")
        shown = shortened(rest if rest and tag in ("project", "items", "cwd") else name, 200)
        taken = "asked for" if name.endswith("/") else _TAKEN.get(kind, "used")  # a folder that was there
        lines.append(f"{shown}, which the function {taken}, changed")
    return lines


def ended_early(error: BaseException, kept: int, total: int, *, is_part: bool) -> str:
    """What is there of a data set whose preparation ended by an error or an interrupt.

    Args:
        is_part: they were not all that it has, as in a stream, which has kept what came before.
    """
    is_interrupt = isinstance(error, KeyboardInterrupt)
    how = "interrupted" if is_interrupt else "ended by an error"
    # An edit of the code changes the key, and everything is preprocessed again.
    unless = "" if is_interrupt else ", unless the code is edited"
    onward = f"; the next run continues from there{unless}" if kept else ""
    items = f"the {total:,} items in progress" if is_part else f"{total:,} items"
    return f"{how}: {kept:,} of {items} are stored{onward}"


def why_so(artifacts: ArtifactSet, stamps: Stamps, tally: Tally) -> tuple[str, ...]:
    """What explains the counts of a report, a line each."""
    lines = changed_inputs(artifacts)
    if stamps.typed_names:
        names = ", ".join(stamps.typed_names[:3])
        lines.append(f"{len(stamps.typed_names)} paths in the items name no file, such as {names}")
    reason = [artifacts.reason] if artifacts.reason else []
    return tuple(dict.fromkeys([*tally.why, *lines, *tally.not_kept(), *reason]))


def _missing_items(
    artifacts: ArtifactSet, catalogue: Catalogue, items: Sequence[Any], root: str | os.PathLike[str] | None
) -> str:
    """`3 of 2,000 items not cached: a.txt, b.txt and 1 more`: the first ones, by their files.

    They may be new, changed or evicted, or left over by a run that ended early: the store does not tell.
    """
    missing, total = catalogue.missing, len(catalogue.distinct)
    first = [items[int(catalogue.distinct.first[i])] for i in missing[:NAMED_ITEMS].tolist()]
    names = [name for item in first if (name := _name_of(item, root))]
    more = f" and {len(missing) - len(names):,} more" if len(missing) > len(names) else ""
    count = f"{len(missing):,} of {total:,} items" if total > 1 else "its data"
    which = f": {', '.join(names)}{more}" if names else ""
    all_are = "; none of the cached items is in this data set" if artifacts.has_mapped else ""
    return f"{count} not cached{which}{all_are if len(missing) == total > 1 else ''}"


def _name_of(item: Any, root: str | os.PathLike[str] | None) -> str:
    """The first file in an item, short of the root; empty where there is none."""
    name = next((name for name in paths_in(item) if os.path.lexists(name)), "")
    above = "" if root is None else os.path.abspath(os.fspath(root)) + os.sep
    return shortened(os.path.abspath(name).removeprefix(above) if name and above else name, PATH_CHARS)


def left_text(left: int, *, is_part: bool) -> str:
    """What becomes of what a fill left; where samples expand, it is with this job.

    Args:
        left: items.
        is_part: more of them are to come, as in a stream.
    """
    if not left:
        return "samples that are not in the cache stay with this job"
    which = "missing items are" if is_part else count_text(left, "item is", "items are")
    return f"{which} preprocessed on access"


def unobserved_text(item: str, why: str) -> str:
    """What to say of an item that is not stored, as something that the function read may have been missed.

    Args:
        item: what people call it.
        why: the name of the error.
    """
    return (
        f"what the function read for {item} could not be observed ({why}). Samples of such items are not "
        "stored; every job preprocesses them itself"
    )
