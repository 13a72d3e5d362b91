#!/bin/bash
# Fills build/system/wheels with this checkout and all that it needs under Debian's Python 3.11.
set -euo pipefail
cd "$(dirname "$0")/../.."
pip=".venv/bin/python -m pip --disable-pip-version-check --quiet --quiet" wheels=build/system/wheels
mkdir -p $wheels
rm -f $wheels/prepcache-*.whl
$pip wheel --no-deps --wheel-dir $wheels .
$pip download --constraint constraints.txt --only-binary :all: --python-version 3.11 --dest $wheels \
    "$(ls $wheels/prepcache-*.whl)[server,fleet]" hatchling
