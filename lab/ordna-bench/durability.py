#!/usr/bin/env python3
"""What durability costs the server, with redis-server beside it, on the same disk.

    durability.py log ORDNA DIR             SETs under each policy of the log; medians of rounds
    durability.py backup ORDNA DIR ENTRIES  BGSAVE under writes: stalls, memory; time to restart

Needs redis-server and redis-benchmark. Prints lines of a Markdown table.
"""

import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

ROUNDS = 3
PORT = 16390
VALUE = b"v" * 84


def command(*words):
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class Client:
    """One connection; replies without arrays."""

    def __init__(self):
        self.socket = socket.create_connection(("127.0.0.1", PORT))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.file = self.socket.makefile("rb")

    def call(self, *words):
        self.socket.sendall(command(*words))
        return self.reply()

    def reply(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        if line[:1] == b"$":
            length = int(line[1:])
            return None if length < 0 else self.file.read(length + 2)[:-2]
        return line.rstrip()

    def info(self, section):
        text = self.call(b"INFO", section).decode()
        return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)


class Server:
    """A server of its own, and what the kernel says of its memory."""

    def __init__(self, words):
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        began = time.monotonic()
        while True:
            try:
                answer = Client().call(b"GET", b"no such key")
                if answer is None:
                    break
            except OSError:
                pass
            if self.process.poll() is not None:
                raise SystemExit(f"{words[0]} ended with {self.process.returncode}")
            time.sleep(0.005)
        self.took = time.monotonic() - began

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def status(self, field):
        with open(f"/proc/{self.process.pid}/status") as status:
            return int(re.search(field + r":\s+(\d+) kB", status.read())[1]) << 10

    def forget_peak(self):
        with open(f"/proc/{self.process.pid}/clear_refs", "w") as file:
            file.write("5")


def ordna(binary, directory, *more):
    return [binary, "serve", "--port", str(PORT), "--dir", directory, *more]


def redis(directory, *more):
    os.makedirs(directory, exist_ok=True)
    plain = ["--save", "", "--appendonly", "no", "--dir", directory]
    return ["redis-server", "--port", str(PORT), *plain, *more]


def rate(*words):
    """Requests a second, as redis-benchmark says."""
    run = ["redis-benchmark", "-p", str(PORT), "-t", "set", "-d", str(len(VALUE)), "--csv", *words]
    output = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    return float(output.splitlines()[-1].split(",")[1].strip('"'))


def log(binary, directory):
    piped = ["-n", "1500000", "-r", "1000000", "-P", "16", "-c", "50"]
    single = ["-n", "60000", "-r", "1000000", "-c", "50"]
    memory = [binary, "serve", "--port", str(PORT)]
    aof = ["--appendonly", "yes", "--appendfsync"]
    cases = {
        "pipelined SET, ordna without a directory": (lambda d: memory, piped),
        "pipelined SET, ordna `no`": (lambda d: ordna(binary, d, "--log", "no"), piped),
        "pipelined SET, ordna `everysec`": (lambda d: ordna(binary, d, "--log", "everysec"), piped),
        "pipelined SET, redis without a log": (lambda d: redis(d), piped),
        "pipelined SET, redis `everysec`": (lambda d: redis(d, *aof, "everysec"), piped),
        "SET of 50 clients, ordna `always`": (lambda d: ordna(binary, d, "--log", "always"), single),
        "SET of 50 clients, redis `always`": (lambda d: redis(d, *aof, "always"), single),
    }
    rates = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, (words, load) in cases.items():
            shutil.rmtree(directory, ignore_errors=True)
            server = Server(words(directory))
            rate("-n", "20000", "-c", "50")
            rates[name].append(rate(*load))
            server.kill()
    for name, of_rounds in rates.items():
        rounds = ", ".join(f"{each / 1000:.1f}" for each in of_rounds)
        print(f"| {name} | {statistics.median(of_rounds) / 1000:.1f} k/s | {rounds} |", flush=True)


def load(entries):
    """SETs of all keys, pipelined; every reply is read and is OK."""
    client = Client()

    def send():
        for first in range(0, entries, 1000):
            numbers = range(first, min(first + 1000, entries))
            client.socket.sendall(b"".join(command(b"SET", b"key:%012d" % n, VALUE) for n in numbers))

    sender = threading.Thread(target=send)
    sender.start()
    expected = b"+OK\r\n" * entries
    for first in range(0, len(expected), 5 << 18):
        part = expected[first : first + (5 << 18)]
        if client.file.read(len(part)) != part:
            raise SystemExit("a SET was not answered with OK")
    sender.join()


class Stalls:
    """The longest time that a GET took, until it is stopped."""

    def __init__(self):
        self.longest = 0.0
        self.stopped = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        client = Client()
        while not self.stopped:
            began = time.monotonic()
            client.call(b"GET", b"key:000000000001")
            self.longest = max(self.longest, time.monotonic() - began)
            time.sleep(0.0005)

    def stop(self):
        self.stopped = True
        self.thread.join()
        return self.longest


def backup(binary, directory, entries):
    cases = {"ordna": lambda: ordna(binary, directory), "redis-server": lambda: redis(directory)}
    for name, words in cases.items():
        shutil.rmtree(directory, ignore_errors=True)
        server = Server(words())
        load(entries)
        client = Client()
        overwrite = ["-n", str(entries // 5), "-r", str(entries), "-P", "4", "-c", "8"]
        stalls = Stalls()
        alone = rate(*overwrite)
        before_stall = stalls.stop()
        time.sleep(2)
        resident = server.status("VmRSS")
        server.forget_peak()
        stalls = Stalls()
        client.call(b"BGSAVE")
        # Writers go on until the backup is done.
        beside = []
        while True:
            beside.append(rate(*overwrite))
            if client.info(b"persistence")["rdb_bgsave_in_progress"] == "0":
                break
        info = client.info(b"persistence")
        if info["rdb_last_bgsave_status"] != "ok":
            raise SystemExit(f"the backup failed: {info}")
        # What a forked child copied is its own.
        copied = int(info.get("rdb_last_cow_size", 0))
        peak = server.status("VmHWM") + copied
        longest = stalls.stop()
        took = info["rdb_last_bgsave_time_sec"]
        server.kill()
        again = Server(words())
        found = int(Client().call(b"DBSIZE")[1:])
        again.kill()
        if found != entries:
            raise SystemExit(f"{name}: {found} keys after the restart")
        print(
            f"| {name} | {resident / 1e6:.0f} MB | +{(peak / resident - 1) * 100:.1f} % "
            f"| {before_stall * 1000:.1f} ms | {longest * 1000:.1f} ms | {took} s "
            f"| {alone / 1000:.0f} k/s | {beside[0] / alone * 100:.0f} % | {again.took:.2f} s |",
            flush=True,
        )
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["log", binary, directory]:
            log(binary, directory)
        case ["backup", binary, directory, entries]:
            backup(binary, directory, int(entries))
        case _:
            raise SystemExit(__doc__)
