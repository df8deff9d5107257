#!/usr/bin/env bash
# Runs the test suite of Redis 7.0.15 against Ordna, and compares its failures with those that
# `expected.txt` lists with their reasons. The suite comes from Debian's source package, and is not
# stored here.
#
#   run.sh target/release/ordna [DIRECTORY]
#
# DIRECTORY (default: target/redis-suite) gets the sources and the logs. Exits with 1 if a test fails that
# is not expected to, or passes although it is expected to fail, or if a unit runs no test. `UNITS="dump sort"`
# runs only some units.
set -euo pipefail
# Links are kept, because redis-server is one and depends on its name.
server=$(realpath -s "$1")
here=$(dirname "$(realpath "$0")")
directory=${2:-target/redis-suite}
mkdir -p "$directory"
directory=$(realpath "$directory")
# Units are omitted if each of their tests needs its own server with other settings, a replica or DEBUG: limits,
# memefficiency, networking, shutdown, client-eviction, pendingquerybuf, wait, replybufsize.
units=${UNITS:-dump auth protocol keyspace scan info info-command type/string type/incr type/hash
    type/set type/zset type/list type/list-2 type/list-3 sort pubsub pubsubshard scripting
    expire other multi quit acl acl-v2 latency-monitor slowlog introspection introspection-2
    obuf-limits bitops bitfield lazyfree pause querybuf maxmemory violations}

root=$([[ $(id -u) == 0 ]] || echo sudo)
if ! command -v tclsh >/dev/null; then
    $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends tcl
fi
cd "$directory"
if [[ ! -d redis-7.0.15 ]]; then
    command -v dpkg-source >/dev/null ||
        $root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends dpkg-dev
    # A separate list with the suites that the system already uses.
    sed 's/^Types: deb$/Types: deb-src/' /etc/apt/sources.list.d/debian.sources |
        $root tee /etc/apt/sources.list.d/ordna-suite.sources >/dev/null
    $root apt-get update -qq
    apt-get source -qq redis
    # The helpers of the suite require features of an external server that even an older Redis lacks: functions,
    # and every setting of the configuration. Tests of these features still fail.
    sed -i 's/^    r function flush$/    catch {r function flush}/
        s/^        r config set \$param \$val$/        catch {r config set $param $val}/' \
        redis-7.0.15/tests/support/server.tcl
    # Units change settings of encodings outside of tests, where an error would end the unit.
    sed -i 's/^    \[srv \$level "client"\] {\*}\$args$/    if {[regexp {^config set ([a-z]+-max-|list-compress)} $args]} {catch {[srv $level "client"] {*}$args}; return OK}\n&/' \
        redis-7.0.15/tests/test_helper.tcl
    # The transaction, the protocol and the pause of a failed test must not affect the next one.
    sed -i 's/^\( *\)lappend ::tests_failed \$details$/&\n\1catch {r discard}; catch {r unwatch}; catch {r client unpause}; catch {r hello 2}/' \
        redis-7.0.15/tests/support/test.tcl
    # The second round runs each test with FCALL instead of EVAL. Ordna has no functions.
    sed -i 's/^foreach is_eval {0 1}/foreach is_eval {1}/' redis-7.0.15/tests/unit/scripting.tcl
    # The first parts of these units only need a new server, which they get.
    for unit in acl acl-v2 auth info maxmemory obuf-limits pubsubshard; do
        sed -i '0,/external:skip/s/ "\?external:skip"\?//' redis-7.0.15/tests/unit/$unit.tcl
    done
    # Tests that start their own server would test Redis.
    ln -s "$(command -v redis-cli)" "$(command -v redis-benchmark)" redis-7.0.15/src/
fi
cd redis-7.0.15

: >../failed.txt
passed=0
# Two tests are skipped. One sends commands of two clients without waiting, and expects an order; the other
# expects to see a client that is blocked for one millisecond.
skipped=(--skiptest "BRPOPLPUSH does not affect WATCH while still blocked"
    --skiptest "/with 0.001 timeout should not block indefinitely")
# Encodings are not compared here, because differences would end tests of commands;
# random_commands_against_redis compares them.
for unit in $units; do
    # Below the ports that the system assigns to clients.
    port=$((20000 + RANDOM % 5000))
    rm -rf ../data
    mkdir ../data
    # With redis-server itself, failures show what fails with any external server.
    case $server in
        *redis*) "$server" --port $port --save "" --dir "$directory/data" >../server.log 2>&1 & ;;
        *) "$server" serve --port $port --dir "$directory/data" --evict-stored >../server.log 2>&1 & ;;
    esac
    ours=$!
    for _ in $(seq 200); do
        # Waits until the server has loaded.
        [[ $(redis-cli -p $port DBSIZE 2>/dev/null) == 0 ]] && break
        sleep 0.05
    done
    log=../$(tr / - <<<"$unit").log
    timeout 300 tclsh tests/test_helper.tcl --host 127.0.0.1 --port $port --singledb --durable \
        --single "unit/$unit" "${skipped[@]}" --ignore-encoding --tags "-needs:debug -needs:repl -needs:save -cluster -large-memory" \
        --baseport $((port + 6000)) --portcount 100 --timeout 240 >"$log" 2>&1 || true
    # The suite also prints its end after a timeout.
    if ! grep -q "The End" "$log" || grep -q "TIMEOUT" "$log"; then
        echo "$unit: the unit did not end" >>../failed.txt
    fi
    kill $ours 2>/dev/null || echo "the server ended during $unit" | tee -a ../failed.txt
    wait $ours 2>/dev/null || true
    # [err]: name in tests/unit/x.tcl
    sed -n 's/\x1b\[[0-9;]*m//g
        s/^\[err\]: \(.*\) in tests\/unit\/.*\.tcl.*$/\1/p;t
        s/^\[\(exception\|err\)\]: .*$/the unit ended early/p' "$log" | sort -u | sed "s|^|$unit: |" >>../failed.txt
    of_unit=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -c '^\[ok\]' || true)
    # A unit that was skipped completely has passed no test.
    ran=$(sed 's/\x1b\[[0-9;]*m//g' "$log" | grep -c '^\[\(ok\|err\)\]' || true)
    [[ $ran -gt 0 ]] || echo "$unit: no test ran" >>../failed.txt
    passed=$((passed + of_unit))
    echo "$unit: $of_unit passed, $(grep -c "^$unit: " ../failed.txt || true) failed"
done

sed -n 's/^    //p' "$here/expected.txt" | sort -u >../expected.txt
sort -u ../failed.txt -o ../failed.txt
if [[ -n ${UNITS:-} ]]; then
    for unit in $units; do
        grep "^$unit: " ../expected.txt || true
    done | sort -u >../expected-of-units.txt
    mv ../expected-of-units.txt ../expected.txt
fi
echo "$passed tests passed, $(wc -l <../failed.txt) failed"
if ! diff ../expected.txt ../failed.txt; then
    echo "< expected to fail but passed; > failed unexpectedly. Logs: $directory/*.log" >&2
    exit 1
fi
