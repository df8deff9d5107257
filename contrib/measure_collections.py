#!/usr/bin/env python3
"""Measures hashes, sorted sets, sets and lists of `ordna serve` against other servers of the protocol.

    contrib/measure_collections.py target/release/ordna --valkey path/to/valkey-server --rounds 3

Needs redis-server and redis-benchmark; `--valkey` adds a second server to compare with. Each server runs
alone in turn for each workload, in rounds that alternate. Prints the median of requests a second and its
ratio to Redis and Valkey. `--part` chooses: `all` (what `redis-benchmark -t all` runs), `large` (collections
of a million elements), `memory` (bytes per member), `stalls` and `changes` (how long another client waits,
the latter during commands that change a million elements at once).
Replies are checked once per workload before it is timed.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import subprocess
import tempfile
import threading
import time

BUILT_IN = (
    "ping_inline ping_mbulk set get incr lpush rpush lpop rpop sadd hset spop zadd zpopmin lpush"
    " lrange_100 lrange_300 lrange_500 lrange_600 mset"
).split()
MILLION = 1_000_000


class Server:
    def __init__(self, name, command):
        self.name = name
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.directory = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            [*command, "--port", str(self.port)],
            cwd=self.directory.name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for _ in range(200):
            try:
                self.socket = self.connect()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        self.reader = self.socket.makefile("rb")

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def ask(self, *arguments):
        self.socket.sendall(encode(arguments))
        return read(self.reader)

    def fill(self, commands):
        """Sends commands in pipelines of a hundred; a refused one ends the program."""
        batch = []
        for command in commands:
            batch.append(encode(command))
            if len(batch) == 100:
                self.flush(batch)
        self.flush(batch)

    def flush(self, batch):
        self.socket.sendall(b"".join(batch))
        for _ in batch:
            reply = read(self.reader)
            assert not isinstance(reply, Exception), reply
        batch.clear()

    def resident(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def benchmark(self, arguments):
        """Requests a second."""
        output = subprocess.run(
            ["redis-benchmark", "-p", str(self.port), "-c", "50", "--csv", *arguments],
            capture_output=True, text=True, check=True,
        ).stdout
        lines = [line for line in output.strip().splitlines() if not line.startswith('"test"')]
        return float(lines[-1].rsplit('","', 7)[-7])

    def stop(self):
        self.process.kill()
        self.process.wait()


def encode(arguments):
    parts = [a if isinstance(a, bytes) else str(a).encode() for a in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def read(file):
    line = file.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"*":
        return [read(file) for _ in range(int(rest))]
    if kind == b"$":
        return file.read(int(rest) + 2)[:-2] if rest != b"-1" else None
    return RuntimeError(rest) if kind == b"-" else rest


def grouped(command, key, element, count, step=500):
    """Commands that add `count` elements in no order, `step` of them each."""
    for begin in range(0, count, step):
        many = []
        for n in range(begin, min(begin + step, count)):
            many.extend(element(n * 7919 % count))
        yield (command, key, *many)


def table(title, servers, workloads, rounds):
    found = {}
    for number in range(rounds):
        for name, arguments in workloads:
            for server in servers if number % 2 == 0 else reversed(servers):
                found.setdefault((name, server), []).append(server.benchmark(arguments))
    print(f"\n## {title}\n")
    others = servers[:-1]
    heads = [f"ordna : {server.name}" for server in others]
    print("| workload | " + " | ".join([server.name for server in servers] + heads) + " |")
    print("|---" * (1 + len(servers) + len(others)) + "|")
    for name, _ in workloads:
        medians = [statistics.median(found[name, server]) for server in servers]
        pairs = [
            statistics.median(a / b for a, b in zip(found[name, servers[-1]], found[name, server]))
            for server in others
        ]
        cells = [f"{rate:,.0f}" for rate in medians] + [f"{ratio:.2f}" for ratio in pairs]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def built_in(servers, options):
    for pipeline, requests, range_of in ((1, 60_000, 1), (16, 300_000, 1), (16, 300_000, 100_000)):
        workloads = []
        for test in dict.fromkeys(BUILT_IN):
            count = requests // 10 if test.startswith("lrange") else requests
            spread = ["-r", str(range_of)] if range_of > 1 else []
            arguments = ["-t", test, "-n", str(int(count * options.scale)), "-P", str(pipeline)]
            workloads.append((test, arguments + spread))
        for server in servers:
            server.ask("FLUSHALL")
        table(f"redis-benchmark, -P {pipeline}, -r {range_of}", servers, workloads, options.rounds)


def large(servers, options):
    million = ["-r", str(MILLION)]
    for server in servers:
        server.ask("FLUSHALL")
        field = lambda n: (b"f:%012d" % n, b"value")
        server.fill(grouped("HSET", "small", field, 100))
        server.fill(grouped("HSET", "large", field, MILLION))
        server.fill(grouped("ZADD", "board", lambda n: (n * 31 % MILLION, b"m:%012d" % n), MILLION))
        server.fill(grouped("SADD", "set", lambda n: (b"m:%012d" % n,), MILLION))
        server.fill(grouped("SADD", "left", lambda n: (b"m:%012d" % n,), 100_000))
        server.fill(grouped("SADD", "right", lambda n: (b"m:%012d" % (n + 99_000),), 100_000))
        server.fill(grouped("SADD", "half", lambda n: (b"m:%012d" % (n + 50_000),), 100_000))
        server.fill(grouped("RPUSH", "list", lambda n: (b"element %d" % n,), MILLION))
        assert server.ask("HLEN", "large") == server.ask("ZCARD", "board") == b"1000000"
        assert len(server.ask("ZRANGE", "board", "500000", "inf", "BYSCORE", "LIMIT", "0", "100")) == 100
        assert server.ask("ZRANK", "board", b"m:%012d" % 1) is not None
        assert len(server.ask("SINTER", "left", "right")) == 1000
        assert len(server.ask("SINTER", "left", "half")) == 50_000
    n = lambda count: ["-n", str(max(int(count * options.scale), 20))]
    member = "m:__rand_int__"
    by_score = ["ZRANGE", "board", "__rand_int__", "+inf", "BYSCORE", "LIMIT", "0", "100"]
    base = [
        ("HSET, 100 fields", 200_000, ["-r", "100", "HSET", "small", "f:__rand_int__", "value"]),
        ("HSET, 1 M fields", 200_000, [*million, "HSET", "large", "f:__rand_int__", "value"]),
        ("HGET, 1 M fields", 200_000, [*million, "HGET", "large", "f:__rand_int__"]),
        ("ZADD, 1 M members", 200_000, [*million, "ZADD", "board", "__rand_int__", member]),
        ("ZINCRBY", 200_000, [*million, "ZINCRBY", "board", "1", member]),
        ("ZRANGE of 100 by score", 20_000, [*million, *by_score]),
        ("ZRANK", 200_000, [*million, "ZRANK", "board", member]),
        ("ZSCORE", 200_000, [*million, "ZSCORE", "board", member]),
        ("SADD, 1 M members", 200_000, [*million, "SADD", "set", member]),
        ("SISMEMBER", 200_000, [*million, "SISMEMBER", "set", member]),
        ("SINTER, 1,000 of 100,000", 60, ["SINTER", "left", "right"]),
        ("SINTER, 50,000 of 100,000", 60, ["SINTER", "left", "half"]),
        ("LPUSH, 1 M elements", 200_000, ["LPUSH", "list", "element"]),
        ("RPOP", 200_000, ["RPOP", "list"]),
        ("LRANGE of 100", 20_000, ["LRANGE", "list", "0", "99"]),
    ]
    for pipeline, scale in ((16, 1), (1, 0.25)):
        workloads = []
        for name, count, arguments in base:
            depth = 1 if name.startswith("SINTER") else pipeline
            workloads.append((name, [*n(count * scale), "-P", str(depth), *arguments]))
        table(f"Collections of a million, -P {pipeline}, 50 clients", servers, workloads, options.rounds)


def memory(servers, _):
    print("\n## Resident bytes per member, 1 M members of 10 bytes\n")
    print("| collection | " + " | ".join(server.name for server in servers) + " |")
    print("|---" * (1 + len(servers)) + "|")
    kinds = [
        ("hash, values of 10 bytes", "HSET", lambda n: (b"f%09d" % n, b"v%09d" % n)),
        ("set", "SADD", lambda n: (b"m%09d" % n,)),
        ("sorted set", "ZADD", lambda n: (n * 31 % MILLION, b"m%09d" % n)),
        ("list", "RPUSH", lambda n: (b"m%09d" % n,)),
    ]
    for name, command, element in kinds:
        cells = []
        for server in servers:
            server.ask("FLUSHALL")
            time.sleep(2)
            fresh = Server(server.name, server.process.args[:-2])
            before = fresh.resident()
            fresh.fill(grouped(command, "key", element, MILLION))
            time.sleep(1)
            cells.append(f"{(fresh.resident() - before) / MILLION:.1f}")
            fresh.stop()
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


class Watcher(threading.Thread):
    """Asks for a key all the time and notes the longest wait."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.longest, self.ends = server, 0.0, False
        self.start()

    def run(self):
        connection = self.server.connect()
        file, request = connection.makefile("rb"), encode(("GET", "other"))
        while not self.ends:
            begin = time.monotonic()
            connection.sendall(request)
            read(file)
            self.longest = max(self.longest, time.monotonic() - begin)
            time.sleep(0.0005)

    def end(self):
        self.ends = True
        self.join()
        return self.longest * 1000


def stalls(servers, options):
    print("\n## Longest wait of another client, milliseconds\n")
    print("| while | " + " | ".join(server.name for server in servers) + " |")
    print("|---" * (1 + len(servers)) + "|")
    count = int(10 * MILLION * options.scale)
    rows = {}

    def watched(row, server, action):
        watcher = Watcher(server)
        time.sleep(0.2)
        action()
        time.sleep(0.2)
        rows.setdefault(row, []).append(f"{watcher.end():.1f}")

    for server in servers:
        server.ask("FLUSHALL")
        server.ask("SET", "other", "value")
        watched("nothing", server, lambda: time.sleep(2))
        server.fill(grouped("SADD", "set", lambda n: (b"m%09d" % n,), count, 1000))
        watched(f"DEL of a set of {count:,}", server, lambda: server.ask("DEL", "set"))
        server.fill(grouped("ZADD", "board", lambda n: (n * 31 % MILLION, b"m:%012d" % n), MILLION))
        zadd = ["-P", "16", "-r", str(MILLION), "-n", str(int(400_000 * options.scale))]
        zadd += ["ZADD", "board", "__rand_int__", "m:__rand_int__"]
        alone = [server.benchmark(zadd) for _ in range(3)]
        watched("ZADD, 50 clients, P16", server, lambda: server.benchmark(zadd))
        beside = []

        def save():
            for _ in range(3):
                server.ask("BGSAVE")
                beside.append(server.benchmark(zadd))

        watched("the same and BGSAVE", server, save)
        kept = statistics.median(beside) / statistics.median(alone)
        rows.setdefault("ZADD per second during BGSAVE (ratio)", []).append(f"{kept:.2f}")
        server.fill(grouped("HSET", "large", lambda n: (b"f:%012d" % n, b"value"), MILLION))
        hset = ["-c", "4", "-P", "16", "-r", str(MILLION), "-n", str(int(400_000 * options.scale))]
        hset += ["HSET", "large", "f:__rand_int__", "value"]
        watched("HSET into one hash of 1 M, 4 clients, P16", server, lambda: server.benchmark(hset))
    for row, cells in rows.items():
        print(f"| {row} | " + " | ".join(cells) + " |")


def watch(port, command, connection):
    """Sends a command all the time, from a process of its own: the longest wait goes to `connection`,
    whenever something comes from there."""
    with socket.create_connection(("127.0.0.1", port)) as server:
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request, longest = encode(command), 0.0
        while True:
            begin = time.monotonic()
            server.sendall(request)
            server.recv(1000)
            longest = max(longest, time.monotonic() - begin)
            if connection.poll():
                if connection.recv() == "end":
                    return
                connection.send(longest)
                longest = 0.0
            time.sleep(0.0005)


def changes(servers, options):
    """Commands that change many elements at once."""
    count = int(MILLION * options.scale)
    half = count // 2
    adds = {
        "set": lambda key: grouped("SADD", key, lambda n: (b"m%d" % n,), count),
        "zset": lambda key: grouped("ZADD", key, lambda n: (n * 31 % count, b"m%d" % n), count),
        "hash": lambda key: grouped("HSET", key, lambda n: (b"f%d" % n, b"value"), count),
        "list": lambda key: grouped("RPUSH", key, lambda n: (b"v%d" % n,), count),
    }

    def pairs(names, form, back=False):
        for n, name in enumerate(names):
            yield from (name, form % n) if back else (form % n, name)

    def restored(server):
        server.ask("SET", "from", b"x" * (64 << 20))
        return ("RESTORE", "result", 0, server.ask("DUMP", "from"))

    names = [b"m%d" % n for n in range(half)]
    fields = [b"f%d" % n for n in range(half)]
    rows = [
        ("SPOP of half", "set", ("SPOP", "set", half)),
        ("SPOP of a tenth", "set", ("SPOP", "set", count // 10)),
        ("SPOP of all", "set", ("SPOP", "set", count)),
        ("SREM of half", "set", ("SREM", "set", *names)),
        ("ZREM of half", "zset", ("ZREM", "zset", *names)),
        ("ZREMRANGEBYRANK of nearly all", "zset", ("ZREMRANGEBYRANK", "zset", 10, -11)),
        ("ZREMRANGEBYSCORE of a tenth", "zset", ("ZREMRANGEBYSCORE", "zset", 0, count // 10)),
        ("ZREMRANGEBYSCORE of a hundredth", "zset", ("ZREMRANGEBYSCORE", "zset", 0, count // 100)),
        ("ZPOPMIN of half", "zset", ("ZPOPMIN", "zset", half)),
        ("ZMPOP of half", "zset", ("ZMPOP", 1, "zset", "MAX", "COUNT", half)),
        ("HDEL of half", "hash", ("HDEL", "hash", *fields)),
        ("LPOP of half", "list", ("LPOP", "list", half)),
        ("LTRIM of half", "list", ("LTRIM", "list", half // 2, -half // 2)),
        ("LREM of one value", "list", ("LREM", "list", 0, b"v%d" % half)),
        ("SUNIONSTORE", "set", ("SUNIONSTORE", "result", "set")),
        ("COPY of a sorted set", "zset", ("COPY", "zset", "result")),
        ("BLMPOP of half", "list", ("BLMPOP", 0, 1, "list", "LEFT", "COUNT", half)),
        ("BZMPOP of half", "zset", ("BZMPOP", 0, 1, "zset", "MAX", "COUNT", half)),
        ("HGETDEL of half", "hash", ("HGETDEL", "hash", "FIELDS", half, *fields)),
        ("SADD of half, new", None, ("SADD", "result", *names)),
        ("ZADD of half, new", None, ("ZADD", "result", *pairs(names, b"%d"))),
        ("HSET of half, new", None, ("HSET", "result", *pairs(names, b"f%d"))),
        ("RPUSH of half, new", None, ("RPUSH", "result", *names)),
        ("SADD of a fifth, present", "set", ("SADD", "set", *fields[:count // 5])),
        ("SADD of a hundredth, present", "set", ("SADD", "set", *fields[:count // 100])),
        ("RESTORE of 64 MB in a string", None, restored),
        ("MSET of half", None, ("MSET", *pairs(names, b"v%d", back=True))),
        ("MGET of half", None, ("MGET", *names)),
        ("EXISTS of half", None, ("EXISTS", *names)),
        ("DEL of half, present", None, ("DEL", *names)),
        ("DEL of half, absent", None, ("DEL", *fields)),
    ]
    watchers = [("GET", "other"), ("SET", "other", "value"), ("MSET", "a", "1", "b", "2")]
    print(f"\n## Longest wait of other clients (GET, SET, MSET) during a change of {count:,} elements\n")
    rows = [row for row in rows if any(part in row[0] for part in options.only.split("|"))]
    titles = [f"{server.name} {what}" for server in servers for what in ("took", "GET", "SET", "MSET")]
    print("| ms | " + " | ".join(titles) + " |")
    print("|---" * (1 + len(titles)) + "|")
    found = {row[0]: [] for row in rows}
    for server in servers:
        ends = []
        for command in watchers:
            ours, theirs = multiprocessing.Pipe()
            arguments = (server.port, command, theirs)
            multiprocessing.Process(target=watch, args=arguments, daemon=True).start()
            ends.append(ours)

        def longest():
            for end in ends:
                end.send("tell")
            return [end.recv() * 1000 for end in ends]

        for row, key, command in rows:
            server.ask("DEL", "result", "set", "zset", "hash", "list", "from")
            if key:
                server.fill(adds[key](key))
            request = encode(command(server) if callable(command) else command)
            time.sleep(1)
            longest()
            begin = time.monotonic()
            server.socket.sendall(request)
            reply = read(server.reader)
            took = (time.monotonic() - begin) * 1000
            time.sleep(0.3)
            if isinstance(reply, Exception):
                # A command that this server does not have.
                assert b"unknown command" in reply.args[0], reply
            found[row] += [f"{value:.1f}" for value in (took, *longest())]
        for end in ends:
            end.send("end")
    for row, cells in found.items():
        print(f"| {row} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ordna", help="the binary")
    parser.add_argument("--valkey", help="a valkey-server to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of requests")
    parser.add_argument("--part", default="all,large,memory,stalls,changes", help="parts, with commas")
    parser.add_argument("--only", default="", help="rows of `changes` whose names contain this; several with |")
    options = parser.parse_args()
    plain = ["--save", "", "--appendonly", "no"]
    parts = {"all": built_in, "large": large, "memory": memory, "stalls": stalls, "changes": changes}
    for part in options.part.split(","):
        saved = part in ("stalls", "changes")
        servers = [Server("Redis", ["redis-server", *plain])]
        if options.valkey:
            servers.append(Server("Valkey", [options.valkey, *plain]))
        ours = [os.path.abspath(options.ordna), "serve"]
        servers.append(Server("ordna", ours + (["--dir", "data"] if saved else [])))
        parts[part](servers, options)
        for server in servers:
            server.stop()


if __name__ == "__main__":
    main()
