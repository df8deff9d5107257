"""A store and its snapshots belong to the process that made them: in a child every call raises."""

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import ordna

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system does not fork")

# Each of these is a call on a store or snapshot of the parent.
CALLS = [
    lambda s: s["a"],
    lambda s: s.get("a"),
    lambda s: "a" in s,
    len,
    bool,
    list,
    repr,
    lambda s: s == {},
    lambda s: list(s.items("a", "b")),
    lambda s: s.floor("a"),
    lambda s: s.bisect("a"),
    lambda s: s.peekitem(),
    lambda s: s.count_range(),
    lambda s: s.get_many(["a"]),
    lambda s: s.scan(arrow=True),
    lambda s: s.closed,
]
WRITES = [
    lambda s: s.__setitem__("b", 2),
    lambda s: s.__delitem__("a"),
    lambda s: s.pop("a"),
    lambda s: s.popitem(),
    lambda s: s.setdefault("b", 2),
    lambda s: s.compare_and_set("a", 1, 2),
    lambda s: s.put_many(["b"], [2]),
    lambda s: s.update({"b": 2}),
    lambda s: s.del_range(),
    lambda s: s.clear(),
    lambda s: s.snapshot(),
    lambda s: s.copy(),
    lambda s: s.memory_usage(),
    lambda s: s.backup(),
    lambda s: s._write([("b", (2,))]),
]


def in_child(body, seconds=30):
    """What `body` returns or raises in a child of this process."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            answer = repr(body())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode()[:4000])
        os._exit(0)
    os.close(writer)
    try:
        if not select.select([reader], [], [], seconds)[0]:
            os.kill(child, signal.SIGKILL)
            return "the child hangs"
        return os.read(reader, 4000).decode()
    finally:
        os.close(reader)
        os.waitpid(child, 0)


def raised(calls, store):
    """Numbers of the calls that did not raise RuntimeError."""
    wrong = []
    for at, call in enumerate(calls):
        try:
            call(store)
            wrong.append(at)
        except RuntimeError as error:
            assert "the process that forked this one" in str(error)
    return wrong


@pytest.mark.parametrize("sync", ["always", "second"])
def test_calls_in_a_child_raise(tmp_path, sync):
    store = ordna.open(tmp_path / "d", sync=sync)
    store["a"] = 1
    store.put_many([f"z{at}" for at in range(100)], range(100))
    # The iterator has read its first 32 entries.
    snapshot, walk = store.snapshot(), iter(store)
    assert in_child(lambda: raised([*CALLS, *WRITES], store)) == "[]"
    assert in_child(lambda: raised([*CALLS, lambda s: s.copy()], snapshot)) == "[]"
    assert in_child(lambda: raised([list], walk)) == "[]"
    # A store that the child creates can be used.
    made = in_child(lambda: ordna.Store({1: 2}).snapshot()[1])
    assert made == "2"
    assert in_child(lambda: dict(ordna.open(tmp_path / "child", sync=sync))) == "{}"
    # A grandchild is another process, too.
    assert in_child(lambda: in_child(lambda: raised(CALLS, store))) == "'[]'"
    store["c"] = 3
    snapshot.close()
    store.close()
    assert dict(ordna.open(tmp_path / "d").items("a", "c")) == {"a": 1, "c": 3}


def test_a_child_ends_without_a_word(tmp_path):
    program = f"""
        import os, ordna, sys
        for sync in ("always", "second", "never"):
            store = ordna.open({str(tmp_path)!r} + "/" + sync, sync=sync)
            store["a"] = 1
            with ordna.Store({{1: 2}}) as memory, store.snapshot() as snapshot:
                child = os.fork()
                if child == 0:
                    if sync == "second":
                        store.close()
                        snapshot.close()
                    sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            store["b"] = 2
            store.close()
            assert dict(ordna.open({str(tmp_path)!r} + "/" + sync)) == {{"a": 1, "b": 2}}
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True,
                          timeout=120)
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_a_living_child_does_not_keep_the_directory(tmp_path):
    store = ordna.open(tmp_path / "d")
    store["a"] = 1
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    try:
        # The child has the files, but not the lock; nor does its use of the store release it.
        with pytest.raises(BlockingIOError):
            ordna.open(tmp_path / "d")
        store.close()
        assert dict(ordna.open(tmp_path / "d")) == {"a": 1}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_child_does_not_unlock_the_directory(tmp_path):
    store = ordna.open(tmp_path / "d")
    assert in_child(store.close) == "None"
    with pytest.raises(BlockingIOError):
        ordna.open(tmp_path / "d")
    store["a"] = 1


def test_forks_while_a_thread_writes():
    keys = np.arange(200_000, dtype=np.uint64)
    store, stop = ordna.Store(), threading.Event()

    def write():
        while not stop.is_set():
            store.put_many(keys, keys)

    def use():
        own = ordna.Store()
        for key in range(200):
            own[key] = key
        return raised([lambda s: s.__setitem__(1, 2), lambda s: s.get_many(keys)], store), len(own)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        time.sleep(0.1)
        assert [in_child(use) for _ in range(20)] == ["([], 200)"] * 20
    finally:
        stop.set()
        thread.join()


def _in_pool(_):
    return raised(CALLS, _SHARED)


def test_processes_of_multiprocessing():
    global _SHARED
    _SHARED = ordna.Store({"a": 1})
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(_in_pool, range(4)).get(60) == [[]] * 4
    assert _SHARED["a"] == 1
