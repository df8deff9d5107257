"""Sorted lists, sets and dicts of any objects, with the interface of sortedcontainers.

The objects are kept by reference and ordered by Python's comparison. `ordna.Store` differs: it keeps
copies, can be used by many threads at the same time, and can be kept in a directory.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import (
    Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, MutableSequence, MutableSet,
    Sequence, Set, ValuesView,
)
from itertools import chain
from reprlib import recursive_repr
from typing import Any, Generic, TypeVar

from . import _ordna

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_BOTH = (True, True)


class _Missing:
    """The type of `_MISSING`, which says that `pop` got no default."""

    def __repr__(self) -> str:
        return "<not given>"


_MISSING: Any = _Missing()


def identity(value: T) -> T:
    """The default key function of a `SortedKeyList`: returns its argument."""
    return value


def _compare(compare: Callable[[Any, Any], bool]) -> Callable[[SortedList[Any], object], bool]:
    """Returns a method that compares a list with a sequence, element by element."""

    def compared(self: SortedList[Any], other: object) -> Any:
        if not isinstance(other, Sequence):
            return NotImplemented
        if len(self) != len(other):
            if compare is operator.eq or compare is operator.ne:
                return compare is operator.ne
        for mine, theirs in zip(self, other):
            if not mine == theirs:
                return compare(mine, theirs)
        return compare(len(self), len(other))

    compared.__name__ = f"__{compare.__name__}__"
    return compared


class SortedList(_ordna.Sorted[T], MutableSequence[T]):
    """A list whose items are always in order. Equal items keep the order in which they were added.

    Items are compared as Python compares them. If all are `int`, all `float`, all `str` or all `bytes`,
    the comparison does not call Python. `SortedList(items, key=f)` returns a `SortedKeyList`.

    >>> from ordna import SortedList
    >>> numbers = SortedList([3, 1, 2])
    >>> numbers.add(2)
    >>> numbers, numbers[-1], numbers.bisect_left(2)
    (SortedList([1, 2, 2, 3]), 3, 1)
    """

    def __new__(cls, iterable: Iterable[T] | None = None,
                key: Callable[[T], Any] | None = None) -> SortedList[T]:
        if key is None:
            return super().__new__(cls, None)
        if cls is not SortedList:
            raise TypeError("a subclass that takes a key function inherits SortedKeyList")
        return super().__new__(SortedKeyList, key)

    def __init__(self, iterable: Iterable[T] | None = None,
                 key: Callable[[T], Any] | None = None) -> None:
        if iterable is not None:
            self.update(iterable)

    def _like(self, values: Iterable[T]) -> Any:
        return type(self)(values)

    def copy(self) -> Any:
        """Returns a list of the same items."""
        return self._like(self)

    __copy__ = copy

    def __add__(self, other: Iterable[T]) -> Any:
        return self._like(chain(self, other))

    __radd__ = __add__

    def __iadd__(self, other: Iterable[T]) -> Any:
        self.update(other)
        return self

    def __mul__(self, number: int) -> Any:
        return self._like(list(self) * number)

    __rmul__ = __mul__

    def __imul__(self, number: int) -> Any:
        values = list(self) * number
        self.clear()
        self.update(values)
        return self

    def __setitem__(self, index: Any, value: Any) -> None:
        """Raises NotImplementedError, because the order determines the position of each item."""
        raise NotImplementedError("use del list[index] and list.add(value)")

    def append(self, value: T) -> None:
        """Raises NotImplementedError, because the order determines the position of each item."""
        raise NotImplementedError("use list.add(value)")

    def extend(self, values: Iterable[T]) -> None:
        """Raises NotImplementedError, because the order determines the position of each item."""
        raise NotImplementedError("use list.update(values)")

    def insert(self, index: int, value: T) -> None:
        """Raises NotImplementedError, because the order determines the position of each item."""
        raise NotImplementedError("use list.add(value)")

    def reverse(self) -> None:
        """Raises NotImplementedError, because the list is always in ascending order."""
        raise NotImplementedError("use reversed(list)")

    __eq__ = _compare(operator.eq)
    __ne__ = _compare(operator.ne)
    __lt__ = _compare(operator.lt)
    __le__ = _compare(operator.le)
    __gt__ = _compare(operator.gt)
    __ge__ = _compare(operator.ge)
    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return type(self), (list(self),)

    @recursive_repr()
    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r})"


class SortedKeyList(SortedList[T]):
    """A sorted list whose items are ordered by the result of a key function.

    >>> from ordna import SortedKeyList
    >>> SortedKeyList(["bb", "a", "ccc"], key=len)[0]
    'a'
    """

    def __new__(cls, iterable: Iterable[T] | None = None,
                key: Callable[[T], Any] = identity) -> SortedKeyList[T]:
        return _ordna.Sorted.__new__(cls, key)

    def __init__(self, iterable: Iterable[T] | None = None,
                 key: Callable[[T], Any] = identity) -> None:
        super().__init__(iterable)

    def _like(self, values: Iterable[T]) -> Any:
        return type(self)(values, key=self.key)  # type: ignore[arg-type]

    def __reduce__(self) -> Any:
        return type(self), (list(self), self.key)

    @recursive_repr()
    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self)!r}, key={self.key!r})"


SortedListWithKey = SortedKeyList


class _Ordered(Generic[T]):
    """The methods of sets and dicts that call the same method of the list of their members."""

    _list: SortedList[T]

    @property
    def key(self) -> Callable[[T], Any] | None:
        """The key function, or None."""
        return self._list.key

    def bisect_left(self, value: T) -> int:
        """Returns the number of members that come before `value`. O(log n)."""
        return self._list.bisect_left(value)

    def bisect_right(self, value: T) -> int:
        """Returns the number of members that come before `value` or are equal to it. O(log n)."""
        return self._list.bisect_right(value)

    bisect = bisect_right

    def bisect_key_left(self, key: Any) -> int:
        """Returns the number of members whose key is less than `key`."""
        return self._list.bisect_key_left(key)

    def bisect_key_right(self, key: Any) -> int:
        """Returns the number of members whose key is at most `key`."""
        return self._list.bisect_key_right(key)

    bisect_key = bisect_key_right

    def index(self, value: T, start: int | None = None, stop: int | None = None) -> int:
        """Returns the position of a member.

        Raises ValueError if the member is absent or its position is not from `start` to below `stop`.
        """
        return self._list.index(value, start, stop)

    def islice(self, start: int | None = None, stop: int | None = None,
               reverse: bool = False) -> Iterator[T]:
        """Returns an iterator over the members at the positions of a slice."""
        return self._list.islice(start, stop, reverse)

    def irange(self, minimum: T | None = None, maximum: T | None = None,
               inclusive: tuple[bool, bool] = _BOTH, reverse: bool = False) -> Iterator[T]:
        """Returns an iterator over the members from `minimum` to `maximum`."""
        return self._list.irange(minimum, maximum, inclusive, reverse)

    def irange_key(self, min_key: Any = None, max_key: Any = None,
                   inclusive: tuple[bool, bool] = _BOTH, reverse: bool = False) -> Iterator[T]:
        """Returns an iterator over the members whose keys are from `min_key` to `max_key`."""
        return self._list.irange_key(min_key, max_key, inclusive, reverse)

    def __reversed__(self) -> Iterator[T]:
        return reversed(self._list)

    def _reset(self, load: int) -> None:
        self._list._reset(load)


def _compare_sets(compare: Callable[[Any, Any], bool]) -> Callable[[SortedSet[Any], object], bool]:
    def compared(self: SortedSet[Any], other: object) -> Any:
        if isinstance(other, SortedSet):
            return compare(self._set, other._set)
        return compare(self._set, other) if isinstance(other, Set) else NotImplemented

    compared.__name__ = f"__{compare.__name__}__"
    return compared


class SortedSet(_Ordered[T], MutableSet[T], Sequence[T]):
    """A set whose members are in order. They must be hashable.

    >>> from ordna import SortedSet
    >>> SortedSet("banana") | {"c"}
    SortedSet(['a', 'b', 'c', 'n'])
    """

    def __init__(self, iterable: Iterable[T] | None = None,
                 key: Callable[[T], Any] | None = None) -> None:
        self._set: set[T] = set()
        self._list = SortedList(key=key)
        if iterable is not None:
            self.update(iterable)

    def _like(self, values: Iterable[T]) -> SortedSet[T]:
        return type(self)(values, key=self.key)

    @classmethod
    def _from_iterable(cls, iterable: Iterable[Any]) -> SortedSet[Any]:
        return cls(iterable)

    def __contains__(self, value: object) -> bool:
        return value in self._set

    def __len__(self) -> int:
        return len(self._set)

    def __iter__(self) -> Iterator[T]:
        return iter(self._list)

    def __getitem__(self, index: Any) -> Any:
        return self._list[index]

    def __delitem__(self, index: int | slice) -> None:
        if isinstance(index, slice):
            self._set.difference_update(self._list[index])
        else:
            self._set.remove(self._list[index])
        del self._list[index]

    def add(self, value: T) -> None:
        """Adds a member."""
        self._list._include(self._set, value)

    def discard(self, value: T) -> None:
        """Removes a member if it is present."""
        self._list._exclude(self._set, value)

    def remove(self, value: T) -> None:
        """Removes a member. Raises KeyError if it is absent."""
        if not self._list._exclude(self._set, value):
            raise KeyError(value)

    def pop(self, index: int = -1) -> T:
        """Removes the member at an index, the last one by default, and returns it."""
        value = self._list.pop(index)
        self._set.remove(value)
        return value

    def clear(self) -> None:
        """Removes all members."""
        self._set.clear()
        self._list.clear()

    def copy(self) -> SortedSet[T]:
        """Returns a set of the same members."""
        return self._like(self._set)

    __copy__ = copy

    def count(self, value: T) -> int:
        """Returns 1 if the member is present, otherwise 0."""
        return 1 if value in self._set else 0

    def difference(self, *iterables: Iterable[Any]) -> SortedSet[T]:
        """Returns a set of the members that are in none of the iterables."""
        return self._like(self._set.difference(*iterables))

    def difference_update(self, *iterables: Iterable[Any]) -> SortedSet[T]:
        """Removes the members that are in one of the iterables."""
        return self._become(self._set.difference(*iterables))

    def intersection(self, *iterables: Iterable[Any]) -> SortedSet[T]:
        """Returns a set of the members that are in all of the iterables."""
        return self._like(self._set.intersection(*iterables))

    def intersection_update(self, *iterables: Iterable[Any]) -> SortedSet[T]:
        """Keeps the members that are in all of the iterables."""
        return self._become(self._set.intersection(*iterables))

    def symmetric_difference(self, other: Iterable[T]) -> SortedSet[T]:
        """Returns a set of the members that are either in this set or in `other`, but not in both."""
        return self._like(self._set.symmetric_difference(other))

    def symmetric_difference_update(self, other: Iterable[T]) -> SortedSet[T]:
        """Removes the members that are in `other`, and adds the members of `other` that were absent."""
        return self._become(self._set.symmetric_difference(other))

    def union(self, *iterables: Iterable[T]) -> SortedSet[T]:
        """Returns a set of the members of this set and of all iterables."""
        return self._like(chain(self, *iterables))

    def update(self, *iterables: Iterable[T]) -> SortedSet[T]:
        """Adds the members of all iterables, or none if they cannot be compared."""
        new = set(chain(*iterables)) - self._set
        self._list.update(new)
        self._set |= new
        return self

    def _become(self, values: set[T]) -> SortedSet[T]:
        """Replaces the members."""
        self._list.update(values - self._set)
        for value in self._set - values:
            self._list.remove(value)
        self._set.clear()
        self._set |= values
        return self

    def issubset(self, other: Iterable[Any]) -> bool:
        """Whether all members are in `other`."""
        return self._set.issubset(other)

    def issuperset(self, other: Iterable[Any]) -> bool:
        """Whether all of `other` are members."""
        return self._set.issuperset(other)

    def isdisjoint(self, other: Iterable[Any]) -> bool:
        """Whether none of `other` is a member."""
        return self._set.isdisjoint(other)

    __sub__ = difference
    __and__ = __rand__ = intersection
    __xor__ = __rxor__ = symmetric_difference  # type: ignore[assignment]
    __or__ = __ror__ = union  # type: ignore[assignment]
    __isub__ = difference_update
    __iand__ = intersection_update
    __ixor__ = symmetric_difference_update
    __ior__ = update
    __eq__ = _compare_sets(operator.eq)
    __ne__ = _compare_sets(operator.ne)
    __lt__ = _compare_sets(operator.lt)
    __le__ = _compare_sets(operator.le)
    __gt__ = _compare_sets(operator.gt)
    __ge__ = _compare_sets(operator.ge)
    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Any:
        return type(self), (self._set, self.key)

    @recursive_repr()
    def __repr__(self) -> str:
        key = "" if self.key is None else f", key={self.key!r}"
        return f"{type(self).__name__}({list(self)!r}{key})"

    def _check(self) -> None:
        self._list._check()
        assert len(self._set) == len(self._list) and all(map(self._set.__contains__, self._list))


class SortedDict(_Ordered[K], dict[K, V]):
    """A dict whose keys are in order.

    The arguments are those of `dict`, optionally after a key function. Values are any objects and are
    kept by reference. Looking up a key is as fast as in a dict.

    >>> from ordna import SortedDict
    >>> ages = SortedDict(eve=40, ann=31)
    >>> ages.peekitem(0), list(ages.items("b"))
    (('ann', 31), [('eve', 40)])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        key = None
        if args and (args[0] is None or callable(args[0])):
            key, args = args[0], args[1:]
        if len(args) > 1:
            raise TypeError(f"SortedDict expected at most 1 mapping or iterable, got {len(args)}")
        dict.clear(self)
        self._list = SortedList(key=key)
        self.update(*args, **kwargs)

    @classmethod
    def fromkeys(cls, iterable: Iterable[Any], value: Any = None) -> Any:
        """Returns a new dict in which every key of the iterable has the same value."""
        return cls((key, value) for key in iterable)

    def __setitem__(self, key: K, value: V) -> None:
        self._list._set(self, key, value, False)

    def setdefault(self, key: K, default: Any = None) -> Any:
        """Returns the value of a key. If the key is absent, sets it to `default` first."""
        return self._list._set(self, key, default, True)

    def __delitem__(self, key: K) -> None:
        if self._list._unset(self, key) is None:
            raise KeyError(key)

    def pop(self, key: K, default: Any = _MISSING) -> Any:
        """Removes a key and returns its value.

        If the key is absent, returns `default`, or raises KeyError without one.
        """
        found = self._list._unset(self, key)
        if found is not None:
            return found[0]
        if default is _MISSING:
            raise KeyError(key)
        return default

    def popitem(self, index: int = -1) -> tuple[K, V]:
        """Removes the pair at an index, the last one by default, and returns it."""
        if not self:
            raise KeyError("popitem(): dictionary is empty")
        found: tuple[K, V] = self._list._unset_at(self, index)
        return found

    def peekitem(self, index: int = -1) -> tuple[K, V]:
        """Returns the pair at an index, the last one by default. O(log n)."""
        key = self._list[index]
        return key, self[key]

    def clear(self) -> None:
        """Removes all entries."""
        dict.clear(self)
        self._list.clear()

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Sets the pairs of a mapping or an iterable, and of the keyword arguments.

        If a key cannot be compared with the others, nothing is changed.
        """
        if self:
            pairs = dict(*args, **kwargs)
            self._list.update([key for key in pairs if key not in self])
            dict.update(self, pairs)
            return
        try:
            dict.update(self, *args, **kwargs)
            self._list.update(dict.__iter__(self))
        except BaseException:
            self.clear()
            raise

    def copy(self) -> Any:
        """Returns a dict of the same entries."""
        return type(self)(self.key, self.items())

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Mapping):
            return NotImplemented
        return type(self)(self.key, chain(self.items(), other.items()))

    def __ror__(self, other: Any) -> Any:
        if not isinstance(other, Mapping):
            return NotImplemented
        return type(self)(self.key, chain(other.items(), self.items()))

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __iter__(self) -> Iterator[K]:
        return iter(self._list)

    def _listed(self, kind: int, *bounds: Any) -> Any:
        return self._list._listed(self, kind, *bounds)

    def keys(self, lo: Any = None, hi: Any = None, inclusive: tuple[bool, bool] = _BOTH,
             reverse: bool = False, limit: int | None = None) -> Any:
        """Returns a view of all keys in order or, with bounds, an iterator over the keys within them."""
        if lo is None and hi is None and not reverse and limit is None:
            return SortedKeysView(self)
        return self._list._listed(self, 0, lo, hi, inclusive, reverse, limit)

    def values(self, lo: Any = None, hi: Any = None, inclusive: tuple[bool, bool] = _BOTH,
               reverse: bool = False, limit: int | None = None) -> Any:
        """Returns a view of all values in the order of their keys or, with bounds, an iterator."""
        if lo is None and hi is None and not reverse and limit is None:
            return SortedValuesView(self)
        return self._list._listed(self, 1, lo, hi, inclusive, reverse, limit)

    def items(self, lo: Any = None, hi: Any = None, inclusive: tuple[bool, bool] = _BOTH,
              reverse: bool = False, limit: int | None = None) -> Any:
        """Returns a view of all pairs in the order of their keys or, with bounds, an iterator."""
        if lo is None and hi is None and not reverse and limit is None:
            return SortedItemsView(self)
        return self._list._listed(self, 2, lo, hi, inclusive, reverse, limit)

    @property
    def iloc(self) -> SortedKeysView[K]:
        """A view of the keys. Deprecated: use `keys()`."""
        warnings.warn("use keys() instead of iloc", DeprecationWarning, stacklevel=2)
        return SortedKeysView(self)

    def __reduce__(self) -> Any:
        return type(self), (self.key, dict(self.items()))

    @recursive_repr()
    def __repr__(self) -> str:
        key = "" if self.key is None else f"{self.key!r}, "
        pairs = ", ".join(f"{key!r}: {value!r}" for key, value in self.items())
        return f"{type(self).__name__}({key}{{{pairs}}})"

    def _check(self) -> None:
        self._list._check()
        assert len(self) == len(self._list) and all(map(self.__contains__, self._list))


class _View:
    """The methods that all views of a `SortedDict` share."""

    __slots__ = ()
    _kind: int

    def __iter__(self) -> Iterator[Any]:
        found: Iterator[Any] = self._mapping._listed(  # type: ignore[attr-defined]
            self._kind, None, None, _BOTH, False, None)
        return found

    def __reversed__(self) -> Iterator[Any]:
        found: Iterator[Any] = self._mapping._listed(  # type: ignore[attr-defined]
            self._kind, None, None, _BOTH, True, None)
        return found

    def _of(self, key: Any) -> Any:
        return key

    def __getitem__(self, index: Any) -> Any:
        keys = self._mapping._list[index]  # type: ignore[attr-defined]
        return [self._of(key) for key in keys] if isinstance(index, slice) else self._of(keys)

    def __delitem__(self, index: int | slice) -> None:
        """Removes the keys at these positions from the dict."""
        mapping = self._mapping  # type: ignore[attr-defined]
        keys = mapping._list[index]
        for key in keys if isinstance(index, slice) else [keys]:
            del mapping[key]


class SortedKeysView(_View, KeysView[K], Sequence[K]):
    """The keys of a `SortedDict`, in order and by position. Set operations return a `SortedSet`."""

    __slots__ = ()
    _kind = 0

    @classmethod
    def _from_iterable(cls, iterable: Iterable[Any]) -> Any:
        return SortedSet(iterable)

    def index(self, value: Any, start: int | None = None, stop: int | None = None) -> int:
        """Returns the position of a key. O(log n). Raises ValueError if the key is absent."""
        at: int = self._mapping.index(value, start, stop)  # type: ignore[attr-defined]
        return at

    def count(self, value: Any) -> int:
        """Returns 1 if the key is present, otherwise 0."""
        return 1 if value in self else 0


class SortedItemsView(_View, ItemsView[K, V], Sequence[tuple[K, V]]):  # type: ignore[misc]
    """The pairs of a `SortedDict`, in the order of the keys and by position."""

    __slots__ = ()
    _kind = 2

    @classmethod
    def _from_iterable(cls, iterable: Iterable[Any]) -> Any:
        return SortedSet(iterable)

    def _of(self, key: Any) -> Any:
        return key, self._mapping[key]  # type: ignore[attr-defined]


class SortedValuesView(_View, ValuesView[V], Sequence[V]):
    """The values of a `SortedDict`, in the order of the keys and by position."""

    __slots__ = ()
    _kind = 1

    def _of(self, key: Any) -> Any:
        return self._mapping[key]  # type: ignore[attr-defined]
