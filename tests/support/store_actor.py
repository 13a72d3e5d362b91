"""A process that does one thing to a store, so that a test can kill it at any system call.

Run as a program with `{"root", "act", "limits"}` it opens the store, says `{"ready": pid}`, waits for the
line "go" (by then strace is attached and counts from here), acts, and says `{"done": ...}` or
`{"failed": code}`. After the line "check" (by then strace is gone: a check opens some hundred folders) it
says `{"findings": [...]}`.
"""

import json
import os
import sys
from typing import Any

from prepcache import errors
from prepcached.store import compaction
from prepcached.store.records import Filter, Limits
from prepcached.store.store import Store
from support import stores
from support.job_server import hear, say
from support.stores import RECIPE, Clock, evict_to_fit

SESSION = "s"


def act(store: Store, name: str) -> Any:
    """The things that are cut short, each one call of the store on a root that `prepare` made."""
    if name == "register":
        store.register(stores.OTHER_RECIPE, "another", {"format": 1})
    elif name == "commit":
        return stores.put(store, "new", "newer", holder=SESSION).generation
    elif name == "replace":
        return stores.put(store, 0, seed=1).generation
    elif name == "delete":
        return store.purge(Filter(keys=(key_of(0),))).entries
    elif name == "put-away":
        return len(store.remove_differing([key_of(0)], "the test says so"))
    elif name == "evict":
        return evict_to_fit(store, stores.BLOCK * 14)
    elif name == "merge":
        return store.merge_some()
    elif name == "resolve":
        return len(store.resolve(RECIPE).artifacts)
    elif name == "scrub":
        return store.scrub_one()
    else:
        raise ValueError(name)
    return None


def prepare(root: str) -> None:
    """Eight artifacts of one item, one that is pinned, and a recipe."""
    store = Store(root, limits=stores.ROOMY, clock=Clock())
    for name in range(8):
        done = stores.put(store, name)
    store.set_pin(done.artifact.key, True)
    store.close()


def key_of(name: object) -> str:
    """The key of the entry that holds just this item."""
    from prepcache.digests import entry_key

    return entry_key(RECIPE, stores.item(name))


def main(order: dict[str, Any]) -> None:
    compaction.FANOUT = 3
    clock = Clock(1_900_000_000.0)
    store = Store(order["root"], limits=Limits(**order["limits"]), clock=clock)
    say(ready=os.getpid())
    hear("go")
    try:
        answer = {"done": act(store, order["act"])}
    except errors.PrepcacheError as error:
        answer = {"failed": error.code}
    store.sweep_staging(SESSION.__ne__)
    clock.now += 10
    findings = []
    try:
        store.maintain()
    except errors.PrepcacheError as error:
        findings = [error.code]
    say(**answer)
    hear("check")
    say(findings=findings + [finding.code for finding in store.check()])
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
