"""Random calls on a store and on sortedcontainers' SortedDict: both must answer alike."""

import copy
import pickle

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sortedcontainers import SortedDict

import ordna

NUMBERS = st.one_of(
    st.integers(-5, 5),
    st.sampled_from([2**63, -(2**63) - 1, 2**64, 2**127, -(2**127), 2**200, -(2**200)]),
    st.sampled_from([0.5, -0.5, 1.5, 1e300, -1e300, float("inf"), 5e-324, 2.0**127]),
)
TEXTS = st.text(st.sampled_from("\0\x01aé😀"), max_size=3)
BYTES = st.binary(max_size=3)
KINDS = {
    "numbers": NUMBERS,
    "texts": TEXTS,
    "bytes": BYTES,
    "dates": st.dates(),
    "moments": st.datetimes(),
    "spans": st.timedeltas(),
    "times": st.times(),
    "bools": st.booleans(),
    "pairs": st.tuples(TEXTS, NUMBERS),
    "nested": st.tuples(st.tuples(st.integers(0, 2), BYTES), TEXTS),
    "shorter": st.lists(st.integers(0, 2), max_size=3).map(tuple),
}
VALUES = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.text(), st.binary(), st.none(), st.booleans(),
    st.tuples(st.floats(allow_nan=False), st.text()), st.datetimes(),
)


class Machine(RuleBasedStateMachine):
    """`make` gives the class under test."""

    make = staticmethod(ordna.Store)

    @initialize(kind=st.sampled_from(sorted(KINDS)))
    def begin(self, kind):
        self.keys = KINDS[kind]
        self.ours, self.theirs = self.make(), SortedDict()
        self.snapshots = []

    def draw(self, data):
        # Uses keys that are present and keys that are not.
        if self.theirs and data.draw(st.booleans()):
            return data.draw(st.sampled_from(list(self.theirs)))
        return data.draw(self.keys)

    def both(self, call):
        """The answers, or the exceptions' types."""
        answers = []
        for mapping in (self.ours, self.theirs):
            try:
                answers.append(call(mapping))
            except (KeyError, IndexError, ValueError, TypeError) as error:
                answers.append(type(error))
        assert answers[0] == answers[1]
        return answers[0]

    @rule(data=st.data(), value=VALUES)
    def put(self, data, value):
        key = self.draw(data)
        self.ours[key] = self.theirs[key] = value

    @rule(data=st.data())
    def read(self, data):
        key = self.draw(data)
        self.both(lambda mapping: mapping[key])
        self.both(lambda mapping: mapping.get(key, "absent"))
        self.both(lambda mapping: key in mapping)

    @rule(data=st.data())
    def delete(self, data):
        key = self.draw(data)
        self.both(lambda mapping: mapping.__delitem__(key))

    @rule(data=st.data(), value=VALUES)
    def pop(self, data, value):
        key = self.draw(data)
        self.both(lambda mapping: mapping.pop(key))
        self.both(lambda mapping: mapping.pop(key, value))
        self.both(lambda mapping: mapping.setdefault(key, value))

    @rule(index=st.integers(-4, 4))
    def positions(self, index):
        self.both(lambda mapping: mapping.peekitem(index))
        self.both(lambda mapping: mapping.keys()[index])
        self.both(lambda mapping: mapping.values()[index])
        self.both(lambda mapping: mapping.items()[index])
        self.both(lambda mapping: mapping.keys().index(mapping.peekitem(index)[0]))

    @rule(index=st.integers(-3, 3))
    def popitem(self, index):
        self.both(lambda mapping: mapping.popitem(index))

    @rule(start=st.none() | st.integers(-4, 4), stop=st.none() | st.integers(-4, 4),
          step=st.sampled_from([None, 1, 2, -1, -2]), reverse=st.booleans())
    def slices(self, start, stop, step, reverse):
        self.both(lambda mapping: list(mapping.islice(start, stop, reverse)))
        self.both(lambda mapping: mapping.keys()[start:stop:step])
        self.both(lambda mapping: mapping.items()[start:stop:step])

    @rule(data=st.data(), inclusive=st.tuples(st.booleans(), st.booleans()), reverse=st.booleans())
    def ranges(self, data, inclusive, reverse):
        lo, hi = sorted([self.draw(data), self.draw(data)])
        self.both(lambda mapping: list(mapping.irange(lo, hi, inclusive, reverse)))
        self.both(lambda mapping: list(mapping.irange(None, hi, inclusive, reverse)))
        self.both(lambda mapping: list(mapping.irange(lo, None, inclusive, reverse)))
        self.both(lambda mapping: mapping.bisect_left(lo))
        self.both(lambda mapping: mapping.bisect_right(lo))
        self.both(lambda mapping: mapping.index(lo))
        want = [(key, self.theirs[key]) for key in self.theirs.irange(lo, hi, inclusive, reverse)]
        assert list(self.ours.items(lo, hi, inclusive, reverse)) == want
        assert list(self.ours.items(lo, hi, inclusive, reverse, limit=2)) == want[:2]
        assert len(self.ours.keys(lo, hi, inclusive)) == len(want)
        floor = next(self.theirs.irange(None, lo, reverse=True), None)
        assert (self.ours.floor(lo) or (None,))[0] == floor
        ceil = next(self.theirs.irange(hi), None)
        assert (self.ours.ceil(hi) or (None,))[0] == ceil

    @rule(data=st.data(), inclusive=st.tuples(st.booleans(), st.booleans()))
    def delete_range(self, data, inclusive):
        lo, hi = sorted([self.draw(data), self.draw(data)])
        gone = list(self.theirs.irange(lo, hi, inclusive))
        for key in gone:
            del self.theirs[key]
        assert self.ours.del_range(lo, hi, inclusive) == len(gone)

    @rule(data=st.data(), size=st.integers(0, 4), value=VALUES)
    def update(self, data, size, value):
        pairs = [(self.draw(data), value) for _ in range(size)]
        how = data.draw(st.sampled_from(["update", "or", "batch", "put_many"]))
        self.theirs.update(pairs)
        if how == "update":
            self.ours.update(pairs)
        elif how == "or":
            self.ours |= dict(pairs)
        elif how == "put_many":
            self.ours.put_many([key for key, _ in pairs], [value for _, value in pairs])
        else:
            with self.ours.batch() as batch:
                batch.update(pairs)
        keys = [key for key, _ in pairs]
        assert self.ours.get_many(keys) == [value] * size

    @rule(data=st.data(), value=VALUES)
    def compare_and_set(self, data, value):
        key = self.draw(data)
        old = self.theirs.get(key, ordna.ABSENT)
        assert not self.ours.compare_and_set(key, "other", value)
        assert self.ours.compare_and_set(key, old, value)
        self.theirs[key] = value

    @rule()
    def keep(self):
        self.snapshots = self.snapshots[-2:] + [(self.ours.snapshot(), list(self.theirs.items()))]

    @rule()
    def copies(self):
        for other in (self.ours.copy(), copy.copy(self.ours), pickle.loads(pickle.dumps(self.ours))):
            assert type(other) is type(self.ours)
            assert other == self.ours == self.theirs
        self.both(lambda mapping: mapping == dict(mapping))
        self.both(lambda mapping: mapping != {})

    @rule()
    def clear(self):
        self.ours.clear()
        self.theirs.clear()

    @invariant()
    def equal(self):
        if not hasattr(self, "ours"):
            return
        want = list(self.theirs.items())
        assert list(self.ours.items()) == want
        assert list(reversed(self.ours.items())) == want[::-1]
        assert list(self.ours) == list(self.theirs)
        assert list(reversed(self.ours)) == list(reversed(self.theirs))
        assert list(self.ours.values()) == list(self.theirs.values())
        assert len(self.ours) == len(want)
        for snapshot, state in self.snapshots:
            assert list(snapshot.items()) == state
            assert len(snapshot) == len(state)

    def teardown(self):
        if hasattr(self, "ours"):
            self.ours._check()


TestStore = Machine.TestCase
TestStore.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_keys_come_back_with_their_types(kind):
    """What all keys of a store are, they are when they come back: floats too."""
    from hypothesis import given

    strategy = st.floats(allow_nan=False) if kind == "numbers" else KINDS[kind]

    @settings(max_examples=100, deadline=None)
    @given(st.lists(strategy, max_size=6))
    def check(keys):
        back = list(ordna.Store.fromkeys(keys))
        assert back == sorted(set(keys))
        assert [type(key) for key in back] == [type(key) for key in sorted(set(keys))]

    check()
