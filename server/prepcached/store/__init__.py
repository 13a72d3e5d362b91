"""The store: artifacts on disk, their index, and what keeps both true.

store        what the daemon calls
core         what the parts share: paths, index, holds, ledger, counters, locks; standing aside for requests
layout       where things are under the root (pure)
root         opening a root: checks, the lock, the remembered budget
records      what the store takes, gives and counts: limits, ledger, quotas
db           the index: connections, transactions, errors
models       its tables; queries, listing, observed: what is asked of them
scopes       recipes of users who share with nobody
staging      taking a staged file from a client that is not trusted; staged_area: what lies there
durable      writing so that it is still there after a power cut
commit       staged files become entries
holds        who reads what (pure, in memory)
eviction     room for writes, and what must go for it; uploads
removal      rows first, files after; purge: what the user asked to be gone
compaction   many small artifacts become one
integrity    reading everything again: scrub and verify
recovery     opening: what a crash left; check
adoption     indexing files that have no rows
offline      a root that no daemon has open: rebuild, check
sharing      folders that jobs of a group reach by path
"""

from __future__ import annotations
