"""Views of keys, values and items: in order, indexed, from both ends."""

from __future__ import annotations

import sys
from collections.abc import ItemsView as AbcItemsView
from collections.abc import Iterator, Sequence
from collections.abc import KeysView as AbcKeysView
from collections.abc import ValuesView as AbcValuesView
from itertools import chain, islice
from operator import index as as_index
from typing import Any

KEYS, VALUES, ITEMS = 0, 1, 2


def _index(items: list[Any], value: Any, start: int | None, stop: int | None) -> int:
    return items.index(value, 0 if start is None else start, sys.maxsize if stop is None else stop)


class _View:
    """The part that all views share. `kind` says what the view lists."""

    _kind: int

    def __init__(self, mapping: Any, bounds: tuple[Any, ...] | None = None) -> None:
        self._mapping: Any = mapping
        # lo, hi, inclusive, reverse, limit; None is all.
        self._bounds = bounds

    def _iterate(self, *, backwards: bool = False) -> Any:
        if self._bounds is None:
            chunks = self._mapping._chunks(self._kind, None, None, (True, True), backwards, None)
            return chain.from_iterable(chunks)
        lo, hi, inclusive, reverse, limit = self._bounds
        if backwards and limit is not None:
            return reversed(list(self._iterate()))
        chunks = self._mapping._chunks(self._kind, lo, hi, inclusive, reverse != backwards, limit)
        return chain.from_iterable(chunks)

    def __iter__(self) -> Iterator[Any]:
        items: Iterator[Any] = self._iterate()
        return items

    def __reversed__(self) -> Iterator[Any]:
        items: Iterator[Any] = self._iterate(backwards=True)
        return items

    def __len__(self) -> int:
        if self._bounds is None:
            return len(self._mapping)
        lo, hi, inclusive, _, limit = self._bounds
        count: int = self._mapping.count_range(lo, hi, inclusive)
        return count if limit is None else min(count, limit)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            length = len(self)
            at = range(*index.indices(length))
            if not at:
                return []
            begin, end = min(at[0], at[-1]), max(at[0], at[-1]) + 1
            if self._bounds is None:
                chunks = self._mapping._chunks_from(self._kind, begin, False, end - begin)
                part = list(chain.from_iterable(chunks))
            else:
                part = list(islice(self._iterate(), begin, end))
            return part[:: at.step] if at.step > 0 else part[at[0] - begin :: at.step]
        index = as_index(index)
        if self._bounds is None:
            found = self._mapping._at(max(-sys.maxsize, min(index, sys.maxsize)), self._kind)
            if found is None:
                raise IndexError("list index out of range")
            return found if self._kind == ITEMS else found[0]
        if abs(index) > sys.maxsize:
            raise IndexError("list index out of range")
        items = self._iterate(backwards=index < 0)
        for item in islice(items, -index - 1 if index < 0 else index, None):
            return item
        raise IndexError("list index out of range")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"


class KeysView(_View, AbcKeysView, Sequence):  # type: ignore[type-arg]
    """The keys, in order. `view[i]` and `len` of a view with bounds take O(n)."""

    _kind = KEYS

    @classmethod
    def _from_iterable(cls, iterable: Any) -> set[Any]:
        return set(iterable)

    def __contains__(self, key: object) -> bool:
        if self._bounds is None:
            return key in self._mapping
        return any(key == other for other in self)

    def count(self, value: object) -> int:
        """1 if the key is present, else 0."""
        return 1 if value in self else 0

    def index(self, value: object, start: int | None = None, stop: int | None = None) -> int:
        """The position of a key; ValueError if it is absent. O(n)."""
        if self._bounds is None:
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
                # Another thread has removed it meanwhile.
                pass


class ItemsView(_View, AbcItemsView, Sequence):  # type: ignore[type-arg]
    """Pairs of key and value, in the order of the keys."""

    _kind = ITEMS

    @classmethod
    def _from_iterable(cls, iterable: Any) -> set[Any]:
        return set(iterable)

    def __contains__(self, item: object) -> bool:
        if self._bounds is not None:
            return any(item == other for other in self)
        if not isinstance(item, tuple) or len(item) != 2:
            return False
        found = self._mapping.get(item[0], _View)
        return found is not _View and bool(found == item[1])

    def count(self, value: object) -> int:
        """1 if the pair is present, else 0."""
        return 1 if value in self else 0

    def index(self, value: object, start: int | None = None, stop: int | None = None) -> int:
        """The position of a pair; ValueError if it is absent. O(n)."""
        if value not in self:
            raise ValueError(f"{value!r} is not in list")
        if self._bounds is None:
            key: Any = value[0]  # type: ignore[index]
            at: int = self._mapping.index(key, start, stop)
            return at
        return _index(list(self), value, start, stop)


class ValuesView(_View, AbcValuesView, Sequence):  # type: ignore[type-arg]
    """The values, in the order of their keys."""

    _kind = VALUES

    def __contains__(self, value: object) -> bool:
        return any(value is other or value == other for other in self)

    def count(self, value: object) -> int:
        """How many values are equal to this one. O(n)."""
        return sum(1 for other in self if other == value)

    def index(self, value: object, start: int | None = None, stop: int | None = None) -> int:
        """The first position of a value; ValueError if it is absent. O(n)."""
        return _index(list(self), value, start, stop)
