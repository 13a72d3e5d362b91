#!/bin/bash
# Compiles deploy's dashboard against Grafana's own types: no member that they lack, none missing, each of its type.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v npm > /dev/null || { echo "dashboard: needs npm (apt-get install npm)"; exit 2; }
work=build/system/grafana
npm install --silent --no-audit --no-fund --prefix $work @grafana/schema@13.2.3 typescript@5.9.3
{
    cat tests/system/dashboard.ts
    echo "export const board: Board ="
    cat deploy/monitoring/grafana-dashboard.json
} > $work/board.ts
$work/node_modules/.bin/tsc --noEmit --strict --skipLibCheck --module nodenext --target es2022 $work/board.ts
echo "the dashboard fits the types of Grafana $(node -p "require('./$work/node_modules/@grafana/schema/package.json').version")"
