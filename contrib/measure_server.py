#!/usr/bin/env python3
"""Measures `ordna serve` against redis-server on one machine: throughput, CPU, memory per key.

    contrib/measure_server.py target/release/ordna --rounds 3 --threads 1,2

A million keys with values of 32 bytes, all present; `redis-benchmark -c 50` at random keys; rounds are
interleaved over the servers. CPU seconds (user and system of the server, from /proc/PID/stat) do not
depend on how server and client share the cores, throughput does. Prints medians (lowest to highest).
Needs redis-server and redis-benchmark. Every range's reply is checked once for its hundred keys.
"""

import argparse
import os
import socket
import statistics
import subprocess
import tempfile
import time

KEYS = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")


class Server:
    def __init__(self, name, command, port, range_command):
        self.name, self.port, self.range_command = name, port, range_command
        self.directory = tempfile.TemporaryDirectory()
        self.process = subprocess.Popen(
            command, cwd=self.directory.name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(200):
            try:
                self.socket = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.05)

    def ask(self, *arguments):
        self.socket.sendall(encode(arguments))
        return self.socket.recv(1 << 16)

    def fill(self, commands):
        """Sends commands in pipelines and waits for as many replies, each of one line."""
        batch, waiting = [], 0
        for command in commands:
            batch.append(encode(command))
            if len(batch) == 1000:
                self.socket.sendall(b"".join(batch))
                waiting, batch = len(batch), []
                while waiting > 0:
                    waiting -= self.socket.recv(1 << 16).count(b"\n")
        assert not batch

    def cpu(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def resident(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def benchmark(self, requests, arguments):
        """Requests a second, and the server's CPU seconds per million of them."""
        before = self.cpu()
        output = subprocess.run(
            ["redis-benchmark", "-p", str(self.port), "-c", "50", "-r", str(KEYS), "--csv"]
            + ["-n", str(requests), *arguments],
            capture_output=True, text=True, check=True,
        ).stdout
        spent = self.cpu() - before
        rate = float(output.strip().splitlines()[-1].rsplit('","', 7)[-7])
        return rate, spent * 1e6 / requests

    def stop(self):
        self.process.terminate()
        self.process.wait()


def encode(arguments):
    parts = [a if isinstance(a, bytes) else a.encode() for a in arguments]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ordna", help="the binary; several, separated by commas, to compare them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", default="1,2", help="numbers of worker threads, with commas")
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of requests")
    parser.add_argument("--only", default="", help="a part of a workload's name")
    options = parser.parse_args()
    port = free_port()
    command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]
    limit = ["+", "LIMIT", "0", "100"]
    by_lex = ["ZRANGEBYLEX", "all", "[key:__rand_int__", *limit]
    servers = [Server("redis-server", command, port, by_lex)]
    for binary in options.ordna.split(","):
        for threads in options.threads.split(","):
            port = free_port()
            command = [os.path.abspath(binary), "serve", "--port", str(port), "--threads", threads]
            name = f"{os.path.basename(binary)} --threads {threads}"
            by_range = ["ORDNA.RANGE", "[key:__rand_int__", "+", "LIMIT", "0", "100", "KEYS"]
            servers.append(Server(name, command, port, by_range))
    value = b"v" * 32
    for server in servers:
        empty = server.resident()
        # A stride that meets every key once, in no order.
        keys = (b"key:%012d" % (n * 7919 % KEYS) for n in range(KEYS))
        server.fill((b"SET", key, value) for key in keys)
        size = server.ask("DBSIZE")
        assert size == b":%d\r\n" % KEYS, size
        per_key = (server.resident() - empty) / KEYS
        print(f"{server.name}: {per_key:.1f} resident bytes per key", flush=True)
    redis = servers[0]
    if options.only in "range of 100":
        # In the order in which the other server got its keys: neither finds them in order in memory.
        keys = (b"key:%012d" % (n * 7919 % KEYS) for n in range(KEYS))
        redis.fill((b"ZADD", b"all", b"0", key) for key in keys)
    workloads = [
        ("SET P1", 200_000, ["-t", "set", "-d", "32", "-P", "1"]),
        ("GET P1", 200_000, ["-t", "get", "-P", "1"]),
        ("SET P16", 1_000_000, ["-t", "set", "-d", "32", "-P", "16"]),
        ("GET P16", 1_000_000, ["-t", "get", "-P", "16"]),
        ("range of 100", 20_000, None),
    ]
    workloads = [workload for workload in workloads if options.only in workload[0]]
    found = {}
    for server in servers if options.only in "range of 100" else []:
        first = [a.replace("__rand_int__", "%012d" % (KEYS // 2)) for a in server.range_command]
        reply = b""
        server.socket.sendall(encode(first))
        while reply.count(b"key:") < 100 or not reply.endswith(b"\r\n"):
            reply += server.socket.recv(1 << 16)
        assert reply.startswith(b"*100\r\n") and b"key:%012d" % (KEYS // 2 + 99) in reply, reply
    for _ in range(options.rounds):
        for name, requests, arguments in workloads:
            for server in servers:
                measured = server.benchmark(
                    int(requests * options.scale), arguments or server.range_command
                )
                found.setdefault((name, server.name), []).append(measured)
    for server in servers:
        server.stop()
    shown = lambda values, form: (
        f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"
    )
    print("\n| workload | server | requests a second | of Redis | CPU s per million | of Redis |")
    print("|---|---|---|---|---|---|")
    for name, *_ in workloads:
        rates, costs = zip(*found[name, redis.name])
        base = statistics.median(rates), statistics.median(costs)
        for server in servers:
            rates, costs = zip(*found[name, server.name])
            ratios = statistics.median(rates) / base[0], statistics.median(costs) / base[1]
            print(
                f"| {name} | {server.name} | {shown(rates, ',.0f')} | {ratios[0]:.2f}"
                f" | {shown(costs, '.2f')} | {ratios[1]:.2f} |"
            )


if __name__ == "__main__":
    main()
