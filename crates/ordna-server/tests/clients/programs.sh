#!/usr/bin/env bash
# Tests the server with other programs: redis-py's Lock, and the console in headless Chromium. Usage:
# crates/ordna-server/tests/clients/programs.sh path/to/ordna [screenshot.png]. Needs Python 3 with its
# package index, and Chromium, which it installs if there is apt-get.
set -euo pipefail
ordna=$(realpath "$1")
picture=$(realpath -m "${2:-/dev/null}")
cd "$(dirname "$0")"
work=$(mktemp -d)
port=${CLIENTS_PORT:-16382} console=$((${CLIENTS_PORT:-16382} + 1))
if ! chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome); then
    root=$([[ $(id -u) == 0 ]] || echo sudo)
    $root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium
    chromium=$(command -v chromium)
fi
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check redis==5.2.1 playwright==1.49.1

"$ordna" serve --port "$port" --console "$console" 2>"$work/log" &
server=$!
trap 'kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
    sleep 0.1
done
"$work/venv/bin/python" locks.py "$port"
"$ordna" load ../../../../data/places.tsv.gz --key country,name,id --port "$port" >/dev/null
"$work/venv/bin/python" console.py "$port" "$console" "$chromium" "$picture"
