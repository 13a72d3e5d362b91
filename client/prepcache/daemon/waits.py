"""How long a job waits for its daemon, and for what: one table, in seconds where the name says so."""

from __future__ import annotations

# What a job may lose: wait_budget.py
BUDGET_S = 5.0  # promise 2: a job loses at most this to its daemon
FIRST_SHARE = 0.6  # of the budget a first outage may cost: a restart takes two or three seconds
LEAST_S = 0.125  # the least that an outage may cost: on a busy machine an answer takes a tenth of a second
FREE_S = 0.25  # an answer within this is no loss: a round trip takes 1 ms, on a busy machine 100
STALL_S = 1.0  # an attempt that overran its limit by this was held up on our side: Ctrl-Z, a busy machine
DROPS_S = 2.0  # a request that was declined waits so long for another thread to drop holds
RETRY_S = 0.1  # the pause before a failed request is repeated

# How long one request may take: client.py
CALL_S = 10.0  # a call of `Client`, for a person
VERIFY_S = 24 * 3600.0  # verifying reads every byte of the store; somebody asked for that and watches

# In an outage: heartbeat.py
LOOK_S = 0.2  # the pause before the daemon is looked for again
PROMPT_S = 1.0  # limit of a health check, after which an outage is over

# At the end of a process: session.py
CLOSE_S = 0.5  # the goodbye at exit: the daemon sees the end of the process anyway
HANDOVER_S = 10.0  # in all, for a daemon that starts to take what the process has not committed
ALIVE_S = 0.5  # how often it looks whether the daemon lives

# The beat: heartbeat.py
BEAT_LIMIT_S = 10.0  # one beat; it waits on its own time
REOPEN_S = 2.0  # for opening a session in place of a forgotten one; the foreground may have to wait for that
BEAT_SHORTEST_S = 0.05
BEAT_LONGEST_S = 30.0  # between these is the pause that a daemon may ask for

# Bytes to the daemon and from it: transfer.py, http.py
COMMITTER_S = 5.0  # for a thread that commits; nobody else waits for it
TRANSFER_LIMIT_S = 600.0  # a transfer takes no longer
COMMIT_LIMIT_S = 10.0
"""A commit that takes longer, beyond its bytes at `SLOWEST_COMMIT`, hangs, and others wait for its items. One
that is merely slow ends all the same, and is found when it is asked for again."""
SLOWEST_COMMIT = 4 << 20  # bytes/s; a slow disk, at a good moment, takes 10 s for 128 MB
SILENCE_S = 1.25  # of a transfer, after which the daemon hangs; twice this is less than a first outage
SLOWEST_TRANSFER = 2 << 20  # bytes/s of up- and downloads below which a daemon counts as hung
MAX_IDLE_S = 4.0  # shorter than servers keep idle connections (uvicorn: 5 s)

# The daemon on demand: launcher.py
STARTING_S = 30.0  # a daemon that was started longer ago and does not answer hangs
FAILED_START_S = 15.0  # a daemon that ended so soon after its start is not started again

# How long a commit is waited for: fill/commit.py
SPARE_S = 2.5  # what commits may take beyond their bytes: a sync waits for others' writes
COMMIT_BYTES_PER_S = 32 << 20  # the speed of a slow disk that others use, too
