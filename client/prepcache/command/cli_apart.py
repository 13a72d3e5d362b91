"""What tells the entries of one name apart: the eight experiments of a sweep have one name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from prepcache.errors import NotFound
from prepcache.protocol import recipe_labels as words

if TYPE_CHECKING:
    from prepcache.daemon.client import Client
    from prepcache.protocol import inspection

MOST_RECIPES = 100
"""Of which the daemon is asked, one by one: a listing without bound may have thousands."""


def apart(client: Client, entries: Iterable[inspection.Entry]) -> dict[str, str]:
    """A few words for each recipe that has others of its name beside it, by its digest."""
    by_name: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for one in entries:
        by_name[one.name][one.recipe] = {}
    several = [recipes for recipes in by_name.values() if len(recipes) > 1]
    told: dict[str, str] = {}
    left = MOST_RECIPES
    for recipes in several:
        for digest in list(recipes)[:left]:
            recipes[digest] = _parts(client, digest)
        left = max(0, left - len(recipes))
        told |= words.apart(recipes)
    return told


def _parts(client: Client, digest: str) -> Mapping[str, Any]:
    """The readable parts of a recipe; empty where they are lost, or it was purged meanwhile."""
    try:
        return client.recipe(digest).parts or {}
    except NotFound:
        return {}
