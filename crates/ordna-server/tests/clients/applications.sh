#!/usr/bin/env bash
# Runs unmodified programs that use Redis against a server: applications.sh BINARY [NAME…]. Without names, runs
# all of them. Installs fixed versions into target/applications; needs python3 and npm.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binary=$(realpath -s "$1")
shift
names=${*:-rq celery dramatiq limits django_redis redis_om bee_queue bull}
work=$here/../../../../target/applications
port=${PORT:-16393}
mkdir -p "$work"
cd "$work"
[[ -x venv/bin/python ]] || python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check -r "$here/applications.txt"
[[ -d node_modules/bullmq ]] ||
    npm install --silent --no-audit --no-fund --prefix . bee-queue@1.7.1 bull@4.16.5 bullmq@5.56.0
# With redis-server itself, failures show errors of these scripts.
case $binary in
    *redis-server) "$binary" --port "$port" --save "" >/dev/null & ;;
    *) "$binary" serve --port "$port" & ;;
esac
server=$!
trap 'kill $server' EXIT
for _ in $(seq 100); do
    (exec 3<>/dev/tcp/127.0.0.1/"$port") 2>/dev/null && break
    sleep 0.1
done
failed=0
for name in $names; do
    if [[ $name == bee_queue ]]; then
        cp "$here/queues.mjs" .
        timeout 120 node queues.mjs "$port" || { echo "$name: failed"; failed=1; }
    elif [[ $name == bull ]]; then
        cp "$here/bull.mjs" .
        timeout 120 node bull.mjs "$port" || { echo "$name: failed"; failed=1; }
    else
        timeout 300 venv/bin/python "$here/applications.py" "$name" "$port" || { echo "$name: failed"; failed=1; }
    fi
done
exit $failed
