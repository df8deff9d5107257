"""Edges of types, limits and time: each test failed before its mend."""

import collections
import datetime as dt
import enum
import gc
import gzip
import pickle
import subprocess
import sys
import threading
import weakref
import zoneinfo

import numpy as np
import pyarrow as pa
import pytest

import ordna

LONG = 1 << 524_280
Pair = collections.namedtuple("Pair", "x y")


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    pass


class Index:
    """Raises where an integer is asked for."""

    def __index__(self):
        raise RuntimeError

    def __eq__(self, other):
        return isinstance(other, Index)

    __hash__ = object.__hash__


def test_integers_that_could_not_be_read_are_refused():
    store = ordna.Store()
    for sign in (1, -1):
        with pytest.raises(ValueError, match="bits"):
            store[1] = sign * LONG
        with pytest.raises(ValueError, match="bits"):
            store[sign * LONG] = 1
        store[2] = sign * (LONG - 1)
        assert store[2] == sign * (LONG - 1)
        assert sign * LONG not in store and store.get(sign * LONG) is None
        assert ordna.Store({1: sign * LONG}, codec="pickle")[1] == sign * LONG


def test_pop_with_a_codec_that_writes_other_bytes_each_time():
    count = iter(range(10**6))
    codec = (lambda value: b"%d" % next(count), lambda data: data)
    store = ordna.Store({0: 0, 1: [1], 2: 0}, codec=codec)
    assert store.popitem(1) == (1, b"0") and list(store) == [0, 2]


def test_a_snapshot_keeps_the_types_of_its_keys():
    big = 2**53 + 1
    store = ordna.Store({big: 1})
    ints, view = store.snapshot(), iter(store.snapshot())
    store.clear()
    store[1.0] = 1
    assert [repr(key) for key in [*ints, *view]] == [str(big)] * 2
    floats = store.snapshot()
    store[3] = 1
    assert repr(list(floats)) == "[1.0]"


@pytest.mark.parametrize("call", [
    lambda store: store.pop(1), lambda store: store.popitem(), lambda store: store.popitem(0),
    lambda store: store.popitem(1),
])
def test_an_entry_that_cannot_be_read_stays(call):
    def loads(_):
        raise RuntimeError

    store = ordna.Store({1: [1], 2: [2], 3: [3]}, codec=(pickle.dumps, loads))
    with pytest.raises(RuntimeError):
        call(store)
    assert list(store) == [1, 2, 3]


def test_a_failed_log_refuses_removals(tmp_path):
    script = f"""
import ordna, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = ordna.open({str(tmp_path / "store")!r}, sync="always")
store.update({{1: "x", 2: "y"}})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
try:
    for _ in range(100):
        store[3] = "z" * 1000
except OSError:
    pass
for call in (store.clear, store.del_range, lambda: store.pop(1), lambda: store.__delitem__(1)):
    try:
        call()
    except OSError as error:
        print(type(error).__name__)
assert 1 in store
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split() == ["OSError"] * 4, done.stderr


def test_scan_gives_no_numbers_for_none():
    store = ordna.Store({1: None, 2: 5})
    with pytest.raises(TypeError, match="null"):
        store.scan()
    assert store.scan(arrow=True)[1].tolist() == [None, 5]


@pytest.mark.parametrize("value", [
    Pair(1, 2), Level.LOW, Text("a"), (1, Pair(1, 2)), [1], Index(), "\ud800", True, None, 5, 2.5,
    dt.datetime(2020, 1, 1, fold=1),
    dt.datetime(2020, 6, 1, tzinfo=zoneinfo.ZoneInfo("UTC")), dt.datetime(2020, 1, 1),
])
def test_a_codec_keeps_the_type(value):
    back = ordna.Store({1: value}, codec="pickle")[1]
    assert type(back) is type(value) and back == value
    if isinstance(value, tuple):
        assert [type(part) for part in back] == [type(part) for part in value]
    if isinstance(value, dt.datetime):
        assert (back.fold, repr(back.tzinfo)) == (value.fold, repr(value.tzinfo))


def test_a_codec_takes_arrays():
    for array in (np.array([1, 2]), np.array([5]), np.array(5), np.array([1.5])):
        back = ordna.Store({1: array}, codec="pickle")[1]
        assert type(back) is np.ndarray and back.shape == array.shape and (back == array).all()


def test_keys_of_one_call_must_be_orderable():
    for keys in ([1, "a"], [(5, "a"), (5, 1)], [None, 1]):
        store = ordna.Store()
        with pytest.raises(TypeError, match="ordered"):
            store.put_many(keys, [1] * len(keys))
        with pytest.raises(TypeError, match="ordered"):
            with store.batch() as batch:
                batch.update(dict.fromkeys(keys, 1))
        assert not store
    store = ordna.Store()
    store.put_many([(1, "a"), (2, 5)], [1, 2])
    assert len(store) == 2
    with pytest.raises(TypeError):
        store[(1, 5)] = 1


@pytest.mark.parametrize("call", [
    lambda store: store.update({2: 5}),
    lambda store: store.setdefault(2, 5),
    lambda store: store.compare_and_set(2, 99, 5),
    lambda store: store.compare_and_set(2, 2, 5),
    lambda store: store.put_many([3, 4], [1]),
    lambda store: store.put_many([3, 4], [1, object()]),
    lambda store: store.put_many([2], [1]),
    lambda store: store.put_many(np.array([2], dtype=np.uint64), np.array([2], dtype=np.uint64)),
    lambda store: store._write([(7, (1,)), (8, (object(),))]),
    lambda store: (store.clear(), store.update({5: 1}), store.pop(5), store.update({1.0: 1, 2.0: 2})),
])
def test_only_keys_that_enter_have_a_say_in_types(call):
    store = ordna.Store({1.0: 1, 2.0: 2})
    try:
        call(store)
    except (TypeError, ValueError):
        pass
    assert repr(list(store)) == "[1.0, 2.0]"


def test_a_codec_that_refers_to_its_store_is_collected(tmp_path):
    class Holder:
        def __init__(self, path):
            self.store = ordna.open(path, codec=(self.dumps, self.loads))
            self.store.update((at, [at]) for at in range(100))
            self.scan = iter(self.store.items())
            self.snapshot = self.store.snapshot()

        def dumps(self, value):
            return pickle.dumps(value)

        def loads(self, data):
            return pickle.loads(data)

    holder = Holder(tmp_path / "store")
    gc.collect()
    assert holder.store[1] == [1] and next(holder.scan) == (0, [0])
    seen = weakref.ref(holder)
    del holder
    gc.collect()
    assert seen() is None
    ordna.open(tmp_path / "store").close()


def test_a_walk_ends_with_its_store(tmp_path):
    store = ordna.open(tmp_path / "store")
    store.put_many(range(5000), range(5000))
    scan, view = iter(store), store.items()
    assert next(scan) == 0
    store.close()
    assert repr(store) == "<Store, closed>"
    with pytest.raises(ValueError, match="closed"):
        list(scan)
    with pytest.raises(ValueError, match="closed"):
        list(view)
    again = ordna.open(tmp_path / "store")
    with pytest.raises(BlockingIOError) as caught:
        ordna.open(tmp_path / "store")
    assert caught.value.errno
    with again.snapshot() as snapshot:
        scan = iter(snapshot)
    with pytest.raises(ValueError, match="closed"):
        list(scan)


def test_positions_in_views():
    store = ordna.Store({number: str(number) for number in range(5000)})
    for view in (store.keys(), store.values(), store.items(), store.keys(0, 4999)):
        everything = list(view)
        for index in (0, 1, 4999, -1, -2, -5000, 2500):
            assert view[index] == everything[index]
        for part in (slice(-3, None), slice(5, 2, -1), slice(None, None, -1700), slice(9, 3),
                     slice(10, 4000, 999), slice(-2, -9, -2)):
            assert view[part] == everything[part]
        for index in (5000, -5001, 10**30, -(10**30)):
            with pytest.raises(IndexError):
                view[index]
        with pytest.raises(TypeError):
            view["a"]
        first = everything[0]
        assert view.index(first, stop=1) == 0
        with pytest.raises(ValueError):
            view.index(first, 1)
    for reverse in (False, True):
        keys = list(range(10, 20))
        assert list(store.islice(10, 20, reverse)) == (keys[::-1] if reverse else keys)
        assert list(store.islice(20, 10, reverse)) == []
    for call in (store.peekitem, store.popitem):
        with pytest.raises(TypeError):
            call("a")
        for index in (10**30, -(10**30), 5000):
            with pytest.raises(IndexError):
                call(index)
    for call in (store.keys, store.items, store.scan):
        with pytest.raises(ValueError, match="negative"):
            call(limit=-1)
    with pytest.raises(ValueError, match="negative"):
        ordna.Store().prefix("a", limit=-1)


def test_positions_while_others_write():
    store, end = ordna.Store(dict.fromkeys(range(3000))), threading.Event()

    def churn():
        while not end.is_set():
            store.del_range(0, 2999)
            store.put_many(list(range(3000)), list(range(3000)))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            assert len(list(store.islice(10, 20, reverse=True))) <= 10
            assert len(store.keys()[5:10]) <= 5
            del store.keys()[0:3]
    finally:
        end.set()
        thread.join()


def test_the_key_none_is_a_key():
    store = ordna.Store({None: 1})
    assert (store.bisect_left(None), store.bisect_right(None), store.index(None)) == (0, 1, 0)
    with pytest.raises(TypeError):
        ordna.Store({1: 1}).bisect_left(None)


def test_load_of_other_files(tmp_path):
    def load(name, data, **how):
        (tmp_path / name).write_bytes(data)
        return dict(ordna.load(tmp_path / name, key=["id"], **how))

    assert list(load("a.csv", b"\xef\xbb\xbfid,n\n\n1,x\n\n2,y\n\n")) == ["1", "2"]
    long = b"id\tn\n1\t" + b"x" * 140_000 + b"\n"
    assert load("a.tsv", long, value=lambda record: len(record["n"])) == {"1": 140_000}
    for name, data, message in [
        ("b.csv", b"id\n1\n" + b"x" * 140_000 + b"\n", "b.csv, line 3: field larger"),
        ("c.csv", b"id\n1\n\xff\n", "c.csv"),
        ("d.ndjson", b'{"id":1}\n{bad\n', "d.ndjson, line 2"),
        ("e.csv.gz", gzip.compress(b"id\n1\n" * 99)[:-9], "e.csv.gz"),
        ("f.csv.gz", b"id\n1\n", "f.csv.gz"),
    ]:
        with pytest.raises(ValueError, match=message):
            load(name, data)
    with pytest.raises(TypeError) as caught:
        load("g.ndjson", b'{"id":1}\n{"id":"x"}\n')
    assert "g.ndjson" in "".join(caught.value.__notes__)


def test_load_without_standard_error(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_bytes(b"id\n1\n")
    monkeypatch.setattr(sys, "stderr", None)
    assert len(ordna.load(tmp_path / "a.csv", key=["id"], progress=True)) == 1
    assert len(ordna.load(tmp_path / "a.csv", key=["id"])) == 1


def test_what_can_be_no_key_is_absent():
    deep = ()
    for _ in range(70):
        deep = (deep,)
    store = ordna.Store({1: 1})
    for key in (object(), "\ud800", deep, "x" * 70_000, 1j):
        assert key not in store and store.get(key, 5) == 5 and store.pop(key, 6) == 6
        assert not store.compare_and_set(key, 1, ordna.ABSENT)
        assert store.compare_and_set(key, ordna.ABSENT, ordna.ABSENT)
        assert store.get_many([key, 1]) == [None, 1]
        with pytest.raises(KeyError):
            store[key]
        with pytest.raises(KeyError):
            del store[key]
        with store.batch() as batch:
            del batch[key]
    with pytest.raises(TypeError, match="unhashable"):
        [] in store
    assert store.setdefault(1, default=object()) == 1
    with pytest.raises(TypeError, match="store"):
        store.snapshot().memory_usage()


def test_moments_at_the_ends_of_time():
    zone = dt.timezone(dt.timedelta(hours=-1))
    late = dt.datetime.max.replace(tzinfo=zone)
    store = ordna.Store()
    assert late not in store
    with pytest.raises(ValueError, match="years"):
        store[late] = 1
    edge = dt.datetime.max.replace(tzinfo=dt.timezone.utc)
    berlin = dt.datetime(1895, 1, 1, 3, 4, 5, 678, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    store.update({edge: 1, berlin: 2})
    assert list(store) == [berlin, edge] and store[berlin.astimezone(zone)] == 2


def test_get_many_refuses_what_has_no_meaning():
    store, words = ordna.Store({1: 1}), np.zeros(1, dtype=np.uint64)
    with pytest.raises(TypeError, match="out"):
        store.get_many([1], out=words)
    with pytest.raises(TypeError, match="default"):
        store.get_many(pa.array([1], pa.uint64()), 0)
    with pytest.raises(ValueError, match="dimension"):
        store.get_many(words, 0, out=np.zeros((1, 1), dtype=np.uint64))


def test_the_directory_is_free_when_close_returns(tmp_path):
    store = ordna.open(tmp_path / "d")
    store["a"] = 1
    snapshot = store.snapshot()
    store.close()
    again = ordna.open(tmp_path / "d")
    assert again["a"] == 1 and snapshot["a"] == 1
    again["a"] = 2
    assert snapshot["a"] == 1


def test_the_version_is_that_of_the_package():
    import importlib.metadata

    assert ordna.__version__ == importlib.metadata.version("ordna")


def test_large_values_are_read_one_at_a_time():
    for kind, ahead in (("keys", 64), ("values", 1), ("items", 1)):
        store = ordna.Store({at: bytes(1 << 20) for at in range(64)})
        scan = iter(getattr(store, kind)(0, 99))
        assert sum(1 for _ in getattr(store, kind)(0, 99)) == 64
        store.close()
        assert sum(1 for _ in zip(range(ahead), scan)) == ahead
        if ahead < 64:
            with pytest.raises(ValueError, match="closed"):
                next(scan)
    store = ordna.Store({at: bytes(1 << 20) for at in range(64)})
    assert list(store.keys(reverse=True, limit=40)) == list(range(63, 23, -1))
    assert sum(len(value) for value in store.values(limit=40)) == 40 << 20


def test_more_items_than_one_call_takes_are_refused():
    store = ordna.Store()
    many = np.broadcast_to(np.uint64(1), 1 << 32)
    with pytest.raises(ValueError, match="4294967296 items"):
        store.put_many(many, many)
    with pytest.raises(ValueError, match="at most 4294967295"):
        store.put_many(range(1 << 32), range(1 << 32))
    assert len(store) == 0
