#!/bin/bash
# Builds the image with podman and runs it: jobs outside and in another container share it.
# Where python:3.11-slim-bookworm is not at hand, Debian's Python stands in for it.
set -euo pipefail
cd "$(dirname "$0")/../.."
for tool in podman buildah mmdebstrap setpriv; do
    command -v $tool > /dev/null || { echo "image: needs $tool (apt-get install podman buildah mmdebstrap util-linux)"; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "image: needs root, as jobs outside run as other users"; exit 2; }

work=$PWD/build/system image=prepcached-system-test base=python:3.11-slim-bookworm
box=$(mktemp -d) # paths of sockets are short
cleanup() {
    podman rm --force --volumes $image-daemon > /dev/null 2>&1 || true
    podman volume rm --force $image-data $image-run > /dev/null 2>&1 || true
    rm -rf "$box"
}
trap cleanup EXIT
trap 'echo "FAILED at line $LINENO: $BASH_COMMAND"; cat "$box/said" 2> /dev/null; podman logs $image-daemon 2>&1 | tail -20' ERR

tests/system/wheels.sh
if ! podman image exists $base; then
    [ -e "$work/image.tar" ] || mmdebstrap --quiet --variant=minbase --include=python3,python3-venv bookworm "$work/image.tar"
    podman import --quiet "$work/image.tar" $base > /dev/null
fi
printf '[global]\nno-index = true\nfind-links = /wheels\n' > "$box/pip.conf"
podman build --quiet --pull=never --format docker --network host --tag $image \
    --volume "$work/wheels:/wheels:ro" --volume "$box/pip.conf:/etc/pip.conf:ro" . > /dev/null
echo "image: $(podman image inspect --format '{{.Size}}' $image | numfmt --to=iec) with its base"

# Podman asks for a million descriptors, and has systemd run health checks: not every machine has these.
limits=(--ulimit nofile=4096:4096 --ulimit nproc=4096:4096)
start() { # DATA RUN: what is mounted
    podman run --detach --name $image-daemon "${limits[@]}" --health-interval disable \
        --volume "$1:/var/cache/prepcache" --volume "$2:/run/prepcache" $image > /dev/null
    for _ in $(seq 100); do podman healthcheck run $image-daemon > /dev/null 2>&1 && return; sleep 0.1; done
    false
}
inside() { # DATA RUN COUNT [SECONDS FOLDER]: a job in another container, as a user of its own
    podman run --rm "${limits[@]}" --no-healthcheck --user 20000:20000 --group-add 10001 --volume "$1:/var/cache/prepcache" --volume "$2:/run/prepcache" \
        --volume "$PWD/tests/system:/srv:ro" --volume "$box/out:/out" --env XDG_CACHE_HOME=/out/inside \
        --entrypoint python3 $image /srv/job.py "/out/calls-$3" "${@:3}" 2> "$box/said"
}
outside() { # COUNT [SECONDS FOLDER]: a job without a container, as another user
    setpriv --reuid 20001 --regid 10001 --clear-groups env XDG_CACHE_HOME="$box/out/outside" \
        PREPCACHE_DIR="$box/data" PREPCACHE_URL="unix://$box/run/prepcached.sock" \
        "$box/venv/bin/python" "$box/job.py" "$box/out/calls-$1" "$@" 2> "$box/said"
}

# The job outside needs folders that it can reach; podman keeps its volumes where only root can.
chmod 755 "$box"
install -d -o 10001 -g 10001 -m 750 "$box/data"
install -d -o 10001 -g 10001 -m 755 "$box/run"
install -d -m 777 "$box/out"
cp tests/system/job.py "$box"
/usr/bin/python3 -m venv --without-pip "$box/venv" # another user may read this Python
.venv/bin/pip --isolated --python "$box/venv/bin/python" install --quiet --no-index --find-links "$work/wheels" prepcache

start "$box/data" "$box/run"
echo "healthcheck: $(podman healthcheck run $image-daemon && echo healthy)"
outside 20 | grep --quiet "hit=0 computed=20"
inside "$box/data" "$box/run" 20 | grep --quiet "hit=20 computed=0"
inside "$box/data" "$box/run" 21 | grep --quiet "hit=0 computed=21"
outside 21 | grep --quiet "hit=21 computed=0"
echo "a job outside and one in another container share: 20 of 20 and 21 of 21 items hit"
mkdir "$box/out/files"
for item in $(seq 0 21); do echo "$item" > "$box/out/files/$item"; done
outside 22 0 "$box/out/files" | grep --quiet "hit=0 computed=22"
inside "$box/data" "$box/run" 22 0 /out/files | grep --quiet "hit=22 computed=0"
echo "files that lie at another path in the container, with root=: 22 of 22 items hit"
podman rm --force --time 10 $image-daemon > /dev/null 2>&1

start $image-data $image-run
inside $image-data $image-run 30 | grep --quiet "hit=0 computed=30"
podman restart --time 10 $image-daemon > /dev/null 2>&1
for _ in $(seq 100); do podman healthcheck run $image-daemon > /dev/null 2>&1 && break; sleep 0.1; done
inside $image-data $image-run 30 | grep --quiet "hit=30 computed=0"
podman rm --force --time 10 $image-daemon > /dev/null 2>&1
start $image-data $image-run
inside $image-data $image-run 30 | grep --quiet "hit=30 computed=0"
echo "restart, and a new container with its volume: 30 of 30 items hit"
podman kill --signal STOP $image-daemon > /dev/null
podman healthcheck run $image-daemon > /dev/null 2>&1 && false
podman kill --signal CONT $image-daemon > /dev/null
echo "a daemon that stands still is unhealthy"
