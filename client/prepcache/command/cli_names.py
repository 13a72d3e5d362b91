"""Names: of users; of recipes that were mistyped, or given by their last part, as `load` for `train.load`."""

from __future__ import annotations

import difflib
import functools
import pwd
from collections.abc import Collection

MAX_NAMED = 3


def hint(name: str, known: Collection[str]) -> str:
    """Which names may have been meant where none is `name`; empty where it is one, or the store is empty.

    Args:
        name: as given to `--name`: exact, or a beginning that ends in `*`.
    """
    wanted = name.removesuffix("*")
    if name in known or (name.endswith("*") and any(one.startswith(wanted) for one in known)):
        return ""
    what = f"no recipe is called {name!r}"
    if not known:
        return f"{what}: nothing is cached yet"
    ends = [one for one in known if f".{one}".endswith(f".{wanted}")]
    alike = sorted(ends or (one for one in known if wanted and wanted in one))
    near = alike or difflib.get_close_matches(wanted, sorted(known), MAX_NAMED)
    if not near:
        return f"{what}; `prepcache ls` shows those that there are"
    return f"{what}; did you mean {', '.join(near[:MAX_NAMED])}?"


@functools.cache
def user_name(uid: int | None) -> str:
    """What people call a user."""
    if uid is None:
        return "by token"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def left_to_others(owner: int | None) -> str:
    """Why a purge removed nothing of what it was to remove.

    Args:
        owner: of one of those entries; None: who has the TCP token.
    """
    whose = "the holders of the TCP token" if owner is None else f"uid {owner}"
    return f"the entries belong to {whose}: only their owner, root and the daemon's admins may purge them"
