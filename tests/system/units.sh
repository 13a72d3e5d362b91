#!/bin/bash
# Boots the units of deploy/ in a container of systemd-nspawn, and runs units_inside.sh there.
# It works in build/system, and keeps the base system there for the next time.
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in systemd-nspawn mmdebstrap; do
    command -v "$tool" > /dev/null || { echo "units: needs $tool (apt-get install systemd-container mmdebstrap)"; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "units: needs root, to boot a container"; exit 2; }

work=build/system tree=$PWD/build/system/units
tests/system/wheels.sh
[ -e $work/units.tar ] || mmdebstrap --quiet --variant=minbase \
    --include=systemd,systemd-sysv,dbus,python3,python3-venv bookworm $work/units.tar
rm -rf "$tree"
mkdir -p "$tree"
tar --extract --file $work/units.tar --directory "$tree"

# As deploy/README.md says.
cp -r $work/wheels "$tree/wheels"
chroot "$tree" python3 -m venv /opt/prepcache
chroot "$tree" /opt/prepcache/bin/pip --isolated install --quiet --no-index --find-links /wheels "prepcache[server]"
ln -s /opt/prepcache/bin/prepcache "$tree/usr/local/bin/"
install -D -m 644 deploy/prepcache.sysusers.conf "$tree/usr/lib/sysusers.d/prepcache.conf"
install -D -m 644 deploy/prepcache.tmpfiles.conf "$tree/usr/lib/tmpfiles.d/prepcache.conf"
install -D -m 644 deploy/prepcached.toml "$tree/etc/prepcache/prepcached.toml"
install -m 644 deploy/prepcached.{socket,service} deploy/prepcached-failed.target "$tree/etc/systemd/system/"
chroot "$tree" systemctl --quiet enable prepcached.socket prepcached.service

install -m 755 tests/system/units_inside.sh tests/system/job.py "$tree/srv/"
cat > "$tree/etc/systemd/system/check.service" <<'UNIT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
StandardOutput=file:/result
StandardError=inherit
ExecStart=/srv/units_inside.sh
ExecStopPost=/bin/sh -c 'exec systemctl exit ${EXIT_STATUS}'
[Install]
WantedBy=multi-user.target
UNIT
chroot "$tree" systemctl --quiet enable check.service

status=0
timeout 300 systemd-nspawn --quiet --register=no --keep-unit --boot --console=pipe --directory="$tree" \
    < /dev/null > $work/boot.log 2>&1 || status=$?
cat "$tree/result"
[ $status = 0 ] || { echo "units: failed (exit code $status); the journal is in $tree/var/log/journal"; exit 1; }
rm -rf "$tree"
