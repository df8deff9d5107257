#!/usr/bin/env bash
# Tests a server with clients of Redis that support RediSearch: test.sh BINARY. Installs fixed versions of
# redis-py and node-redis into target/clients; needs python3 and npm.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath "$1")
work=$here/../../../../target/clients
port=${PORT:-16391}
mkdir -p "$work"
cd "$work"
[[ -x venv/bin/python ]] || python3 -m venv venv
venv/bin/pip install -q redis==8.1.0
[[ -d node_modules/redis ]] || npm install --silent --no-audit --no-fund --prefix . redis@6.3.1
"$binary" serve --port "$port" &
server=$!
trap 'kill $server' EXIT
for _ in $(seq 100); do
    (exec 3<>/dev/tcp/127.0.0.1/"$port") 2>/dev/null && break
    sleep 0.1
done
venv/bin/python "$here/search.py" "$port"
cp "$here/search.mjs" .
node search.mjs "$port"
