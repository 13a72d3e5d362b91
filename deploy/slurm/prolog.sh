#!/bin/sh
# Prolog of a node: starts the daemon, if it is not running. Install as a file that `Prolog=` in slurm.conf names.
# Slurm drains a node whose prolog fails. A cache is no reason for that, so this script always ends with 0.
if command -v systemctl >/dev/null 2>&1; then
    timeout 10 systemctl start prepcached.socket prepcached.service >/dev/null 2>&1 ||
        logger -t prepcache "prepcached does not start; jobs preprocess by themselves" 2>/dev/null
fi
exit 0
