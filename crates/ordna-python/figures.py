"""The figures of docs/PYTHON.md: ratios to sortedcontainers and lmdb, measured in one run, in turns.

Usage: figures.py [keys]; needs ordna, numpy and sortedcontainers. Without lmdb its rows are skipped.
"""

import ctypes
import gc
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from itertools import islice

import numpy as np
from sortedcontainers import SortedDict

import ordna

try:
    import lmdb
except ImportError:
    lmdb = None

KEYS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
ROUNDS = 3
rng = np.random.default_rng(7)
ARRAY = rng.integers(0, 2**64, KEYS, dtype=np.uint64)
INTS = ARRAY.tolist()
ORDER = random.Random(7).sample(INTS, KEYS)


def timed(call):
    gc.collect()
    gc.disable()
    began = time.perf_counter()
    result = call()
    took = time.perf_counter() - began
    gc.enable()
    return took, result


def insert(mapping):
    def run():
        for key in INTS:
            mapping[key] = key
        return mapping

    return run


def get(mapping):
    def run():
        total = 0
        for key in ORDER:
            total ^= mapping[key]
        return total

    return run


RANGES = sorted(INTS)
STARTS = [random.Random(3).randrange(KEYS - 101) for _ in range(20_000)]


def ranges_theirs(mapping):
    def run():
        count = 0
        for start in STARTS:
            count += len([(key, mapping[key])
                          for key in mapping.irange(RANGES[start], RANGES[start + 99])])
        return count

    return run


def ranges_ours(mapping):
    def run():
        count = 0
        for start in STARTS:
            count += len(list(mapping.items(RANGES[start], RANGES[start + 99])))
        return count

    return run


def containers(add, length):
    """The bars of SortedDict beside sortedcontainers': int and str keys, results checked."""
    for kind in ("int", "str"):
        keys = [key if kind == "int" else f"key{key:020d}" for key in INTS[:length]]
        pairs = {key: number for number, key in enumerate(keys)}
        order, ranked = random.Random(5).sample(keys, min(len(keys), 200_000)), sorted(pairs)
        starts = [random.Random(4).randrange(len(ranked) - 101) for _ in range(5_000)]
        spans = [(ranked[start], ranked[start + 99]) for start in starts]
        for _ in range(ROUNDS):
            sides = []
            for cls in (SortedDict, ordna.SortedDict):
                times = {}
                times["constructor of a dict", 1.5], made = timed(lambda: cls(pairs))
                times["get", 0.8], got = timed(lambda: sum(made[key] for key in order))
                if cls is SortedDict:
                    def pairs_of(low, high):
                        return [(key, made[key]) for key in made.irange(low, high)]
                else:
                    def pairs_of(low, high):
                        return list(made.items(low, high))
                times["ranges of 100 pairs", 1.5], found = timed(
                    lambda: [len(pairs_of(low, high)) for low, high in spans])
                times["bisect", 0.8], ranks = timed(
                    lambda: sum(made.bisect_left(key) for key in order[:50_000]))
                times["peekitem(i)", 0.8], peeked = timed(
                    lambda: [made.peekitem(start) for start in starts])
                times["popitem(0)", 1.0], popped = timed(
                    lambda: [made.popitem(0) for _ in range(min(20_000, len(made)))])
                sides.append((times, (got, found, ranks, peeked, popped)))
            (theirs, want), (ours, answers) = sides
            assert answers == want
            for (name, bar), took in theirs.items():
                add(f"SortedDict, {kind}, {length:,}: {name}", bar, took, ours[name, bar])


def beside_lmdb(add):
    """Gets and ranges beside lmdb's: keys of 15 bytes, values of 100, as in docs/PYTHON.md."""
    keys = [b"key%012d" % (key % 10**12) for key in INTS[:300_000]]
    ranked, value = sorted(set(keys)), b"v" * 100
    starts = [random.Random(6).randrange(len(ranked) - 101) for _ in range(5_000)]
    spans = [(ranked[start], ranked[start + 99]) for start in starts]
    store = ordna.Store()
    with tempfile.TemporaryDirectory() as folder, lmdb.open(
        folder, map_size=1 << 30, sync=False
    ) as database:
        with database.begin(write=True) as transaction:
            for key in keys:
                transaction.put(key, value)
                store[key] = value

        def gets_theirs():
            with database.begin() as transaction:
                return sum(len(transaction.get(key)) for key in keys)

        def ranges_theirs():
            with database.begin() as transaction:
                cursor, found = transaction.cursor(), 0
                for low, _ in spans:
                    cursor.set_range(low)
                    found += len(list(islice(cursor.iternext(), 100)))
                return found

        for _ in range(ROUNDS):
            theirs, want = timed(gets_theirs)
            ours, got = timed(lambda: sum(len(store[key]) for key in keys))
            assert got == want
            add("lmdb: gets of 100 bytes", 1, theirs, ours)
            theirs, want = timed(ranges_theirs)
            ours, got = timed(lambda: sum(len(list(store.items(*span))) for span in spans))
            assert got == want == 100 * len(spans)
            add("lmdb: ranges of 100 pairs", 1, theirs, ours)


def resident():
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bytes_of(kind, pipe):
    """Resident bytes per entry, with keys and values that nothing else holds."""
    source = np.random.default_rng(7)
    before = resident()
    mapping = SortedDict() if kind == "theirs" else ordna.Store()
    left = KEYS
    while left:
        part = min(left, 10_000)
        left -= part
        for key in source.integers(0, 2**64, part, dtype=np.uint64).tolist():
            mapping[key] = key + 1
    gc.collect()
    pipe.send((resident() - before) / KEYS)


def memory(kind):
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=bytes_of, args=(kind, theirs))
    process.start()
    answer = ours.recv()
    process.join()
    return answer


def in_threads(store, threads):
    parts = np.array_split(np.array(ORDER, dtype=np.uint64), threads)
    wrong = []

    def read(part):
        for _ in range(2):
            if not (store.get_many(part) == part).all():
                wrong.append(len(part))

    def run():
        workers = [threading.Thread(target=read, args=(part,)) for part in parts]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not wrong

    return run


def main():
    rows = {}

    def add(name, bar, theirs, ours):
        rows.setdefault((name, bar), []).append((theirs, ours))

    for _ in range(ROUNDS):
        theirs_insert, theirs = timed(insert(SortedDict()))
        ours_insert, ours = timed(insert(ordna.Store()))
        add("random inserts, one by one", 1.5, theirs_insert, ours_insert)
        assert len(ours) == len(theirs) == len(set(INTS))
        theirs_get, want = timed(get(theirs))
        ours_get, got = timed(get(ours))
        assert got == want
        add("gets, one by one", 0.7, theirs_get, ours_get)
        theirs_ranges, want = timed(ranges_theirs(theirs))
        ours_ranges, got = timed(ranges_ours(ours))
        assert got == want == 100 * len(STARTS)
        add("ranges of 100 pairs", 2, theirs_ranges, ours_ranges)
        del theirs, ours
        bulk = ordna.Store()
        ours_put, _ = timed(lambda: bulk.put_many(ARRAY, ARRAY))
        add("put_many of a NumPy array", 10, theirs_insert, ours_put)
        ours_many, got = timed(lambda: bulk.get_many(ARRAY))
        assert (got == ARRAY).all()
        add("get_many of a NumPy array", 10, theirs_get, ours_many)
        one, _ = timed(in_threads(bulk, 1))
        two, _ = timed(in_threads(bulk, 2))
        add("get_many: two threads against one", 1.7, one, two)
        del bulk
    for length in sorted({min(KEYS, 200_000), KEYS}):
        containers(add, length)
    if lmdb is None:
        print("lmdb is not installed: its rows are skipped")
    else:
        beside_lmdb(add)
    print(f"{KEYS:,} keys, {ROUNDS} rounds, medians")
    print(f"{'':52}{'theirs':>12}{'ordna':>12}{'ratio':>8}{'bar':>7}")
    for (name, bar), pairs in rows.items():
        ratio = statistics.median(theirs / ours for theirs, ours in pairs)
        theirs, ours = (statistics.median(side) for side in zip(*pairs))
        print(f"{name:52}{theirs:10.2f} s{ours:10.2f} s{ratio:8.2f}{'>= ' + str(bar):>8}")
    theirs, ours = memory("theirs"), memory("ours")
    print(f"{'bytes per entry':52}{theirs:12.1f}{ours:12.1f}{ours / theirs:8.2f}{'<= 0.25':>8}")


if __name__ == "__main__":
    main()
