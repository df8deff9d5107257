"""Sorted lists, sets and dicts beside those of sortedcontainers: both must answer alike."""

import copy
import gc
import operator
import pickle
import threading
import weakref

import hypothesis.strategies as st
import pytest
import sortedcontainers
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import ordna

INTS = st.one_of(st.integers(-4, 4), st.sampled_from(
    [2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**80, -(2**63), -(2**63) - 1, -(2**80)]))
KINDS = {
    "ints": INTS,
    "floats": st.sampled_from([0.0, -0.0, 0.5, -0.5, 1e300, float("inf"), float("-inf"), 5e-324]),
    "numbers": st.one_of(INTS, st.sampled_from([0.5, 1.0, 2.0**63]), st.booleans()),
    "texts": st.text(st.sampled_from("\0aé😀\ud800"), max_size=10),
    "bytes": st.binary(max_size=10).map(lambda b: b"\0" * 7 + b),
    "tuples": st.tuples(st.integers(0, 2), st.text("ab", max_size=1)),
}
# Equal items have equal keys.
KEYS = [None, hash, lambda value: hash(value) % 5]


class Both(RuleBasedStateMachine):
    @initialize(kind=st.sampled_from(sorted(KINDS)), key=st.sampled_from(KEYS),
                load=st.integers(1, 6))
    def begin(self, kind, key, load):
        self.kind, self.key = KINDS[kind], key
        self.ours, self.theirs = self.make(ordna), self.make(sortedcontainers)
        self.ours._reset(load)

    def draw(self, data):
        if len(self.theirs) and data.draw(st.booleans()):
            return data.draw(st.sampled_from(list(self.theirs)))
        return data.draw(self.kind)

    def both(self, call):
        answers = []
        for one in (self.ours, self.theirs):
            try:
                answers.append(call(one))
            except (KeyError, IndexError, ValueError, TypeError) as error:
                answers.append(type(error))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(data=st.data(), index=st.integers(-4, 4))
    def reads(self, data, index):
        value = self.draw(data)
        self.both(lambda one: value in one)
        self.both(lambda one: one.bisect_left(value))
        self.both(lambda one: one.bisect_right(value))
        self.both(lambda one: one.index(value))
        self.both(lambda one: one.index(value, index))
        self.both(lambda one: one.index(value, 0, index))
        if self.key is not None:
            self.both(lambda one: one.bisect_key_left(self.key(value)))
            self.both(lambda one: list(one.irange_key(None, self.key(value))))

    @rule(data=st.data(), inclusive=st.tuples(st.booleans(), st.booleans()), reverse=st.booleans())
    def ranges(self, data, inclusive, reverse):
        low, high = self.draw(data), self.draw(data)
        self.both(lambda one: list(one.irange(low, high, inclusive, reverse)))
        self.both(lambda one: list(one.irange(None, high, inclusive, reverse)))
        self.both(lambda one: list(one.irange(low, None, inclusive, reverse)))

    @rule(start=st.none() | st.integers(-4, 4), stop=st.none() | st.integers(-4, 4),
          reverse=st.booleans())
    def slices(self, start, stop, reverse):
        self.both(lambda one: list(one.islice(start, stop, reverse)))

    @rule()
    def clear(self):
        self.ours.clear()
        self.theirs.clear()

    @invariant()
    def equal(self):
        if hasattr(self, "ours"):
            self.ours._check()
            assert list(map(repr, self.ours)) == list(map(repr, self.theirs))
            assert list(reversed(self.ours)) == list(reversed(self.theirs))
            assert len(self.ours) == len(self.theirs)
            assert repr(self.ours) == repr(self.theirs)
            for other in (copy.copy(self.ours), copy.deepcopy(self.ours)):
                assert other == self.ours and type(other) is type(self.ours)


class List(Both):
    def make(self, package):
        return package.SortedList(key=self.key)

    @rule(data=st.data())
    def add(self, data):
        value = self.draw(data)
        self.both(lambda one: one.add(value))
        self.both(lambda one: one.count(value))

    @rule(data=st.data(), size=st.integers(0, 12))
    def update(self, data, size):
        values = [self.draw(data) for _ in range(size)]
        self.both(lambda one: one.update(values))
        assert self.ours + values == self.theirs + values
        assert self.ours * 2 == self.theirs * 2
        for compare in (operator.lt, operator.ge, operator.ne):
            self.both(lambda one: compare(one, values))

    @rule(data=st.data(), index=st.integers(-3, 3))
    def remove(self, data, index):
        value = self.draw(data)
        self.both(lambda one: one.discard(value))
        self.both(lambda one: one.remove(value))
        self.both(lambda one: one.pop(index))

    @rule(start=st.none() | st.integers(-6, 6), stop=st.none() | st.integers(-6, 6),
          step=st.sampled_from([None, 1, 2, -1, -2]))
    def parts(self, start, stop, step):
        self.both(lambda one: one[start:stop:step])
        self.both(lambda one: one.__delitem__(slice(start, stop, step)))


def by_hash(value):
    return hash(value), value


class Set(Both):
    """Of equal items, and in the order of items with equal keys, the other package keeps any after
    a bulk operation: it goes by the order of a set. So here equal items are one object, and no two
    items have equal keys.
    """

    def make(self, package):
        if self.key is not None:
            self.key = by_hash
        return package.SortedSet(key=self.key)

    def draw(self, data):
        value = super().draw(data)
        return next((number for number in (0, 1, 2**63) if value == number), value)

    @rule(data=st.data(), size=st.integers(0, 5), name=st.sampled_from(
        ["update", "union", "difference", "difference_update", "intersection",
         "intersection_update", "symmetric_difference", "symmetric_difference_update"]))
    def operations(self, data, size, name):
        values = [self.draw(data) for _ in range(size)]
        self.both(lambda one: list(getattr(one, name)(values)))

    @rule(data=st.data(), index=st.integers(-3, 3))
    def changes(self, data, index):
        value = self.draw(data)
        self.both(lambda one: one.add(value))
        self.both(lambda one: one[index])
        self.both(lambda one: one.pop(index))
        self.both(lambda one: one.remove(value))
        self.both(lambda one: one.add(value))


class Dict(Both):
    def make(self, package):
        return package.SortedDict(self.key)

    @rule(data=st.data(), value=st.integers(), index=st.integers(-3, 3))
    def changes(self, data, value, index):
        key = self.draw(data)
        self.both(lambda one: one.__setitem__(key, [value]))
        self.both(lambda one: one.setdefault(key, [1]).append(2))
        self.both(lambda one: one.peekitem(index))
        self.both(lambda one: one.items()[index])
        self.both(lambda one: one.values()[:index])
        self.both(lambda one: list((one.keys() & [key]) | {key}))
        self.both(lambda one: list(reversed(one.items())))

    @rule(data=st.data(), index=st.integers(-3, 3))
    def removals(self, data, index):
        key = self.draw(data)
        self.both(lambda one: one.pop(key, None))
        self.both(lambda one: one.popitem(index))
        self.both(lambda one: one.__delitem__(key))

    @rule(data=st.data(), size=st.integers(0, 12))
    def update(self, data, size):
        pairs = [(self.draw(data), number) for number in range(size)]
        self.both(lambda one: one.update(pairs))
        assert list((self.ours | dict(pairs)).items()) == list((self.theirs | dict(pairs)).items())

    @rule(data=st.data())
    def bounds(self, data):
        low, high = self.draw(data), self.draw(data)
        want = [(key, self.theirs[key]) for key in self.theirs.irange(low, high)]
        assert list(self.ours.items(low, high)) == want
        assert list(self.ours.items(low, high, limit=2)) == want[:2]
        assert list(self.ours.values(low, high, reverse=True)) == [v for _, v in want[::-1]]


TestList, TestSet, TestDict = List.TestCase, Set.TestCase, Dict.TestCase
for _case in (TestList, TestSet, TestDict):
    _case.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)
del _case


def test_large_lists_beside_a_plain_list():
    for values in (list(range(30_000, 0, -1)), [f"{n % 5000:09d}" for n in range(20_000)]):
        ours = ordna.SortedList()
        for value in values:
            ours.add(value)
        ours._check()
        assert list(ours) == sorted(values) == list(ordna.SortedList(values))
        assert [ours[at] for at in range(0, len(values), 97)] == sorted(values)[::97]
        for value in values[::2]:
            ours.remove(value)
        ours._check()
        assert list(ours) == sorted(values[1::2])


def test_pickle_keeps_key_and_class():
    for one in (ordna.SortedList([2, 1]), ordna.SortedKeyList([2, 1], key=operator.neg),
                ordna.SortedSet([2, 1], key=operator.neg), ordna.SortedDict(operator.neg, {1: [2]})):
        back = pickle.loads(pickle.dumps(one))
        assert back == one and type(back) is type(one) and repr(back) == repr(one)


def test_keys_that_cannot_be_compared_change_nothing():
    one = ordna.SortedDict({1: "a", 2: "b"})
    with pytest.raises(TypeError):
        one["x"] = 1
    with pytest.raises(TypeError):
        one.update({3: 1, "x": 2})
    with pytest.raises(TypeError):
        ordna.SortedList([1, "x"])
    many = ordna.SortedList(range(100))
    with pytest.raises(TypeError):
        many.update([5, "x"])
    members = ordna.SortedSet([1, 2])
    with pytest.raises(TypeError):
        members.add("x")
    assert one == {1: "a", 2: "b"} and list(one) == [1, 2] and list(many) == list(range(100))
    assert list(members) == [1, 2] and "x" not in members
    for each in (one, many, members):
        each._check()


def test_a_comparison_that_changes_the_list():
    ours, more = ordna.SortedList(), list(range(20))

    class Odd(int):
        def __lt__(self, other):
            if more:
                ours.add(Odd(more.pop()))
            return int(self) < int(other)

        def __gt__(self, other):
            return int(self) > int(other)

    for value in (5, 1, 9, 3):
        ours.add(Odd(value))
    ours._check()
    assert list(map(int, ours)) == sorted([5, 1, 9, 3, *range(20)])


def test_a_change_during_an_iteration_is_told():
    ours = ordna.SortedList(range(1000))
    with pytest.raises(RuntimeError, match="changed"):
        for value in ours:
            ours.discard(value)
    assert 0 < len(ours) < 1000


def test_values_are_kept_by_reference_and_collected():
    class Value:
        pass

    one, value = ordna.SortedDict(), Value()
    one[1] = value
    assert one[1] is value and one.peekitem()[1] is value
    kept = weakref.ref(value)
    loop = ordna.SortedKeyList([value], key=id)
    value.loop, value.one = loop, one
    del one, value, loop
    gc.collect()
    assert kept() is None


def test_threads_lose_nothing():
    one = ordna.SortedDict()

    def work(number):
        for key in range(3000):
            one[key * 4 + number] = key
            if key % 3 == 0:
                del one[key * 4 + number]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    one._check()
    assert list(one) == [key * 4 + number for key in range(3000) if key % 3 for number in range(4)]


def test_refusals():
    ours = ordna.SortedList([1])
    for call in (lambda: ours.append(2), lambda: ours.insert(0, 2), lambda: ours.extend([2]),
                 lambda: ours.reverse(), lambda: ours.__setitem__(0, 2)):
        with pytest.raises(NotImplementedError):
            call()
    with pytest.raises(TypeError):
        ordna.SortedList([1], key=5)
    with pytest.raises(TypeError):
        ordna.SortedDict({}, {})
