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
    """The value of a key that is absent, in `compare_and_set`."""

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
    """What a store and a snapshot can both do: all that reads.

    Iteration over a store is live. It gives every key that is present all the time once and in
    order. A key that comes or goes meanwhile may be given or not. A snapshot does not change.
    """

    def __iter__(self) -> Iterator[K]:
        return iter(_ordna.Range(self, KEYS))

    def __reversed__(self) -> Iterator[K]:
        return reversed(_ordna.Range(self, KEYS))

    def keys(self, lo: K | None = None, hi: K | None = None, inclusive: tuple[bool, bool] = (True, True),
             reverse: bool = False, limit: int | None = None) -> KeysView[K]:
        """The keys, all or within the bounds, in order."""
        return KeysView(self, lo, hi, inclusive, reverse, limit)

    def values(self, lo: K | None = None, hi: K | None = None, inclusive: tuple[bool, bool] = (True, True),
               reverse: bool = False, limit: int | None = None) -> ValuesView[V]:
        """The values, all or of the keys within the bounds, in the order of the keys."""
        return ValuesView(self, lo, hi, inclusive, reverse, limit)

    def items(self, lo: K | None = None, hi: K | None = None, inclusive: tuple[bool, bool] = (True, True),
              reverse: bool = False, limit: int | None = None) -> ItemsView[K, V]:
        """Pairs of key and value, all or within the bounds, in the order of the keys."""
        return ItemsView(self, lo, hi, inclusive, reverse, limit)

    def prefix(self, prefix: Any, reverse: bool = False,
               limit: int | None = None) -> Iterator[tuple[K, V]]:
        """Pairs whose keys begin with a string, with bytes, or with the elements of a tuple."""
        return self._with_prefix(prefix, reverse, as_limit(limit))

    def irange(self, minimum: K | None = None, maximum: K | None = None,
               inclusive: tuple[bool, bool] = (True, True),
               reverse: bool = False) -> Iterator[K]:
        """The keys within the bounds, in order. O(log n), then O(1) for each."""
        return iter(_ordna.Range(self, KEYS, minimum, maximum, inclusive, reverse))

    def islice(self, start: int | None = None, stop: int | None = None,
               reverse: bool = False) -> Iterator[K]:
        """The keys at these positions. The first one is found by its position."""
        start, stop, _ = slice(start, stop).indices(len(self))
        count = max(stop - start, 0)
        first = stop - 1 if reverse and count else start
        return self._from_position(KEYS, first, reverse, count)

    def bisect_left(self, key: K) -> int:
        """How many keys are less than `key`, counted 40 at a time."""
        return self._rank(key, False)

    def bisect_right(self, key: K) -> int:
        """How many keys are at most `key`, counted 40 at a time."""
        return self._rank(key, True)

    bisect = bisect_right
    bisect_key = bisect_right
    bisect_key_left = bisect_left
    bisect_key_right = bisect_right

    def index(self, value: K, start: int | None = None, stop: int | None = None) -> int:
        """The position of a key; ValueError if it is absent or not within the positions."""
        if value not in self:
            raise ValueError(f"{value!r} is not in list")
        at = self.bisect_left(value)
        begin, end, _ = slice(start, stop).indices(len(self))
        if not begin <= at < end:
            raise ValueError(f"{value!r} is not in list")
        return at

    def peekitem(self, index: int = -1) -> tuple[K, V]:
        """The pair at a position, counted 40 at a time."""
        found: tuple[K, V] | None = self._at(_position(index), ITEMS)
        if found is None:
            raise IndexError("list index out of range")
        return found

    def get_many(self, keys: Any, default: Any = None, out: Any = None) -> Any:
        """The values of many keys, read with the GIL released.

        Keys as an array of numbers or of datetime64: an array of uint64, int64, float64 or
        datetime64[us], as the values need; an absent key has the value `default`, or raises
        KeyError if there is none. Keys as a column of Arrow: a `Column`, with nulls for absent
        keys. With `out`, an array of one of these types: the values are written into it. Other
        keys: a list.
        """
        return _ordna.get_many(self, keys, default, out)

    def scan(self, lo: K | None = None, hi: K | None = None, inclusive: tuple[bool, bool] = (True, True),
             reverse: bool = False, limit: int | None = None, arrow: bool = False) -> Any:
        """The keys and the values within the bounds as two arrays, read with the GIL released.

        Arrays of NumPy for numbers of 64 bits and datetimes, those in UTC without their zone; with
        `arrow`, columns of these, bytes or str.
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
    """The state of a store at one moment. It does not change, and outlives its store."""

    _codec: Any

    def __new__(cls, *_: object, **__: object) -> Self:
        raise TypeError("a snapshot comes from Store.snapshot()")

    def copy(self) -> Store[K, V]:
        """A new store with these entries."""
        return Store(self._pairs(), codec=self._codec)


class Store(Mapping_[K, V], MutableMapping[K, V]):
    """An ordered mapping that many threads use at once.

    `Store(items, memory_limit=…, codec=…)`: `items` is a mapping or pairs. Keys and values are
    int, float, str, bytes, bool, None, dates, times, or tuples of these; with a codec (`"pickle"`
    or a pair of functions) values are anything that it takes.
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
        """A new store with these keys and one value."""
        return cls((key, value) for key in iterable)

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, /, default: V) -> V: ...
    @overload
    def pop(self, key: K, /, default: T) -> V | T: ...
    def pop(self, key: K, default: Any = ABSENT) -> Any:
        """Removes a key and returns its value, or the default if it is absent."""
        found = self._take(key)
        if found is not None:
            return found[0]
        if default is ABSENT:
            raise KeyError(key)
        return default

    def popitem(self, index: int = -1) -> tuple[K, V]:
        """Removes the pair at a position, the last one by default, and returns it."""
        found: tuple[K, V] | None = self._pop(_position(index))
        if found is None:
            if not self:
                raise KeyError("popitem(): dictionary is empty")
            raise IndexError("list index out of range")
        return found

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Sets the pairs of a mapping, of an iterable, and of the keyword arguments."""
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
        """Sets the key to `new` if its value is `expected`, as one step; returns whether it was.

        `ABSENT` as `expected`: if the key is absent; as `new`: the key is removed. Encodings are
        compared: 1 is not 1.0, and what a codec makes must be the same bytes each time.
        """
        return self._compare_and_set(key, _boxed(expected), _boxed(new))

    def put_many(self, keys: Any, values: Any) -> None:
        """Sets many keys. Arrays of numbers or datetime64 and columns of Arrow are written with the
        GIL released.

        Of a key that is given twice the later value stays. The call is not one step.
        """
        _ordna.put_many(self, keys, values)

    def batch(self) -> Batch[K, V]:
        """Writes that every snapshot holds all or none of."""
        return Batch(self)

    def begin(self) -> Transaction[K, V]:
        """A transaction, as a block: it is committed at its end, or abandoned by an exception.

        `Conflict` if something that it read was changed by others in the meantime.
        """
        return Transaction(self)

    def transaction(self, work: Callable[[Transaction[K, V]], Result], attempts: int = 100) -> Result:
        """Runs `work` with a transaction and commits it; returns what `work` returned.

        If it conflicts with other writes, runs it again after a pause that grows; the last
        `Conflict` is raised. An exception of `work` abandons it.
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
        """Sets a key to `change(value)` as one step; returns the new value.

        An absent key has a copy of `default`. The function is called again if others change the
        value meanwhile. It may change the value that it is given, if it returns it.
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
        """The state of this moment. It takes O(1), however much there is."""
        core: Snapshot[K, V] = _ordna.Core.__new__(Snapshot, snapshot_of=self)
        core._codec = self._codec
        return core

    def copy(self) -> Self:
        """A new store with the entries of this moment."""
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
        """Will remove the key if it is present then."""
        self._writes.append((key, ()))

    def update(self, items: Items[K, V]) -> None:
        """Will set the pairs of a mapping or of an iterable."""
        pairs = items.items() if isinstance(items, Mapping) else items
        self._writes.extend((key, (value,)) for key, value in pairs)

    def __len__(self) -> int:
        return len(self._writes)

    def commit(self) -> None:
        """Applies the writes: all, or none if one is refused."""
        self._store._write(self._writes)
        self._writes = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.commit()
        self._writes = []


class Transaction(Generic[K, V]):
    """Reads of one moment and writes of its own, which `commit` applies as one step.

    `commit` raises `Conflict`, and changes nothing, if something that was read is no longer as it
    was: a value, an absent key, the entries of a range. A transaction that writes nothing never
    conflicts. It has ended after `commit`, `abandon`, or its block.
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
        """The value of a key, or the default if it is absent."""
        return self._transaction.get(key, default)

    def put(self, key: K, value: V, ttl: float | timedelta | None = None) -> None:
        """Sets the value of a key, which expires after `ttl`."""
        self._transaction.put(key, value, ttl)

    def items(self, lo: K | None = None, hi: K | None = None, inclusive: tuple[bool, bool] = (True, True),
              reverse: bool = False, limit: int | None = None) -> list[tuple[K, V]]:
        """Pairs of key and value, all or within the bounds, in order."""
        return self._transaction._items(lo, hi, inclusive, reverse, as_limit(limit))

    def commit(self) -> None:
        """Applies the writes: all as one step, or none."""
        self._has_ended = True
        self._transaction.commit()

    def abandon(self) -> None:
        """Ends the transaction without its writes."""
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
    """Opens the store of a directory, which is created if it is not there.

    Writes are logged there: durable when they return (`sync="always"`), within a second
    (`"second"`), or when the system likes (`"never"`). `close` or the end of a `with` block lets go of
    the directory once its snapshots are closed too. BlockingIOError if another store has it.
    """
    return Store._at_path(  # type: ignore[no-any-return]
        codec=codec, memory_limit=memory_limit, path=path, sync=sync, repair=repair
    )


def restore(
    path: str | os.PathLike[str], *, memory_limit: int | None = None, codec: Codec | None = None
) -> Store[Any, Any]:
    """A store in memory of what a backup holds."""
    return Store._at_path(codec=codec, memory_limit=memory_limit, backup=path)  # type: ignore[no-any-return]
