#!/usr/bin/env bash
# Runs YCSB's workloads A to F against a server that it starts: contrib/ycsb/run.sh path/to/ordna
# [records] [operations]. Fetches YCSB's core and Jedis from Maven Central. Fails if an operation
# fails. Needs a JDK.
set -euo pipefail
ordna=$(realpath "$1")
records=${2:-100000} operations=${3:-200000} port=${PORT:-16381}
here=$(cd "$(dirname "$0")" && pwd)
work=${YCSB_DIR:-$here/../../target/ycsb}
mkdir -p "$work" && cd "$work"

for jar in site/ycsb/core/0.17.0/core-0.17.0 redis/clients/jedis/3.10.0/jedis-3.10.0 \
    org/apache/commons/commons-pool2/2.11.1/commons-pool2-2.11.1 \
    org/slf4j/slf4j-api/1.7.36/slf4j-api-1.7.36 org/slf4j/slf4j-nop/1.7.36/slf4j-nop-1.7.36 \
    org/apache/htrace/htrace-core4/4.1.0-incubating/htrace-core4-4.1.0-incubating \
    org/hdrhistogram/HdrHistogram/2.1.4/HdrHistogram-2.1.4 \
    org/codehaus/jackson/jackson-core-asl/1.9.4/jackson-core-asl-1.9.4 \
    org/codehaus/jackson/jackson-mapper-asl/1.9.4/jackson-mapper-asl-1.9.4; do
    [[ -s $(basename "$jar").jar ]] ||
        curl -sSf -o "$(basename "$jar").jar" "https://repo1.maven.org/maven2/$jar.jar"
done
javac -cp '*' -d . "$here/OrdnaClient.java"

common="recordcount=$records operationcount=$operations workload=site.ycsb.workloads.CoreWorkload"
# As YCSB's own files workloada to workloadf have them.
shares() {
    case $1 in
    A) echo readproportion=0.5 updateproportion=0.5 scanproportion=0 insertproportion=0 ;;
    B) echo readproportion=0.95 updateproportion=0.05 scanproportion=0 insertproportion=0 ;;
    C) echo readproportion=1 updateproportion=0 scanproportion=0 insertproportion=0 ;;
    D) echo readproportion=0.95 updateproportion=0 scanproportion=0 insertproportion=0.05 \
        requestdistribution=latest ;;
    E) echo readproportion=0 updateproportion=0 scanproportion=0.95 insertproportion=0.05 \
        maxscanlength=100 scanlengthdistribution=uniform ;;
    F) echo readproportion=0.5 updateproportion=0 scanproportion=0 insertproportion=0 \
        readmodifywriteproportion=0.5 ;;
    esac
}

client() { # -load or -t, and properties
    local what=$1 arguments=() property
    shift
    for property in $common requestdistribution=zipfian "$@"; do
        arguments+=(-p "$property")
    done
    java -cp '.:*' site.ycsb.Client "$what" -db OrdnaClient -threads 4 -p ordna.port="$port" \
        "${arguments[@]}" 2>client.log >result.txt || { cat client.log result.txt >&2; exit 1; }
}

for workload in A B C D E F; do
    "$ordna" serve --port "$port" 2>server.log &
    server=$!
    trap 'kill "$server" 2>/dev/null || true' EXIT
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do sleep 0.1; done
    # YCSB checks the content of what it reads; it cannot for scans.
    integrity="dataintegrity=true fieldlengthdistribution=constant"
    [[ $workload == E ]] && integrity=dataintegrity=false
    # shellcheck disable=SC2086
    client -load $integrity
    # shellcheck disable=SC2046,SC2086
    client -t $integrity $(shares "$workload")
    if ! grep -q '^\[OVERALL\]' result.txt || grep -E 'Return=(ERROR|NOT_FOUND|UNEXPECTED_STATE|NOT_IMPLEMENTED)' result.txt; then
        echo "workload $workload: operations failed" >&2
        exit 1
    fi
    rate=$(sed -n 's/^\[OVERALL\], Throughput(ops\/sec), \([0-9]*\).*/\1/p' result.txt)
    checked=$(sed -n 's/^\[VERIFY\], Return=OK, //p' result.txt)
    echo "workload $workload: $rate operations a second, all OK, ${checked:-0} contents checked"
    kill "$server" && wait "$server" || true
done
