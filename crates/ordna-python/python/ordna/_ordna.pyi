from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from os import PathLike
from pathlib import Path
from types import GenericAlias
from typing import Any, Generic, Literal, Self, TypeVar, final, overload

from typing_extensions import disjoint_base

__all__ = [
    "Chunks",
    "Column",
    "Conflict",
    "Core",
    "Range",
    "Sorted",
    "Stretches",
    "Transaction",
    "get_many",
    "put_many",
    "scan",
]

__version__: str

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")

@final
class Column:
    """A column of keys or values: numbers, datetimes, bytes or strings. It has the Arrow PyCapsule
    interface, so `pyarrow.array(column)` and `polars.Series(column)` accept it."""
    def __len__(self) -> int: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]: ...
    def fill(self, out: Any) -> None:
        """Copies the column into a writable array of the same type and length. The column must contain
        numbers or datetimes, and no nulls."""
    def to_numpy(self) -> Any:
        """Returns a new NumPy array. The column must contain numbers or datetimes, and no nulls."""
    def tolist(self) -> list[Any]:
        """Returns a list of the items as Python objects, with None for nulls."""

@final
class Chunks:
    def __iter__(self) -> Iterator[list[Any]]: ...
    def __next__(self) -> list[Any]: ...

class Conflict(RuntimeError):
    """Other writes changed what a transaction had read before it could commit."""

@final
class Range:
    def __new__(
        cls,
        core: Core[Any, Any],
        kind: int,
        lo: Any = None,
        hi: Any = None,
        inclusive: tuple[bool, bool] = ...,
        reverse: bool = False,
        limit: int | None = None,
    ) -> Self: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __reversed__(self) -> Iterator[Any]: ...
    def __len__(self) -> int: ...

@final
class Transaction:
    """A transaction: reads of one moment, and writes that a commit applies as one step."""
    def __new__(cls, core: Core[Any, Any]) -> Self: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __delitem__(self, key: Any, /) -> None: ...
    def get(self, key: Any, default: Any = None, /) -> Any:
        """Returns the value of a key, or `default` if the key is absent. O(log n)."""
    def put(self, key: Any, value: Any, ttl: float | timedelta | None = None) -> None:
        """Sets the value of a key, which expires after `ttl`: seconds, a `timedelta`, or None for
        never."""
    def _items(
        self,
        lo: Any,
        hi: Any,
        inclusive: tuple[bool, bool],
        reverse: bool,
        limit: int | None,
    ) -> list[tuple[Any, Any]]: ...
    def commit(self) -> None:
        """Applies the writes as one step and ends the transaction. Raises `Conflict` and applies none
        of them if other writes changed what was read. Releases the GIL."""
    def abandon(self) -> None:
        """Ends the transaction and discards its writes."""

@disjoint_base
class Core(Generic[_K, _V]):
    def __new__(
        cls,
        *,
        memory_limit: int | None = None,
        codec: tuple[Callable[[Any], bytes], Callable[[bytes], Any]] | None = None,
        snapshot_of: Core[Any, Any] | None = None,
        path: str | PathLike[str] | None = None,
        backup: str | PathLike[str] | None = None,
        sync: Literal["always", "second", "never"] = "second",
        repair: bool = False,
    ) -> Self: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: _K, /) -> _V: ...
    def __setitem__(self, key: _K, value: _V, /) -> None: ...
    def __delitem__(self, key: _K, /) -> None: ...
    @overload
    def get(self, key: _K, default: None = None, /) -> _V | None:
        """Returns the value of a key, or `default` if the key is absent. O(log n)."""
    @overload
    def get(self, key: _K, default: _V, /) -> _V: ...
    @overload
    def get(self, key: _K, default: _T, /) -> _V | _T: ...
    def setdefault(self, key: _K, default: Any = None) -> _V:
        """Returns the value of a key. If the key is absent, sets it to `default` first. O(log n)."""
    def put(self, key: _K, value: _V, ttl: float | timedelta | None = None) -> None:
        """Sets the value of a key, which expires after `ttl`: seconds, a `timedelta`, or None for
        never. O(log n)."""
    def expire(self, key: _K, ttl: float | timedelta | None) -> bool:
        """Makes a key expire after `ttl`: seconds, a `timedelta`, or None for never. Returns whether
        the key is present. O(log n)."""
    def ttl(self, key: _K) -> float | None:
        """Returns the seconds until a key expires, or None if it does not expire. Raises KeyError if
        the key is absent. O(log n)."""
    def floor(self, key: _K) -> tuple[_K, _V] | None:
        """Returns the pair with the largest key that is at most `key`, or None if there is none. O(log
        n)."""
    def ceil(self, key: _K) -> tuple[_K, _V] | None:
        """Returns the pair with the smallest key that is at least `key`, or None if there is none.
        O(log n)."""
    def count_range(
        self, lo: _K | None = None, hi: _K | None = None, inclusive: tuple[bool, bool] = ...
    ) -> int:
        """Returns the number of keys within the bounds. A bound of None means no bound. O(log n), plus
        a step for each leaf of some 40 keys that has changed since the last such call. Releases the
        GIL."""
    def del_range(
        self, lo: _K | None = None, hi: _K | None = None, inclusive: tuple[bool, bool] = ...
    ) -> int:
        """Removes all keys within the bounds and returns how many there were. A bound of None means no
        bound. Every snapshot holds all of them or none. O(log n) for each key. Releases the GIL."""
    def clear(self) -> None:
        """Removes all entries. Every snapshot holds all of them or none. O(log n) for each. Releases
        the GIL."""
    def backup(self, path: str | PathLike[str] | None = None) -> tuple[Path, int]:
        """Backs up the current state into the store's directory, or into the new directory `path`.
        Returns the path and the number of entries. Other threads may write during the call.
        Releases the GIL. O(n)."""
    def close(self) -> None:
        """Closes the store or snapshot, and releases the directory of an opened store. Later calls
        raise ValueError. A second call does nothing, and neither does a call in a child process of
        the process that created the object."""
    @property
    def closed(self) -> bool:
        """Whether the store or snapshot is closed."""
    def memory_usage(self) -> dict[str, int]:
        """Returns the memory that the store uses, in bytes, by part. O(n)."""
    def _take(self, key: _K) -> tuple[_V] | None: ...
    def _compare_and_set(
        self, key: Any, expected: tuple[Any, ...], new: tuple[Any, ...]
    ) -> bool: ...
    def _at(self, index: int, kind: int) -> Any: ...
    def _pop(self, index: int) -> tuple[_K, _V] | None: ...
    def _rank(self, key: Any, inclusive: bool) -> int: ...
    def _from_position(
        self, kind: int, position: int, reverse: bool, limit: int
    ) -> Iterator[Any]: ...
    def _with_prefix(self, prefix: Any, reverse: bool, limit: int | None) -> Iterator[Any]: ...
    def _write(self, writes: list[tuple[Any, tuple[Any, ...]]]) -> None: ...
    def _check(self) -> None: ...
    def __class_getitem__(cls, item: Any) -> GenericAlias: ...

@final
class Stretches:
    def __iter__(self) -> Self: ...
    def __next__(self) -> list[Any]: ...

@disjoint_base
class Sorted(Generic[_T]):
    DEFAULT_LOAD_FACTOR: int
    def __new__(cls, function: Callable[[_T], Any] | None = None) -> Self: ...
    @property
    def key(self) -> Callable[[_T], Any] | None:
        """The key function, or None."""
    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    @overload
    def __getitem__(self, key: int, /) -> _T: ...
    @overload
    def __getitem__(self, key: slice, /) -> list[_T]: ...
    def __delitem__(self, key: int | slice, /) -> None: ...
    def __iter__(self) -> Iterator[_T]: ...
    def __reversed__(self) -> Iterator[_T]: ...
    def add(self, value: _T) -> None:
        """Adds an item, after the items that are equal to it. O(log n) comparisons."""
    def update(self, iterable: Iterable[_T]) -> None:
        """Adds all items of an iterable, or none of them if they cannot be compared."""
    def clear(self) -> None:
        """Removes all items."""
    def discard(self, value: _T) -> None:
        """Removes an item if it is present. O(log n) comparisons."""
    def remove(self, value: _T) -> None:
        """Removes an item. O(log n) comparisons. Raises ValueError if the item is absent."""
    def pop(self, index: int = ...) -> _T:
        """Removes the item at an index, the last one by default, and returns it."""
    def bisect_left(self, value: _T) -> int:
        """Returns the number of items that come before `value` and before the items equal to it."""
    def bisect_right(self, value: _T) -> int:
        """Returns the number of items that are at most `value`."""
    def bisect(self, value: _T) -> int:
        """Returns the number of items that are at most `value`. The same as `bisect_right`."""
    def bisect_key_left(self, key: Any) -> int:
        """Returns the number of items whose key is less than `key`."""
    def bisect_key_right(self, key: Any) -> int:
        """Returns the number of items whose key is at most `key`."""
    def bisect_key(self, key: Any) -> int:
        """Returns the number of items whose key is at most `key`. The same as `bisect_key_right`."""
    def count(self, value: _T) -> int:
        """Returns the number of items that are equal to `value`."""
    def index(self, value: _T, start: int | None = None, stop: int | None = None) -> int:
        """Returns the first position of an item. Raises ValueError if the item is absent, or if its
        position is not from `start` to below `stop`."""
    def islice(
        self, start: int | None = None, stop: int | None = None, reverse: bool = False
    ) -> Iterator[_T]:
        """Returns an iterator over the items at the positions of a slice."""
    def irange(
        self,
        minimum: _T | None = None,
        maximum: _T | None = None,
        inclusive: tuple[bool, bool] = ...,
        reverse: bool = False,
    ) -> Iterator[_T]:
        """Returns an iterator over the items from `minimum` to `maximum`. O(log n), then O(1) for each
        item."""
    def irange_key(
        self,
        min_key: Any = None,
        max_key: Any = None,
        inclusive: tuple[bool, bool] = ...,
        reverse: bool = False,
    ) -> Iterator[_T]:
        """Returns an iterator over the items whose keys are from `min_key` to `max_key`."""
    def _include(self, set: set[_T], value: _T) -> None: ...
    def _exclude(self, set: set[_T], value: _T) -> bool: ...
    def _set(self, mapping: dict[_T, Any], key: _T, value: Any, keep: bool) -> Any: ...
    def _unset(self, mapping: dict[_T, Any], key: _T) -> tuple[Any] | None: ...
    def _unset_at(self, mapping: dict[_T, Any], index: int) -> tuple[_T, Any]: ...
    def _listed(
        self,
        mapping: dict[_T, Any],
        kind: int,
        low: _T | None,
        high: _T | None,
        inclusive: tuple[bool, bool],
        reverse: bool,
        limit: int | None,
    ) -> Iterator[Any]: ...
    def _reset(self, load: int) -> None: ...
    def _check(self) -> None: ...

def _after_fork() -> None: ...
def put_many(core: Core[Any, Any], keys: Any, values: Any) -> None: ...
def get_many(core: Core[Any, Any], keys: Any, default: Any, out: Any) -> Any: ...
def scan(
    core: Core[Any, Any],
    lo: Any,
    hi: Any,
    inclusive: tuple[bool, bool],
    reverse: bool,
    limit: int | None,
) -> tuple[Column, Column]: ...
