"""Views of keys, values and items that are ordered, indexable and reversible."""

from __future__ import annotations

import sys
from collections.abc import ItemsView as AbcItemsView
from collections.abc import Iterator, Sequence
from collections.abc import KeysView as AbcKeysView
from collections.abc import ValuesView as AbcValuesView
from itertools import islice
from operator import index as as_index
from typing import Any, Generic, TypeVar, overload

from ._ordna import Range

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

KEYS, VALUES, ITEMS = 0, 1, 2


def as_limit(limit: Any) -> int | None:
    """Returns a limit as a size. Raises ValueError if it is negative."""
    if limit is None:
        return None
    number: int = as_index(limit)
    if number < 0:
        raise ValueError(f"limit must not be negative: {number}")
    return min(number, sys.maxsize)


def _index(items: list[Any], value: Any, start: int | None, stop: int | None) -> int:
    return items.index(value, 0 if start is None else start, sys.maxsize if stop is None else stop)


class _View(Generic[T]):
    """The methods that all views share. `_kind` is the part of each entry that the view lists."""

    _kind: int

    def __init__(self, mapping: Any, lo: Any = None, hi: Any = None,
                 inclusive: tuple[bool, bool] = (True, True), reverse: bool = False,
                 limit: int | None = None) -> None:
        if limit is not None:
            limit = as_limit(limit)
        self._mapping: Any = mapping
        self._range: Any = Range(mapping, self._kind, lo, hi, inclusive, reverse, limit)
        self._is_all = lo is None and hi is None and not reverse and limit is None
        self._is_limited = limit is not None

    def __iter__(self) -> Iterator[T]:
        items: Iterator[T] = iter(self._range)
        return items

    def __reversed__(self) -> Iterator[T]:
        # The limit counts from the front of the view.
        items: Iterator[T] = reversed(list(self._range) if self._is_limited else self._range)
        return items

    def __len__(self) -> int:
        length: int = len(self._range)
        return length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            length = len(self)
            at = range(*index.indices(length))
            if not at:
                return []
            begin, end = min(at[0], at[-1]), max(at[0], at[-1]) + 1
            if self._is_all:
                part = list(self._mapping._from_position(self._kind, begin, False, end - begin))
            else:
                part = list(islice(self, begin, end))
            return part[:: at.step] if at.step > 0 else part[at[0] - begin :: at.step]
        index = as_index(index)
        if self._is_all:
            found = self._mapping._at(max(-sys.maxsize, min(index, sys.maxsize)), self._kind)
            if found is None:
                raise IndexError("list index out of range")
            return found if self._kind == ITEMS else found[0]
        if abs(index) > sys.maxsize:
            raise IndexError("list index out of range")
        items = reversed(self) if index < 0 else iter(self)
        for item in islice(items, -index - 1 if index < 0 else index, None):
            return item
        raise IndexError("list index out of range")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"


class KeysView(_View[K], AbcKeysView[K], Sequence[K]):
    """A view of the keys, in order. With bounds, `view[i]` takes O(n)."""

    _kind = KEYS

    @classmethod
    def _from_iterable(cls, iterable: Any) -> set[Any]:
        return set(iterable)

    def __contains__(self, key: object) -> bool:
        if self._is_all:
            return key in self._mapping
        return any(key == other for other in self)

    def count(self, value: object) -> int:
        """Returns 1 if the key is present, otherwise 0."""
        return 1 if value in self else 0

    def index(self, value: object, start: int | None = None, stop: int | None = None) -> int:
        """Returns the position of a key. O(n) with bounds. Raises ValueError if the key is absent."""
        if self._is_all:
            at: int = self._mapping.index(value, start, stop)
            return at
        return _index(list(self), value, start, stop)

    def __delitem__(self, index: int | slice) -> None:
        if not isinstance(index, slice):
            del self._mapping[self[index]]
            return
        for key in self[index]:
            try:
                del self._mapping[key]
            except KeyError:
                # Another thread has removed the entry in the meantime.
                pass


class ItemsView(_View[tuple[K, V]], AbcItemsView[K, V], Sequence[tuple[K, V]]):
    """A view of the pairs of key and value, in the order of the keys."""

    _kind = ITEMS

    @classmethod
    def _from_iterable(cls, iterable: Any) -> set[Any]:
        return set(iterable)

    def __contains__(self, item: object) -> bool:
        if not self._is_all:
            return any(item == other for other in self)
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        found = self._mapping.get(item[0], _View)
        return found is not _View and bool(found == item[1])

    def count(self, value: object) -> int:
        """Returns 1 if the pair is present, otherwise 0."""
        return 1 if value in self else 0

    def index(self, value: object, start: int | None = None, stop: int | None = None) -> int:
        """Returns the position of a pair. O(n) with bounds. Raises ValueError if the pair is absent."""
        if value not in self:
            raise ValueError(f"{value!r} is not in list")
        if self._is_all:
            key: Any = value[0]  # type: ignore[index]
            at: int = self._mapping.index(key, start, stop)
            return at
        return _index(list(self), value, start, stop)


class ValuesView(_View[V], AbcValuesView[V], Sequence[V]):
    """A view of the values, in the order of their keys."""

    _kind = VALUES

    def __contains__(self, value: object) -> bool:
        return any(value is other or value == other for other in self)

    def count(self, value: object) -> int:
        """Returns the number of values that are equal to `value`. O(n)."""
        return sum(1 for other in self if other == value)

    def index(self, value: object, start: int | None = None, stop: int | None = None) -> int:
        """Returns the first position of a value. O(n). Raises ValueError if the value is absent."""
        return _index(list(self), value, start, stop)
