#!/bin/bash
# The checks of units.sh, as root in the container. Says one line for each; ends at the first that fails.
set -euo pipefail
trap 'echo "FAILED at line $LINENO: $BASH_COMMAND"; cat /srv/out/said; journalctl --no-pager -u prepcached -n 30' ERR
job() { # USER COUNT [SECONDS]: runs the job; its calls are in /srv/out/calls-COUNT, what it says in said
    runuser -u "$1" -- /opt/prepcache/bin/python /srv/job.py "/srv/out/calls-$2" "${@:2}" 2> /srv/out/said
}
calls() { sort -u "/srv/out/calls-$1" | wc -l; }
beyond() { echo $(($(wc -l < "/srv/out/calls-$1") - $(calls "$1"))); }
until_calls() {
    for _ in $(seq 200); do [ -e "/srv/out/calls-$1" ] && [ "$(calls "$1")" -ge "$2" ] && return; sleep 0.05; done; false
}
budget() { runuser -u alice -- prepcache status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["stats"]["max_bytes"])'; }

for user in alice bob carol; do useradd --create-home $user; done
for user in alice bob; do usermod --append --groups prepcache $user; done
install -d -m 777 /srv/out
umask 0 # the users write to each other's files of calls
systemctl is-active --quiet prepcached.socket prepcached.service

job alice 20 | grep --quiet "hit=0 computed=20"
job bob 20 | grep --quiet "hit=20 computed=0"
echo "two users share: 20 of 20 items hit"

! runuser -u carol -- env PREPCACHE_URL=unix:///run/prepcache/prepcached.sock prepcache status > /srv/out/refused 2>&1
grep -i "permission" /srv/out/refused | grep --quiet "usermod -aG prepcache"
job carol 20 | grep --quiet "hit=0 computed=20"
echo "a third is refused, told how to join, and served by a daemon of her own"

systemd-analyze security --no-pager --threshold=20 prepcached.service | tail -1

sed -i 's/^# max_bytes = .*/max_bytes = "123MiB"/' /etc/prepcache/prepcached.toml
systemctl reload prepcached
for _ in $(seq 50); do [ "$(budget)" = $((123 << 20)) ] && break; sleep 0.1; done
[ "$(budget)" = $((123 << 20)) ]
echo "reload: the budget is 123 MiB"

sed -i 's/^max_bytes = .*/max_bytes = "1 byte"/' /etc/prepcache/prepcached.toml
systemctl reload prepcached
said() { journalctl --no-pager --quiet -u prepcached _SYSTEMD_UNIT=prepcached.service -p "$1"; }
for _ in $(seq 50); do said warning | grep "settings were not reloaded" > /dev/null && break; sleep 0.1; done
said warning | grep "settings were not reloaded" > /dev/null
said info | grep "serving " > /dev/null && ! said warning | grep "serving " > /dev/null
sed -i 's/^max_bytes = .*/max_bytes = "123MiB"/' /etc/prepcache/prepcached.toml
echo "the journal has priorities: journalctl -p warning shows warnings and errors alone"

job alice 100 0.05 > /srv/out/alice & until_calls 100 20
systemctl restart prepcached
wait $!
job bob 100 | grep --quiet "hit=100 computed=0"
echo "restart in mid-fill: $(beyond 100) of 100 items made twice"

job alice 101 0.05 > /srv/out/alice & until_calls 101 20
systemctl kill --signal=KILL prepcached
wait $!
systemctl is-active --quiet prepcached
job bob 101 | grep --quiet "hit=101 computed=0"
echo "kill -9 in mid-fill: $(beyond 101) of 101 items made twice"

sed -i 's,^root = .*,root = "/srv/nothing",' /etc/prepcache/prepcached.toml
systemctl restart prepcached 2> /dev/null && false
echo "a root that it may not write to: the first job $(job alice 1)"
echo "  the next job $(job alice 2); one without a cache $(PREPCACHE=off job alice 3)"
while [ "$(systemctl show --property ActiveState --value prepcached)" != failed ]; do sleep 0.5; done
systemctl is-active --quiet prepcached.socket && false
said err | grep "cannot hold a store" > /dev/null
echo "given up after $(systemctl show --property NRestarts --value prepcached) restarts, its socket is down: a job $(job bob 4)"

sed -i 's,^root = .*,root = "/var/cache/prepcache",' /etc/prepcache/prepcached.toml
systemctl reset-failed prepcached
systemctl start prepcached
job bob 20 | grep --quiet "hit=20 computed=0"
echo "mended and started again: 20 of 20 items hit"
