#!/bin/bash
# Has schemathesis ask a daemon all that its OpenAPI document allows: no 500, no status or body that it does not name.
#   tests/system/openapi.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/../.."
[ -x .venv/bin/schemathesis ] || {
    echo "openapi: needs schemathesis (.venv/bin/pip install -r tests/requirements-nightly.txt)"
    exit 2
}
box=$(mktemp -d) daemon=
trap '[ -z "$daemon" ] || kill $daemon; wait; rm -rf "$box"' EXIT
head -c 24 /dev/urandom | base64 > "$box/token"
chmod 600 "$box/token"
port=$(.venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
PREPCACHED_MIN_FREE=0 XDG_CACHE_HOME="$box" .venv/bin/prepcached serve --root "$box/root" --uds "$box/s" --max-bytes 100MiB \
    --host 127.0.0.1 --port "$port" --token-file "$box/token" 2> "$box/log" &
daemon=$!
.venv/bin/schemathesis run "http://127.0.0.1:$port/openapi.json" --wait-for-schema 60 --max-time "${1:-600}" \
    --header "Authorization: Bearer $(cat "$box/token")" --continue-on-failure --request-timeout 60 --suppress-health-check filter_too_much \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance
