"""Transactions and expiry."""

import datetime as dt
import threading
import time

import pytest

import ordna


def test_a_transaction_is_one_step():
    store = ordna.Store({"ann": 10, "bob": 0})

    def move(tx):
        tx["ann"], tx["bob"] = tx["ann"] - 7, tx["bob"] + 7
        assert tx["bob"] == 7 and store["bob"] == 0
        return "moved"

    assert store.transaction(move) == "moved"
    assert dict(store.items()) == {"ann": 3, "bob": 7}
    with store.begin() as tx:
        del tx["ann"]
        tx["eve"] = 1
        assert "ann" not in tx and tx.get("ann", 5) == 5 and "eve" in tx
        assert tx.items() == [("bob", 7), ("eve", 1)]
        assert tx.items("c", reverse=True, limit=1) == [("eve", 1)]
        with pytest.raises(KeyError):
            tx["ann"]
        with pytest.raises(KeyError):
            del tx["ann"]
    assert list(store) == ["bob", "eve"]
    with pytest.raises(ZeroDivisionError):
        store.transaction(lambda tx: (tx.put("bob", 8), 1 / 0))
    assert store["bob"] == 7
    for use in (tx.commit, lambda: tx["bob"], lambda: tx.items(), lambda: tx.put("a", 1)):
        with pytest.raises(RuntimeError, match="ended"):
            use()


def test_what_was_read_must_not_change():
    store = ordna.Store({1: 1, 5: 5})
    reads = {
        "a value": lambda tx: tx[1],
        "an absent key": lambda tx: tx.get(3),
        "a range": lambda tx: tx.items(2, 4),
    }
    for name, read in reads.items():
        for change in (1, 3):
            tx = store.begin()
            read(tx)
            tx[9] = change
            store[change] = store.get(change, 0) + 1
            if (name == "a value") == (change == 1):
                with pytest.raises(ordna.Conflict):
                    tx.commit()
                assert 9 not in store
            else:
                tx.commit()
                assert store[9] == change
            store.pop(3, None)
            store.pop(9, None)
    runs = []

    def always_late(tx):
        runs.append(tx[1])
        store[1] = tx[1] + 1
        tx[9] = 0

    with pytest.raises(ordna.Conflict):
        store.transaction(always_late, attempts=5)
    assert len(runs) == 5
    with pytest.raises(ValueError):
        store.transaction(always_late, attempts=0)


def test_no_update_is_lost_by_threads():
    store = ordna.Store({"count": 0})

    def add(tx):
        tx["count"] = tx["count"] + 1

    def run():
        for _ in range(500):
            store.transaction(add, attempts=10_000)

    threads = [threading.Thread(target=run) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert store["count"] == 1500


def test_keys_of_a_transaction_can_be_ordered():
    store = ordna.Store({1: 1})
    tx = store.begin()
    with pytest.raises(TypeError):
        tx["text"] = 1
    tx.abandon()
    empty = ordna.Store()
    tx = empty.begin()
    tx[1] = 1
    tx["text"] = 1
    with pytest.raises(TypeError):
        tx.commit()
    assert len(empty) == 0
    store.close()
    with pytest.raises(ValueError, match="closed"):
        store.begin()


def test_entries_expire():
    store = ordna.Store()
    store.put("second", 1, ttl=0.05)
    store.put("minute", 2, ttl=dt.timedelta(minutes=1))
    store.put("never", 3)
    assert 59 < store.ttl("minute") <= 60 and store.ttl("never") is None
    with pytest.raises(KeyError):
        store.ttl("absent")
    with store.begin() as tx:
        tx.put("in a transaction", 4, ttl=0.05)
    assert store.expire("never", 60) and not store.expire("absent", 60)
    assert store.expire("minute", None) and store.ttl("minute") is None
    for ttl in (-1, float("nan"), float("inf"), dt.timedelta(-1)):
        with pytest.raises(ValueError, match="expire"):
            store.put("x", 1, ttl=ttl)
    with pytest.raises((TypeError, AttributeError)):
        store.put("x", 1, ttl="soon")
    end = time.monotonic() + 10
    while "second" in store or "in a transaction" in store:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert list(store) == ["minute", "never"]
    store["never"] = 3
    assert store.ttl("never") is None


def test_lists_as_values_lose_no_update():
    store = ordna.Store(codec="pickle")

    def work(number):
        for step in range(200):
            def add(old):
                old.append((number, step))
                return old
            store.update_value("all", add, default=[])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(store["all"]) == [(number, step) for number in range(3) for step in range(200)]
