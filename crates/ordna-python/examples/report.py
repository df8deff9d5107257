"""An analytics report that reads one snapshot while other threads write."""

import threading

import numpy as np

import ordna

ACCOUNTS = 1000


def main() -> None:
    # Money moves between accounts, and the sum remains the same.
    accounts: ordna.Store[int, int] = ordna.Store()
    accounts.put_many(np.arange(ACCOUNTS, dtype=np.uint64), np.full(ACCOUNTS, 100, np.uint64))
    stop = threading.Event()

    def move(first: int) -> None:
        at = first
        while not stop.is_set():
            giver, taker = at % ACCOUNTS, (at * 7 + 1) % ACCOUNTS
            at += 2
            if giver == taker:
                continue

            def work(tx: ordna.Transaction[int, int]) -> None:
                if tx[giver] > 0:
                    tx[giver] -= 1
                    tx[taker] += 1

            accounts.transaction(work)

    writers = [threading.Thread(target=move, args=(first,)) for first in (0, 1)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(20):
            with accounts.snapshot() as now:
                keys, balances = now.scan()
                assert len(keys) == ACCOUNTS and balances.sum() == 100 * ACCOUNTS
                richest = now.get_many(keys[np.argsort(balances)[-3:]])
                # A snapshot that is read again in another way has the same contents.
                assert sorted(richest) == sorted(balances)[-3:]
                assert sum(now.values()) == 100 * ACCOUNTS
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    print("20 reports agree")


main()
