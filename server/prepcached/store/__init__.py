"""The store: artifacts on disk, their index, and what keeps both true.

store        what the daemon calls
core         what the parts share: paths, index, holds, ledger, counters, locks
layout       where things are under the root (pure)
root         opening a root: checks, the lock, the remembered budget, the group it is shared with
records      what the store takes, gives and counts: limits, ledger, quotas
db           the index: tables, connections, transactions, errors; queries, listing: what is asked of it
scopes       recipes of users who share with nobody
staging      taking a staged file from a client that is not trusted, and what lies there
durable      writing so that it is still there after a power cut
commit       staged files become entries
holds        who reads what (pure, in memory)
eviction     room for writes, and what must go for it; uploads, purges
removal      rows first, files after
compaction   many small artifacts become one
integrity    reading everything again: scrub and verify
recovery     opening and checking: what a crash left, and files that have no rows
"""

from __future__ import annotations
