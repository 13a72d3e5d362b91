"""The store: artifacts on disk, their index, and what keeps both true.

store        what the daemon calls
core         what the parts share: paths, index, holds, ledger, counters, locks; full disks
layout       where things are under the root (pure)
root         opening a root: checks, the lock, the remembered budget, the group it is shared with
records      what the store takes, gives and counts: limits, ledger, quotas, holds (pure)
db           the index: tables, connections, transactions, errors; queries, listing: what is asked of it
scopes       recipes of users who share with nobody (pure)
staging      taking a staged file from a client that is not trusted, and what lies there
durable      writing so that it is still there after a power cut
commit       staged files become entries
eviction     removals; room for writes, and what must go for it; uploads, purges
compaction   many small artifacts become one
integrity    opening, checking and repairing; reading everything again: scrub and verify
"""

from __future__ import annotations
