"""The project's own keys, as the corpus asks for them."""

from typing import Any

import prepcache
from prepcache.keys import items
from prepcache.keys.observation.inputs import Roots, still_true
from prepcache.keys.observation.observer import Observer

from .fingerprint import Keyer

MODES = ("script", "function")


def keyer() -> Keyer:
    return keyed


def keyed(job: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """The recipe in both modes, the item digests, what was observed, and what of it is no longer true."""
    answer: dict[str, Any] = {"stale": None}
    for mode in MODES:
        options = {"code": mode, **job.get("options", {})}
        try:
            recipe = prepcache.recipe(job["fn"], config=job.get("config"), **options)
            answer[mode] = recipe.digest
        except prepcache.UnkeyableError as error:
            answer[mode] = f"refused: {error}"
    hasher = {key: job[key] for key in ("root", "read") if key in job}
    answer["items"] = [items.item_digest(item, **hasher) for item in job.get("items", [])]
    if case["observed"]:
        answer["stale"] = still_true(case["observed"], roots=Roots.of(recipe))
    if case["runs"]:
        observer = Observer(recipe)
        with observer.watching([]):
            job["fn"](job["items"][0])
        answer["observed"] = observer.taken()
    return answer
