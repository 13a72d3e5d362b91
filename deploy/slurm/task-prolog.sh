#!/bin/sh
# Task prolog: Slurm puts what is printed as `export NAME=value` into the environment of every task. Install as the
# file that `TaskProlog=` in slurm.conf names. Without the node's daemon nothing is set: jobs start their own.
socket=${PREPCACHED_UDS:-/run/prepcache/prepcached.sock}
if [ -S "$socket" ] && [ -w "$socket" ]; then
    echo "export PREPCACHE_URL=unix://$socket"
fi
exit 0
