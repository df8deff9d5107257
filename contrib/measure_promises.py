#!/usr/bin/env python3
"""Measures on a running `ordna serve` what docs/benchmarks/server.md promises an operator.

    contrib/measure_promises.py target/release/ordna

Prints a line for each promise. Needs redis-benchmark and redis-server.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from measure_server import encode, free_port


class Server:
    def __init__(self, *words, before=None):
        self.port = free_port()
        self.folder = tempfile.TemporaryDirectory()
        command = [word.replace("PORT", str(self.port)) for word in words]
        self.process = subprocess.Popen(
            command, cwd=self.folder.name, preexec_fn=before,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for _ in range(400):
            try:
                self.client().ask("PING")
                return
            except OSError:
                time.sleep(0.01)
        raise SystemExit(f"{command} does not answer")

    def client(self):
        return Client(self.port)

    def memory(self, field="VmRSS"):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            line = next(line for line in file if line.startswith(field))
        return int(line.split()[1]) / 1024

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        self.process.wait()
        self.ended_in = time.monotonic() - began


class Client:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.file = self.socket.makefile("rb")

    def ask(self, *words):
        self.socket.sendall(encode(words))
        return self.reply()

    def reply(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("closed")
        if line[:1] == b"$" and int(line[1:]) >= 0:
            return self.file.read(int(line[1:]) + 2)[:-2]
        if line[:1] == b"*" and int(line[1:]) >= 0:
            return [self.reply() for _ in range(int(line[1:]))]
        return line.strip()

    def pipelined(self, commands):
        """Seconds until all replies are there, and the replies."""
        commands, replies = list(commands), []
        began = time.monotonic()
        sender = threading.Thread(target=lambda: self.socket.sendall(b"".join(map(encode, commands))))
        sender.start()
        replies = [self.reply() for _ in commands]
        sender.join()
        return time.monotonic() - began, replies


def longest(server, seconds, *words):
    client, most, end = server.client(), 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        client.ask(*words)
        most = max(most, time.monotonic() - began)
    return most * 1000


def main(binary):
    binary = os.path.abspath(binary)
    ordna = lambda *more, **how: Server(binary, "serve", "--port", "PORT", *more, **how)
    say = lambda number, text: print(f"| {number} | {text} |", flush=True)

    with ordna("--max-memory", "200mb") as server:
        words = "redis-benchmark -c 1 -n 400 -d 10000000 -t set -q -p".split()
        subprocess.run([*words, str(server.port)], stdout=subprocess.DEVNULL, check=True)
        peak = server.memory("VmHWM")
        time.sleep(2)
        after = server.memory()
        client = server.client()
        client.ask("FLUSHALL")
        client.pipelined(("APPEND", "key", b"a" * 10_000) for _ in range(1200))
        full = server.memory()
        client.ask("DEL", "key")
        time.sleep(2)
        say(1, f"values of 10 MB: {peak:.0f} MiB at most, {after:.0f} two seconds later; "
               f"1,200 APPENDs to 12 MB: {full:.0f} MiB, {server.memory():.0f} after DEL")

    with ordna() as server:
        page = server.client()
        page.socket.sendall(b"POST / HTTP/1.1\r\nContent-Type: text/plain\r\n\r\nSET pwned 1\r\n")
        closed = page.socket.recv(100) == b""
        say(2, f"POST: closed {closed}, EXISTS pwned {server.client().ask('EXISTS', 'pwned').decode()}")

        client = server.client()
        for first in range(0, 1_000_000, 10_000):
            client.pipelined(("SET", f"key:{n:07}", "v") for n in range(first, first + 10_000))
        walker = server.client()
        walker.socket.sendall(encode(["KEYS", b"*[" + b"x" * 100_000]) * 20)
        stall = longest(server, 3, "GET", "key:0000001")
    say(3, f"KEYS of a 100 kB pattern over a million keys: GET waits {stall:.1f} ms at most; "
           f"SIGTERM during it takes {server.ended_in:.2f} s")

    with ordna() as server:
        client = server.client()
        for n in range(1000):
            client.ask("SET", "key", str(n))
            client.ask("ORDNA.SNAPSHOT", "CREATE")
            client.ask("FLUSHALL")
        threads = len(os.listdir(f"/proc/{server.process.pid}/task"))
        say(4, f"1,000 FLUSHALLs beside snapshots: {threads} threads in all")

    redis = lambda: Server("redis-server", "--port", "PORT", "--save", "", "--appendonly", "no")
    times = []
    for server in (ordna(), redis()):
        with server:
            times.append(server.client().pipelined([("APPEND", "key", b"a" * 100)] * 20_000)[0])
    say(6, f"20,000 pipelined APPENDs of 100 bytes: {times[0]:.3f} s, Redis {times[1]:.3f} s")

    with ordna("--max-memory", "200mb") as server:
        client = server.client()
        client.pipelined(("SET", f"key:{n:05}", b"v" * 1000) for n in range(100_000))
        before = server.memory()
        silent = [server.client() for _ in range(10)]
        for each in silent:
            each.socket.sendall(encode(["ORDNA.RANGE", "-", "+"]) * 10)
        time.sleep(3)
        unread = server.memory() - before
        del silent
        unfinished = [server.client() for _ in range(4)]
        for each in unfinished:
            each.socket.settimeout(3)
            try:
                each.socket.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$200000000\r\n" + b"v" * 190_000_000)
            except OSError:
                pass
        say(7, f"ten clients that read no range: +{unread:.0f} MiB; four unfinished SETs of 200 MB under "
               f"200 MB: +{server.memory('VmHWM') - before:.0f} MiB at most")

    with ordna() as server:
        most, clients = 0.0, []
        for _ in range(1000):
            began = time.monotonic()
            clients.append(server.client())
            most = max(most, time.monotonic() - began)
    import resource
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    with ordna(before=limit) as server:
        answers = []
        for _ in range(400):
            try:
                client = server.client()
                client.socket.settimeout(5)
                clients.append(client)
                answers.append(client.ask("PING")[:5])
            except OSError:
                answers.append(b"closed")
        served, refused = answers.count(b"+PONG"), sum(a[:4] == b"-ERR" for a in answers)
    say(8, f"1,000 connects: {most * 1000:.1f} ms at most; 400 clients under `ulimit -n 256`: "
           f"{served} served, {refused} told, {400 - served - refused} without a word")

    with ordna() as server:
        client = server.client()
        watch, _ = client.pipelined(("WATCH", f"key:{n}") for n in range(80_000))
        for _ in range(300):
            server.client().ask("ORDNA.SNAPSHOT", "CREATE")
        time.sleep(0.5)
        left = len(server.client().ask("ORDNA.SNAPSHOT", "LIST"))
    with ordna("--max-memory", "0", "--bind", "localhost") as server:
        works = server.client().ask("SET", "a", "1").decode()
    with ordna("--password", "secret") as server:
        began, guesses = time.monotonic(), 0
        while time.monotonic() - began < 3:
            try:
                client = server.client()
                while time.monotonic() - began < 3:
                    client.ask("AUTH", "wrong")
                    guesses += 1
            except OSError:
                pass
    say(9, f"WATCH of 80,000 keys: {watch:.2f} s; snapshots of 300 dead clients left: {left}; "
           f"`--max-memory 0 --bind localhost`: {works}; {guesses / 3:.0f} guesses of a password a second")


if __name__ == "__main__":
    main(sys.argv[1])
