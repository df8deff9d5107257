"""redis-py's Lock itself: acquired, extended, reacquired, released, lost; and a count under it."""

import sys
import threading
import time

import redis
from redis.exceptions import LockError, LockNotOwnedError

client = redis.Redis(port=int(sys.argv[1]))


def refused(kind, action):
    try:
        action()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected")


lock = client.lock("lock", timeout=10)
assert lock.acquire(blocking=False) and lock.owned() and lock.locked()
other = client.lock("lock", timeout=10)
assert not other.acquire(blocking=False)
refused(LockError, other.release)
assert 9_000 < client.pttl("lock") <= 10_000
lock.extend(5)
assert 14_000 < client.pttl("lock") <= 15_000
lock.extend(7, replace_ttl=True)
assert 6_000 < client.pttl("lock") <= 7_000
lock.reacquire()
assert 9_000 < client.pttl("lock") <= 10_000
# Release, extend and reacquire refuse the lock of another owner, and do not change it.
client.set("lock", "of another", keepttl=True)
refused(LockNotOwnedError, lambda: lock.extend(1))
refused(LockNotOwnedError, lock.reacquire)
refused(LockNotOwnedError, lock.release)
assert client.get("lock") == b"of another"
client.delete("lock")

# After it has expired, its owner no longer has it.
short = client.lock("short", timeout=0.05)
assert short.acquire()
time.sleep(0.1)
refused(LockNotOwnedError, short.release)

# Scripts can be called by their hash after SCRIPT FLUSH, too, because redis-py loads them again.
client.script_flush()
with client.lock("flushed", timeout=10):
    pass

# Mutual exclusion: without it increments are lost.
client.set("count", 0)


def add():
    own = redis.Redis(port=int(sys.argv[1]))
    for _ in range(50):
        with own.lock("counted", timeout=30, sleep=0.001):
            own.set("count", int(own.get("count")) + 1)


threads = [threading.Thread(target=add) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert client.get("count") == b"200", client.get("count")
print("redis-py's Lock: all passed")
