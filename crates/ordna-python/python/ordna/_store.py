"""Store, snapshot, batch and transaction."""

from __future__ import annotations

import copy
import operator
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from datetime import timedelta
from reprlib import recursive_repr
from typing import Any, Generic, Literal, Self, TypeVar, overload

from . import _ordna
from ._views import ITEMS, KEYS, ItemsView, KeysView, ValuesView, as_limit


class _Absent:
    """The type of `ABSENT`, which stands for an absent key in `compare_and_set`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "ordna.ABSENT"

    def __reduce__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
Result = TypeVar("Result")

# The conversion of values of other types to bytes and back.
Codec = Literal["pickle"] | tuple[Callable[[Any], bytes], Callable[[bytes], Any]]
Items = Mapping[K, V] | Iterable[tuple[K, V]]
Sync = Literal["always", "second", "never"]

_CODECS = {"pickle": (pickle.dumps, pickle.loads)}


def _functions(codec: Any) -> Any:
    if codec is None:
        return None
    if isinstance(codec, str):
        if codec not in _CODECS:
            raise ValueError(f"the codecs are {sorted(_CODECS)}, not {codec!r}")
        return _CODECS[codec]
    dumps, loads = codec
    if not (callable(dumps) and callable(loads)):
        raise TypeError("a codec is a pair of functions: objects to bytes, and back")
    return dumps, loads


def _boxed(value: Any) -> tuple[Any, ...]:
    return () if value is ABSENT else (value,)


def _position(index: Any) -> int:
    # There are no entries at positions beyond the largest size.
    return max(-sys.maxsize, min(operator.index(index), sys.maxsize))


class Mapping_(_ordna.Core[K, V], Mapping[K, V]):
    """The read methods that stores and snapshots share.

    Iteration over a store is live: it yields every key that is present throughout exactly once and
    in order. Keys that other threads insert or remove during the iteration may or may not be
    yielded. A snapshot does not change.
    """

    def __iter__(self) -> Iterator[K]:
        return iter(_ordna.Range(self, KEYS))

    def __reversed__(self) -> Iterator[K]:
        return reversed(_ordna.Range(self, KEYS))

    def keys(self, lo: K | None = None, hi: K | None = None, inclusive: tuple[bool, bool] = (True, True),
             reverse: bool = False, limit: int | None = None) -> KeysView[K]:
        """Returns a view of the keys, or of those within the bounds, in order.

        A bound of None means no bound. `inclusive` says whether each bound itself belongs to the range.
        `reverse` lists the keys in descending order. `limit` is the maximum number of keys. O(log n),
        then O(1) for each key.
        """
        return KeysView(self, lo, hi, inclusive, reverse, limit)

    def values(self, lo: K | None = None, hi: K | None = None, inclusive: tuple[bool, bool] = (True, True),
               reverse: bool = False, limit: int | None = None) -> ValuesView[V]:
        """Returns a view of the values in the order of their keys. The arguments are those of `keys`."""
        return ValuesView(self, lo, hi, inclusive, reverse, limit)

    def items(self, lo: K | None = None, hi: K | None = None, inclusive: tuple[bool, bool] = (True, True),
              reverse: bool = False, limit: int | None = None) -> ItemsView[K, V]:
        """Returns a view of the pairs of key and value in order. The arguments are those of `keys`.

        >>> from ordna import Store
        >>> list(Store({"a": 1, "b": 2, "c": 3}).items("b", reverse=True))
        [('c', 3), ('b', 2)]
        """
        return ItemsView(self, lo, hi, inclusive, reverse, limit)

    def prefix(self, prefix: Any, reverse: bool = False,
               limit: int | None = None) -> Iterator[tuple[K, V]]:
        """Returns an iterator over the pairs whose keys begin with `prefix`, in order.

        `prefix` is a string, bytes, or a tuple, whose elements are the first elements of the keys.
        O(log n), then O(1) for each pair.

        >>> from ordna import Store
        >>> list(Store({("NO", "Oslo"): 1, ("SE", "Lund"): 2}).prefix(("SE",)))
        [(('SE', 'Lund'), 2)]
        """
        return self._with_prefix(prefix, reverse, as_limit(limit))

    def irange(self, minimum: K | None = None, maximum: K | None = None,
               inclusive: tuple[bool, bool] = (True, True),
               reverse: bool = False) -> Iterator[K]:
        """Returns an iterator over the keys within the bounds, in order.

        O(log n), then O(1) for each key.
        """
        return iter(_ordna.Range(self, KEYS, minimum, maximum, inclusive, reverse))

    def islice(self, start: int | None = None, stop: int | None = None,
               reverse: bool = False) -> Iterator[K]:
        """Returns an iterator over the keys at the positions of a slice.

        Finding the first key costs as much as `peekitem`; then O(1) for each key.
        """
        start, stop, _ = slice(start, stop).indices(len(self))
        count = max(stop - start, 0)
        first = stop - 1 if reverse and count else start
        return self._from_position(KEYS, first, reverse, count)

    def bisect_left(self, key: K) -> int:
        """Returns the number of keys that are less than `key`.

        O(log n), plus a step for each leaf of some 40 keys that has changed since the last such call.
        """
        return self._rank(key, False)

    def bisect_right(self, key: K) -> int:
        """Returns the number of keys that are at most `key`. Costs as much as `bisect_left`."""
        return self._rank(key, True)

    bisect = bisect_right
    bisect_key = bisect_right
    bisect_key_left = bisect_left
    bisect_key_right = bisect_right

    def index(self, value: K, start: int | None = None, stop: int | None = None) -> int:
        """Returns the position of a key. Costs as much as `bisect_left`.

        Raises ValueError if the key is absent or its position is not from `start` to below `stop`.
        """
        if value not in self:
            raise ValueError(f"{value!r} is not in list")
        at = self.bisect_left(value)
        begin, end, _ = slice(start, stop).indices(len(self))
        if not begin <= at < end:
            raise ValueError(f"{value!r} is not in list")
        return at

    def peekitem(self, index: int = -1) -> tuple[K, V]:
        """Returns the pair at a position; negative positions count from the end.

        O(log n) at both ends. Otherwise costs as much as `bisect_left`. Raises IndexError if there is
        no such position.
        """
        found: tuple[K, V] | None = self._at(_position(index), ITEMS)
        if found is None:
            raise IndexError("list index out of range")
        return found

    def get_many(self, keys: Any, default: Any = None, out: Any = None) -> Any:
        """Returns the values of many keys. O(log n) for each.

        The type of the result follows the type of `keys`:

        - an array of numbers or of datetime64: a NumPy array of uint64, int64, float64 or
          datetime64[us], as the values need. An absent key has the value `default`. Without a
          default, it raises KeyError.
        - a column of Arrow: a `Column`, with nulls for absent keys.
        - any other iterable: a list, with `default` for absent keys.

        With `out`, an array of one of the types above, the values are written into it instead. The
        GIL is released while an array or a column of keys is read.
        """
        return _ordna.get_many(self, keys, default, out)

    def scan(self, lo: K | None = None, hi: K | None = None, inclusive: tuple[bool, bool] = (True, True),
             reverse: bool = False, limit: int | None = None, arrow: bool = False) -> Any:
        """Returns the keys and the values within the bounds as two NumPy arrays. Releases the GIL.

        Keys and values must be 64-bit integers, floats or datetimes; datetimes in UTC lose their time
        zone. If `arrow` is true, returns two objects of type `Column` instead, which can also contain
        bytes or str.
        """
        columns = _ordna.scan(self, lo, hi, inclusive, reverse, as_limit(limit))
        if arrow:
            return columns
        return tuple(column.to_numpy() for column in columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _pairs(self) -> Iterator[tuple[K, V]]:
        return iter(_ordna.Range(self, ITEMS))

    @recursive_repr()
    def __repr__(self) -> str:
        if self.closed:
            return f"<{type(self).__name__}, closed>"
        pairs = ", ".join(f"{key!r}: {value!r}" for key, value in self._pairs())
        return f"{type(self).__name__}({{{pairs}}})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return dict(self._pairs()) == dict(other.items())

    __hash__ = None  # type: ignore[assignment]


class Snapshot(Mapping_[K, V]):
    """The state of a store at one moment, which `Store.snapshot` returns.

    Later writes do not change it. It remains usable after its store is closed. A snapshot keeps old
    values in memory, so close it when it is no longer needed, or use it in a `with` block.
    """

    _codec: Any

    def __new__(cls, *_: object, **__: object) -> Self:
        raise TypeError("a snapshot comes from Store.snapshot()")

    def copy(self) -> Store[K, V]:
        """Returns a new store in memory with the entries of the snapshot. O(n)."""
        return Store(self._pairs(), codec=self._codec)


class Store(Mapping_[K, V], MutableMapping[K, V]):
    """An ordered mapping that many threads can use at the same time.

    `items` is a mapping or an iterable of pairs. Keys and values are int, float, str, bytes, bool,
    None, dates, times, or tuples of these. They are copied into the store, so a read returns a new
    object.

    `memory_limit` is in bytes; a write that would exceed it raises MemoryError. `codec` allows values
    of other types: `"pickle"`, or a pair of functions that convert an object to bytes and back. Load
    pickles only from data that you trust.

    >>> import ordna
    >>> store = ordna.Store({"b": 2, "a": 1})
    >>> store["c"] = 3
    >>> list(store), store.floor("bb"), store.count_range("b")
    (['a', 'b', 'c'], ('b', 2), 2)
    """

    _codec: Any
    _memory_limit: int | None

    def __new__(cls, items: Items[K, V] = (), *, memory_limit: int | None = None,
                codec: Codec | None = None) -> Self:
        functions = _functions(codec)
        self = super().__new__(cls, memory_limit=memory_limit, codec=functions)
        self._codec, self._memory_limit = codec, memory_limit
        return self

    def __init__(self, items: Items[K, V] = (), *, memory_limit: int | None = None,
                 codec: Codec | None = None) -> None:
        self.update(items)

    @classmethod
    def _at_path(cls, *, codec: Any, memory_limit: int | None, **where: Any) -> Any:
        functions = _functions(codec)
        core = _ordna.Core.__new__(cls, memory_limit=memory_limit, codec=functions, **where)
        core._codec, core._memory_limit = codec, memory_limit
        return core

    @classmethod
    def fromkeys(cls, iterable: Iterable[Any], value: Any = None) -> Any:
        """Returns a new store in which every key of the iterable has the same value."""
        return cls((key, value) for key in iterable)

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, /, default: V) -> V: ...
    @overload
    def pop(self, key: K, /, default: T) -> V | T: ...
    def pop(self, key: K, default: Any = ABSENT) -> Any:
        """Removes a key and returns its value. O(log n).

        If the key is absent, returns `default`, or raises KeyError without one.
        """
        found = self._take(key)
        if found is not None:
            return found[0]
        if default is ABSENT:
            raise KeyError(key)
        return default

    def popitem(self, index: int = -1) -> tuple[K, V]:
        """Removes the pair at a position, the last one by default, and returns it.

        Costs as much as `peekitem`. Raises KeyError if the store is empty, and IndexError if there is
        no such position.
        """
        found: tuple[K, V] | None = self._pop(_position(index))
        if found is None:
            if not self:
                raise KeyError("popitem(): dictionary is empty")
            raise IndexError("list index out of range")
        return found

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Sets the pairs of a mapping or an iterable, and of the keyword arguments.

        Each pair is a separate write. Use `batch` for writes that become visible together.
        """
        if len(args) > 1:
            raise TypeError(f"update expected at most 1 argument, got {len(args)}")
        for items in (*args, kwargs):
            if isinstance(items, Mapping_):
                items = items._pairs()
            elif isinstance(items, Mapping) or hasattr(items, "keys"):
                items = [(key, items[key]) for key in items.keys()]
            for key, value in items:
                self[key] = value

    def compare_and_set(self, key: K, expected: V | _Absent = ABSENT, new: V | _Absent = ABSENT) -> bool:
        """Sets a key to `new` if its value is `expected`, as one step. O(log n).

        Returns whether the value was `expected`. `ABSENT` as `expected` requires that the key is
        absent; `ABSENT` as `new` removes the key. The encodings are compared: 1 differs from 1.0, and a
        codec must convert equal objects to equal bytes.

        >>> from ordna import ABSENT, Store
        >>> store = Store()
        >>> store.compare_and_set("lock", ABSENT, "me"), store.compare_and_set("lock", ABSENT, "you")
        (True, False)
        """
        return self._compare_and_set(key, _boxed(expected), _boxed(new))

    def put_many(self, keys: Any, values: Any) -> None:
        """Sets many keys. O(log n) for each.

        `keys` and `values` are iterables, arrays of numbers or of datetime64, or columns of Arrow. The
        GIL is released while arrays and columns are written. If a key occurs twice, its last value
        wins. Each pair is a separate write.
        """
        _ordna.put_many(self, keys, values)

    def batch(self) -> Batch[K, V]:
        """Returns a batch: writes that are applied together at the end of its `with` block.

        Every snapshot holds all of them or none, and so does a store that is opened after a crash. If
        the block ends with an exception, nothing is written.

        >>> from ordna import Store
        >>> store = Store()
        >>> with store.batch() as batch:
        ...     batch["a"] = 1
        ...     batch["b"] = 2
        >>> len(store)
        2
        """
        return Batch(self)

    def begin(self) -> Transaction[K, V]:
        """Begins a transaction, for use in a `with` block.

        The end of the block commits it, and raises `Conflict` if other writes changed what it had read.
        An exception in the block abandons it. `transaction` retries after conflicts.
        """
        return Transaction(self)

    def transaction(self, work: Callable[[Transaction[K, V]], Result], attempts: int = 100) -> Result:
        """Calls `work` with a transaction, commits it, and returns the result of `work`.

        After a conflict with other writes, calls `work` again with a new transaction, up to `attempts`
        times, so `work` should have no other effects. If the last attempt conflicts, its `Conflict` is
        raised. An exception of `work` abandons the transaction.

        >>> from ordna import Store
        >>> store = Store({"ann": 10, "bob": 0})
        >>> def pay(tx):
        ...     tx["ann"] -= 7
        ...     tx["bob"] += 7
        >>> store.transaction(pay)
        >>> list(store.items())
        [('ann', 3), ('bob', 7)]
        """
        for attempt in range(1, attempts + 1):
            transaction = Transaction(self)
            with transaction:
                done = work(transaction)
                try:
                    transaction.commit()
                except _ordna.Conflict:
                    if attempt == attempts:
                        raise
                else:
                    return done
            if attempt > 3:
                time.sleep(random.random() * min(2.0**attempt / 1e6, 1e-3))
        raise ValueError(f"a transaction has at least one attempt, not {attempts}")

    def update_value(self, key: K, change: Callable[[V], V], default: V | None = None) -> V:
        """Replaces the value of a key by `change(value)` as one step, and returns the new value.

        If the key is absent, `change` gets a copy of `default`. It may modify its argument in place, but
        must return the new value. It is called again if another thread changes the value at the same
        time, so it should have no other effects. The new value does not expire.

        >>> from ordna import Store
        >>> store = Store()
        >>> store.update_value("visits", lambda count: count + 1, default=0)
        1
        """

        def work(transaction: Transaction[K, V]) -> V:
            value: Any = transaction.get(key, ABSENT)
            if value is ABSENT:
                value = copy.deepcopy(default)
            changed = change(value)
            transaction[key] = changed
            return changed

        return self.transaction(work)

    def snapshot(self) -> Snapshot[K, V]:
        """Takes a snapshot: the current state, which later writes do not change.

        The cost does not depend on the number of entries: O(log s) with s live snapshots.

        >>> from ordna import Store
        >>> store = Store({"a": 1})
        >>> with store.snapshot() as before:
        ...     store.clear()
        ...     len(before), len(store)
        (1, 0)
        """
        core: Snapshot[K, V] = _ordna.Core.__new__(Snapshot, snapshot_of=self)
        core._codec = self._codec
        return core

    def copy(self) -> Self:
        """Returns a new store in memory with the entries of this moment. O(n)."""
        with self.snapshot() as snapshot:
            return self._like(snapshot._pairs())

    __copy__ = copy

    def _like(self, items: Any) -> Self:
        return type(self)(items, memory_limit=self._memory_limit, codec=self._codec)

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Mapping):
            return NotImplemented
        both = self.copy()
        both.update(other)
        return both

    def __ror__(self, other: Any) -> Any:
        if not isinstance(other, Mapping):
            return NotImplemented
        both = self._like(other)
        both.update(self)
        return both

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __reduce__(self) -> Any:
        with self.snapshot() as snapshot:
            items = list(snapshot._pairs())
        return _rebuild, (type(self), items, self._memory_limit, self._codec)


def _rebuild(cls: Any, items: Any, memory_limit: int | None, codec: Any) -> Any:
    return cls(items, memory_limit=memory_limit, codec=codec)


class Batch(Generic[K, V]):
    """Collects writes and applies them together when its block ends without an exception."""

    def __init__(self, store: Store[K, V]) -> None:
        self._store = store
        self._writes: list[tuple[Any, tuple[Any, ...]]] = []

    def __setitem__(self, key: K, value: V) -> None:
        self._writes.append((key, (value,)))

    def __delitem__(self, key: K) -> None:
        """Adds a write that removes the key, if it is present by then."""
        self._writes.append((key, ()))

    def update(self, items: Items[K, V]) -> None:
        """Adds writes that set the pairs of a mapping or of an iterable."""
        pairs = items.items() if isinstance(items, Mapping) else items
        self._writes.extend((key, (value,)) for key, value in pairs)

    def __len__(self) -> int:
        return len(self._writes)

    def commit(self) -> None:
        """Applies the writes and empties the batch. If the store refuses one of them, none is applied."""
        self._store._write(self._writes)
        self._writes = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.commit()
        self._writes = []


class Transaction(Generic[K, V]):
    """Reads of one moment, and writes that `commit` applies as one step.

    A transaction sees the state in which it began, and its own writes. `commit` raises `Conflict` and
    changes nothing if other writes changed what it had read: a value, an absent key, or the entries of
    a range. A transaction without writes never conflicts. The transaction ends with `commit`,
    `abandon`, or its `with` block; one that is older than a minute cannot commit (TimeoutError). One
    thread at a time may use it.
    """

    def __init__(self, store: Store[K, V]) -> None:
        self._transaction = _ordna.Transaction(store)
        self._has_ended = False

    def __contains__(self, key: object) -> bool:
        return key in self._transaction

    def __getitem__(self, key: K) -> V:
        value: V = self._transaction[key]
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._transaction[key] = value

    def __delitem__(self, key: K) -> None:
        del self._transaction[key]

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: T) -> V | T: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Returns the value of a key, or `default` if the key is absent. O(log n)."""
        return self._transaction.get(key, default)

    def put(self, key: K, value: V, ttl: float | timedelta | None = None) -> None:
        """Sets the value of a key, which expires after `ttl`: seconds, a `timedelta`, or None for never."""
        self._transaction.put(key, value, ttl)

    def items(self, lo: K | None = None, hi: K | None = None, inclusive: tuple[bool, bool] = (True, True),
              reverse: bool = False, limit: int | None = None) -> list[tuple[K, V]]:
        """Returns a list of the pairs of key and value, or of those within the bounds, in order."""
        return self._transaction._items(lo, hi, inclusive, reverse, as_limit(limit))

    def commit(self) -> None:
        """Applies the writes as one step and ends the transaction.

        Raises `Conflict` and applies none of them if other writes changed what was read.
        """
        self._has_ended = True
        self._transaction.commit()

    def abandon(self) -> None:
        """Ends the transaction and discards its writes."""
        self._has_ended = True
        self._transaction.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._has_ended:
            return
        if kind is None:
            self.commit()
        else:
            self.abandon()


def open_store(
    path: str | os.PathLike[str],
    *,
    sync: Sync = "second",
    memory_limit: int | None = None,
    codec: Codec | None = None,
    repair: bool = False,
) -> Store[Any, Any]:
    """Opens the store of a directory, which is created if it does not exist. O(n).

    Every write is logged. `sync` says when it becomes durable: before it returns (`"always"`), within
    a second (`"second"`), or when the operating system decides (`"never"`). `close`, or the end of a
    `with` block, releases the directory. `memory_limit` and `codec` are as in `Store`. `repair` opens a
    store whose log is damaged before its end: the log is truncated there, and all later records are
    lost.

    Raises BlockingIOError if another store uses the directory, ValueError if a file is damaged, and
    OSError if the system refuses an operation.
    """
    return Store._at_path(  # type: ignore[no-any-return]
        codec=codec, memory_limit=memory_limit, path=path, sync=sync, repair=repair
    )


def restore(
    path: str | os.PathLike[str], *, memory_limit: int | None = None, codec: Codec | None = None
) -> Store[Any, Any]:
    """Returns a store in memory with the entries of a backup, which is not changed. O(n).

    Raises ValueError if a file of the backup is damaged, and OSError if it cannot be read.
    """
    return Store._at_path(codec=codec, memory_limit=memory_limit, backup=path)  # type: ignore[no-any-return]
