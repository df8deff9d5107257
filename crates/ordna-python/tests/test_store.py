"""Bad input, threads, arrays, codecs, leaks."""

import copy
import datetime as dt
import gc
import io
import random
import sys
import threading
import time
from array import array

import numpy as np
import pyarrow as pa
import pytest

import ordna


def test_unhashable_and_unorderable_keys():
    store = ordna.Store({1: "a"})
    for key in ([1], {}, {1}, ([1],)):
        with pytest.raises(TypeError, match="unhashable"):
            store[key] = 1
        with pytest.raises(TypeError):
            store.get(key)
    for key in ("text", b"bytes", None, True, (1,), dt.date(2020, 1, 1), object(), 1j):
        with pytest.raises(TypeError):
            store[key] = 1
    assert store == {1: "a"} and 2.5 not in store and "text" not in store
    with pytest.raises(TypeError):
        list(store.irange("a", "b"))
    pairs = ordna.Store({(1, "a"): 1, (2, 5): 2})
    with pytest.raises(TypeError):
        pairs[(1, 5)] = 1
    pairs[(2, 6)] = 3
    pairs[(3, None)] = 4
    with pytest.raises(TypeError):
        pairs[(3, "a")] = 1
    assert len(pairs) == 4
    # As with a dict, an empty store accepts keys of another type.
    store.clear()
    store["text"] = 1
    del store["text"]
    store[5] = 1
    naive, aware = dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
    with pytest.raises(TypeError):
        ordna.Store({naive: 1, aware: 2})
    offset = dt.timezone(dt.timedelta(hours=2))
    assert ordna.Store({aware: 1})[aware.astimezone(offset)] == 1


def test_numbers_are_one_order():
    keys = [float("-inf"), -(2**200), -1e30, -1.5, -1, 0, 0.5, 1, 2**53 + 1, 1e300, float("inf")]
    store = ordna.Store.fromkeys(random.sample(keys, len(keys)))
    assert list(store) == keys
    store[1.0] = "one"
    assert store[1] == "one" and len(store) == len(keys)
    assert ordna.Store({-0.0: 1})[0] == 1
    nan = ordna.Store({float("nan"): 1, float("inf"): 2})
    assert nan[float("nan")] == 1 and nan.peekitem(0)[1] == 2
    assert list(ordna.Store({np.int64(5): np.float64(2.5)}).items()) == [(5, 2.5)]


def test_deep_tuples_and_long_keys():
    key = ()
    for _ in range(100):
        key = (key,)
    store = ordna.Store()
    with pytest.raises(ValueError, match="nested"):
        store[key] = 1
    with pytest.raises(ValueError, match="65535"):
        store["k" * 70_000] = 1
    with pytest.raises(ValueError):
        store["\ud800"] = 1
    assert not store and "k" * 70_000 not in store
    assert store.pop("k" * 70_000, "absent") == "absent"
    with pytest.raises(KeyError):
        del store["k" * 70_000]


def test_values_and_codecs():
    plain = ordna.Store()
    with pytest.raises(TypeError, match="codec"):
        plain["k"] = [1]
    assert "k" not in plain
    pickled = ordna.Store({"k": [1, {"a": 2}]}, codec="pickle")
    assert pickled["k"] == [1, {"a": 2}] and copy.copy(pickled) == pickled
    with pickled.snapshot() as snapshot:
        assert snapshot["k"] == [1, {"a": 2}] and snapshot.copy() == pickled
    upper = ordna.Store(codec=(lambda value: repr(value).encode(), lambda text: eval(text)))
    upper["k"] = {"x"}
    assert upper["k"] == {"x"}
    with pytest.raises(ValueError):
        ordna.Store(codec="json")
    with pytest.raises(TypeError):
        ordna.Store(codec=(1, 2))
    wrong = ordna.Store(codec=(lambda value: "text", None and 1 or str))
    with pytest.raises(TypeError, match="bytes"):
        wrong["k"] = []

    class Boom(Exception):
        pass

    def boom(_):
        raise Boom

    raising = ordna.Store({"a": 1}, codec=(boom, boom))
    with pytest.raises(Boom):
        raising["k"] = []
    with pytest.raises(Boom):
        with raising.batch() as batch:
            batch["b"] = 1
            batch["k"] = []
    assert dict(raising) == {"a": 1}

    class Text(str):
        pass

    values = [1, -1, 2**100, 1.0, float("inf"), "é\0", b"\0\x01", None, True, (1.0, (2, "x")), Text("a\0")]
    for value in values:
        plain["k"] = value
        assert plain["k"] == value
        assert type(plain["k"]) is type(value) or isinstance(value, Text)


def test_a_codec_may_use_the_store():
    store = ordna.Store(codec=(lambda value: repr(value).encode(), lambda text: len(store)))
    store["k"] = []
    store["l"] = []
    assert list(store.values()) == [2, 2]


def test_memory_limit():
    store = ordna.Store(memory_limit=100_000)
    with pytest.raises(MemoryError):
        for number in range(100_000):
            store[number] = "x" * 100
    with pytest.raises(MemoryError):
        with store.batch() as batch:
            batch["a" if False else -1] = "x" * 200_000
    assert -1 not in store
    assert len(store) == len(list(store)) > 100


def test_use_after_close():
    store = ordna.Store({at: at + 1 for at in range(1000)})
    items, short = iter(store.items()), iter(store.items(1, 100))
    snapshot = store.snapshot()
    with store:
        pass
    assert store.closed
    for call in (lambda: store[1], lambda: len(store), lambda: store.put_many([1], [2]), store.snapshot,
                 lambda: list(store), lambda: store.update({2: 3}), store.clear, store.memory_usage):
        with pytest.raises(ValueError, match="closed"):
            call()
    # After the store is closed, a snapshot can be read, but an iterator returns only the entries
    # that it has read already.
    assert snapshot[1] == 2 and list(short) == [(at, at + 1) for at in range(1, 101)]
    with pytest.raises(ValueError, match="closed"):
        list(items)
    snapshot.close()
    with pytest.raises(ValueError, match="closed"):
        snapshot[1]
    store.close()


def test_a_snapshot_does_not_change():
    store = ordna.Store({1: 2})
    snapshot = store.snapshot()
    assert not hasattr(snapshot, "__setitem__") or pytest.raises(TypeError, snapshot.__setitem__, 1, 3)
    with pytest.raises(TypeError):
        snapshot.clear()
    with pytest.raises(TypeError):
        ordna.Snapshot()
    store[1] = 3
    assert snapshot == {1: 2}


def test_batches():
    store = ordna.Store({"a": 1})
    with pytest.raises(RuntimeError):
        with store.batch() as batch:
            batch["b"] = 2
            raise RuntimeError
    assert store == {"a": 1}
    with store.batch() as batch:
        batch["b"] = 2
        del batch["a"]
        del batch["nosuch"]
    assert store == {"b": 2}
    with pytest.raises(TypeError):
        with store.batch() as batch:
            batch["c"] = 1
            batch[5] = 1
    assert store == {"b": 2}


def test_prefixes():
    store = ordna.Store({"ab": 1, "a\0": 2, "b": 3, "a": 0})
    assert list(store.prefix("a")) == [("a", 0), ("a\0", 2), ("ab", 1)]
    assert list(store.prefix("", reverse=True, limit=1)) == [("b", 3)]
    pairs = ordna.Store({("SE", 1): 1, ("SE", 2): 2, ("SEX", 1): 3, ("NO", 9): 4})
    assert [key for key, _ in pairs.prefix(("SE",))] == [("SE", 1), ("SE", 2)]
    assert len(list(pairs.prefix(()))) == 4
    with pytest.raises(TypeError):
        store.prefix(5)


WORDS = np.array([5, 0, 2**64 - 1, 5, 7], dtype=np.uint64)


def test_arrays():
    store = ordna.Store()
    store.put_many(WORDS, np.arange(5, dtype=np.uint64))
    assert dict(store) == {0: 1, 5: 3, 7: 4, 2**64 - 1: 2}
    assert store.get_many(WORDS).tolist() == [3, 1, 2, 3, 4]
    assert store.get_many(WORDS[::-2]).tolist() == [4, 2, 3]
    assert store.get_many(array("Q", [0])).tolist() == [1]
    some = np.array([1, 7], dtype=np.uint64)
    assert store.get_many(some, default=9).tolist() == [9, 4]
    with pytest.raises(KeyError, match="1"):
        store.get_many(some)
    out = np.zeros(2, dtype=np.uint64)
    assert store.get_many(some, 0, out=out) is out and out.tolist() == [0, 4]
    for wrong in (np.zeros(1, dtype=np.uint64), np.zeros((2, 1), dtype=np.float64)):
        with pytest.raises((ValueError, TypeError)):
            store.get_many(some, 0, out=wrong)
    out.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        store.get_many(some, 0, out=out)
    for keys in (np.zeros(3, dtype=np.float16), np.zeros(3, dtype=">u8")):
        with pytest.raises(TypeError):
            store.put_many(keys, WORDS[:3])
        with pytest.raises(TypeError):
            store.get_many(keys)
    with pytest.raises(ValueError):
        store.put_many(WORDS.reshape(5, 1), WORDS)
    with pytest.raises(ValueError):
        store.put_many(WORDS, WORDS[:3])
    keys, values = store.scan(1, 8)
    assert (keys.tolist(), values.tolist()) == ([5, 7], [3, 4])
    assert store.scan(reverse=True, limit=1)[0].tolist() == [2**64 - 1]
    assert [len(part) for part in store.scan(limit=0)] == [0, 0]
    store[6] = "text"
    with pytest.raises(TypeError):
        store.scan()
    with pytest.raises(TypeError):
        store.get_many(np.array([6], dtype=np.uint64))
    with pytest.raises(TypeError):
        ordna.Store({"a": 1}).put_many(WORDS, WORDS)


def test_arrow():
    store = ordna.Store()
    store.put_many(pa.array([b"a", b"\0\x01"]), pa.array(["x", "y"], pa.large_string()))
    assert dict(store) == {b"a": "x", b"\0\x01": "y"}
    got = pa.array(store.get_many(pa.array([b"nosuch", b"a"], pa.large_binary())))
    assert got.type == pa.string() and got.to_pylist() == [None, "x"]
    keys, values = store.scan(arrow=True)
    assert pa.array(keys).to_pylist() == [b"\0\x01", b"a"] == keys.tolist()
    assert pa.array(values).to_pylist() == ["y", "x"]
    numbers = ordna.Store()
    numbers.put_many(pa.array([3, 1, 2], pa.uint64())[1:], pa.array([b"1", b"2"]))
    assert dict(numbers) == {1: b"1", 2: b"2"}
    assert pa.array(numbers.get_many(pa.array([1], pa.uint64()))).to_pylist() == [b"1"]
    for wrong in (pa.array([True]), pa.array([[1]])):
        with pytest.raises(TypeError):
            numbers.put_many(wrong, wrong)
    with pytest.raises(ValueError, match="null"):
        numbers.put_many(pa.array([1, None], pa.uint64()), pa.array([1, 2], pa.uint64()))
    # A column of this package is accepted, too.
    other = ordna.Store()
    other.put_many(*numbers.scan(arrow=True))
    assert other == numbers
    assert len(ordna.Store().scan(arrow=True)[0]) == 0


def in_threads(*calls):
    """Runs all at once; the first exception is raised."""
    errors = []

    def guarded(call):
        try:
            call()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_walks_while_others_write():
    store = ordna.Store.fromkeys(range(0, 20_000, 2), "stays")
    end = threading.Event()

    def churn():
        while not end.is_set():
            for key in range(1, 2000, 2):
                store[key] = "comes"
            store.del_range(1, 1)
            keys = np.arange(1, 20_000, 2, dtype=np.uint64)
            store.put_many(keys, keys)
            for key in range(1, 20_000, 2):
                store.pop(key, None)

    def scan():
        try:
            for _ in range(20):
                seen = list(store)
                assert seen == sorted(set(seen))
                assert [key for key in seen if key % 2 == 0] == list(range(0, 20_000, 2))
                with store.snapshot() as snapshot:
                    assert list(snapshot.items()) == list(snapshot.items())
        finally:
            end.set()

    in_threads(churn, scan)
    store._check()


def test_compare_and_set_counts_every_step():
    store = ordna.Store({"n": 0})

    def count():
        for _ in range(3000):
            while True:
                old = store["n"]
                if store.compare_and_set("n", old, old + 1):
                    break

    in_threads(count, count)
    assert store["n"] == 6000


def test_two_threads_pop_every_entry_once():
    store = ordna.Store.fromkeys(range(4000))
    taken = []

    def pop(index):
        while True:
            try:
                taken.append(store.popitem(index)[0])
            except KeyError:
                return

    in_threads(lambda: pop(0), lambda: pop(-1), lambda: pop(0))
    assert sorted(taken) == list(range(4000)) and not store


def test_the_gil_is_released():
    """While one thread is in a bulk call, another one runs Python."""
    store = ordna.Store()
    keys = np.random.default_rng(1).permutation(np.arange(1_000_000, dtype=np.uint64))
    ticks, end = [], threading.Event()

    def tick():
        while not end.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    interval = sys.getswitchinterval()
    # If the GIL were held, the other thread would wait for the whole call at any interval.
    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        began = time.perf_counter()
        store.put_many(keys, keys)
        took = time.perf_counter() - began
    finally:
        end.set()
        ticker.join()
        sys.setswitchinterval(interval)
    within = [at for at in ticks if began < at < began + took]
    assert len(within) > 20, (len(within), took)


def test_callbacks_that_raise_in_threads():
    """Codecs and keys that raise while other threads use the store: nothing is lost."""

    class Odd(Exception):
        pass

    def dumps(value):
        if random.random() < 0.3:
            raise Odd
        return repr(sorted(value)).encode()

    def loads(text):
        if random.random() < 0.1:
            raise Odd
        return set(eval(text))

    class Index:
        def __index__(self):
            raise Odd

    store = ordna.Store(codec=(dumps, loads))
    written = [set(), set()]

    def work(thread):
        for number in range(thread, 6000, 2):
            try:
                store[number] = {number}
                written[thread].add(number)
                list(store.items(number, limit=3))
                store[Index()] = 1
            except Odd:
                pass

    in_threads(lambda: work(0), lambda: work(1), lambda: [store.snapshot() for _ in range(500)])
    assert set(store) == written[0] | written[1]
    store._check()


def test_close_while_others_read():
    for _ in range(30):
        store = ordna.Store.fromkeys(range(3000))

        def read():
            with pytest.raises(ValueError, match="closed"):
                while True:
                    assert len(list(store.items())) == 3000
                    store.get_many(np.arange(3000, dtype=np.uint64), 0) if False else store[5]

        in_threads(read, read, lambda: (time.sleep(0.002), store.close()))


def test_no_references_leak():
    class Value:
        pass

    value, key = "a value" * 10, "a key" * 10
    store = ordna.Store(codec="pickle")
    before = [sys.getrefcount(value), sys.getrefcount(key)]

    def use():
        store[key] = value
        store[key], store.get(key), store.setdefault(key, value), store.pop(key)
        store.put_many([key], [value])
        store.get_many([key], default=value)
        list(store.items()), list(store.prefix("a")), store.floor(key), repr(store)
        with store.batch() as batch:
            batch[key] = value
        with store.snapshot() as snapshot:
            list(snapshot.items())
        store.compare_and_set(key, value, value)
        try:
            store[[]] = value
        except TypeError:
            pass
        words = np.arange(4, dtype=np.uint64)
        numbers = ordna.Store()
        numbers.put_many(words, words)
        numbers.get_many(words)
        pa.array(numbers.scan(arrow=True)[0])

    # The first rounds fill caches of the interpreter.
    for _ in range(100):
        use()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(1000):
        use()
    gc.collect()
    assert [sys.getrefcount(value), sys.getrefcount(key)] == before
    # A leak of one block per round would be 1,000 blocks. Caches of the interpreter and of other
    # tests also change the number.
    assert sys.getallocatedblocks() - blocks < 500


def test_memory_comes_back():
    store = ordna.Store()
    keys = np.arange(50_000, dtype=np.uint64)
    usage = []
    for _ in range(4):
        store.put_many(keys, keys)
        usage.append(store.memory_usage()["total"])
        store.clear()
    assert usage[-1] < 1.5 * usage[0]


def test_load(tmp_path, capsys):
    path = tmp_path / "towns.tsv"
    path.write_text("country\tname\tpopulation\nSE\tLund\t94393\nSE\tÅhus\t10423\n", encoding="utf-8")
    store = ordna.load(path, key=["country", ("population", int)], value=lambda r: r["name"])
    assert list(store.items()) == [(("SE", 10423), "Åhus"), (("SE", 94393), "Lund")]
    assert capsys.readouterr().err == ""
    one = ordna.load(path, key=["name"], progress=True)
    assert one["Lund"] == '{"country":"SE","name":"Lund","population":"94393"}'
    assert "100% 2 records" in capsys.readouterr().err
    lines = tmp_path / "towns.ndjson"
    lines.write_text('{"name": "Lund"}\n\n{"name": "Åhus"}\n', encoding="utf-8")
    assert len(ordna.load(lines, key=["name"], store=one)) == 2
    for text, message in (("a,b\n1\n", "line 2"), ("a,b\n1,2\n", "no field 'c'")):
        bad = tmp_path / "bad.csv"
        bad.write_text(text)
        with pytest.raises(ValueError, match=message):
            ordna.load(bad, key=["c"])
    with pytest.raises(ValueError):
        ordna.load(tmp_path / "towns.xml", key=["a"]) if (tmp_path / "towns.xml").write_text("") == 0 else None
    with pytest.raises(ValueError):
        ordna.load(path, key=[])


def test_a_store_in_a_directory(tmp_path):
    where = tmp_path / "towns"
    with ordna.open(where, sync="always") as store:
        store["Lund"] = 94_393
        store.put_many(["Oslo", "Uppsala"], [1, 177_074])
        assert store.pop("Oslo") == 1
        with pytest.raises(BlockingIOError, match="in use"):
            ordna.open(where)
        path, entries = store.backup()
        assert path.parent == where and entries == 2
        with store.batch() as batch:
            batch["Visby"] = 24_330
            del batch["Lund"]
        copied = store.backup(tmp_path / "copy")
        assert copied == (tmp_path / "copy", 2)
        with pytest.raises(FileExistsError):
            store.backup(tmp_path / "copy")
    with ordna.open(where) as again:
        assert dict(again) == {"Uppsala": 177_074, "Visby": 24_330}
        # The types of the keys are known after the store was read.
        with pytest.raises(TypeError):
            again[5] = 1
        again["Ystad"] = 20_000
    with ordna.open(where) as again:
        assert len(again) == 3
    assert dict(ordna.restore(tmp_path / "copy")) == {"Uppsala": 177_074, "Visby": 24_330}
    with pytest.raises(ValueError, match="no directory"):
        ordna.Store().backup()
    with pytest.raises(ValueError, match="sync"):
        ordna.open(where, sync="sometimes")
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        ordna.open(tmp_path / "file")
    with pytest.raises(OSError):
        ordna.restore(tmp_path / "nosuch")
    manifest = next((tmp_path / "copy").glob("*shard*"), None) or next(p for p in (tmp_path / "copy").iterdir() if p.stat().st_size > 100)
    data = bytearray(manifest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    manifest.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="damaged"):
        ordna.restore(tmp_path / "copy")


def test_writes_to_a_log_release_the_gil(tmp_path):
    with ordna.open(tmp_path / "s", sync="always") as store:
        def write(thread):
            for number in range(200):
                store[thread, number] = number
                if number % 3 == 0:
                    del store[thread, number]

        in_threads(lambda: write(0), lambda: write(1))
        want = dict(store)
    with ordna.open(tmp_path / "s") as again:
        assert dict(again) == want and len(want) == 2 * 133
