"""Bulk calls on arrays and columns: an entry is the same however it was written."""

import datetime as dt
import math
from array import array

import numpy as np
import ordna
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

SECONDS = st.integers(-62_135_596_800, 253_402_300_799)
NUMBERS = {
    name: st.integers(int(np.iinfo(name).min), int(np.iinfo(name).max))
    for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
} | {
    "float32": st.floats(width=32),
    "float64": st.floats() | st.integers(-3, 3).map(float),
}
MOMENTS = {
    "datetime64[us]": SECONDS.map(lambda count: count * 1_000_000 + 999_999),
    "datetime64[s]": SECONDS,
    "datetime64[25ms]": SECONDS.map(lambda count: count * 40),
    "datetime64[D]": SECONDS.map(lambda count: count // 86_400),
}


@st.composite
def arrays(draw, kinds, length):
    dtype = draw(st.sampled_from(sorted(kinds)))
    items = draw(st.lists(kinds[dtype], min_size=length, max_size=length))
    made = np.array(items, dtype=np.int64).view(dtype) if kinds is MOMENTS else np.array(items, dtype)
    return made[::-1] if draw(st.booleans()) else made


@st.composite
def pairs(draw, kinds):
    """Keys of one order, and values."""
    length = draw(st.integers(1, 8))
    values = arrays(draw(st.sampled_from([NUMBERS, MOMENTS])), length)
    return draw(arrays(kinds, length)), draw(values)


def plain(items):
    """The moments in microseconds: their objects are datetimes, and Arrow knows the unit."""
    return items.astype("datetime64[us]") if items.dtype.kind == "M" else items


def same(first, second):
    # repr distinguishes -0.0 from 0.0 and 1 from 1.0, and is the same for every NaN.
    assert repr(first) == repr(second)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), columns=st.booleans())
def test_put_many_writes_what_single_puts_write(data, columns):
    kinds = data.draw(st.sampled_from([NUMBERS, MOMENTS]))
    bulk, single = ordna.Store(), ordna.Store()
    for keys, values in data.draw(st.lists(pairs(kinds), max_size=3)):
        given = [pa.array(plain(part)) for part in (keys, values)] if columns else (keys, values)
        bulk.put_many(*given)
        objects = plain(keys).tolist()
        for key, value in zip(objects, plain(values).tolist(), strict=True):
            single[key] = value
        same(list(bulk.items()), list(single.items()))
        same(bulk.get_many(objects), [single[key] for key in objects])


@settings(max_examples=200, deadline=None)
@given(data=st.data(), reverse=st.booleans())
def test_arrays_read_what_single_puts_wrote(data, reverse):
    kinds = data.draw(st.sampled_from([NUMBERS, MOMENTS]))
    keys, values = data.draw(pairs(kinds))
    store = ordna.Store(zip(plain(keys).tolist(), plain(values).tolist(), strict=True))
    objects = [store[key] for key in plain(keys).tolist()]
    same(store.get_many(keys).tolist(), objects)
    same(store.get_many(pa.array(plain(keys))).tolist(), objects)
    listed = [list(store.keys(reverse=reverse)), list(store.values(reverse=reverse))]
    same([part.tolist() for part in store.scan(reverse=reverse)], listed)
    columns = store.scan(reverse=reverse, arrow=True)
    same([part.tolist() for part in columns], listed)
    same([pa.array(part).to_pylist() for part in columns], listed)
    copy = ordna.Store()
    copy.put_many(*columns)
    same(list(copy.items(reverse=reverse)), list(zip(*listed)))
    out = np.zeros(len(keys), dtype=store.get_many(keys).dtype)
    store.get_many(keys, out=out)
    same(out.tolist(), objects)


def test_bits_of_floats():
    values = np.array([0x8000000000000000, 0xFFF8000000000001, 0x7FF0000000000000], np.uint64).view(np.float64)
    store = ordna.Store()
    store.put_many(np.arange(3), values)
    assert store.get_many(np.arange(3)).view(np.uint64).tolist() == values.view(np.uint64).tolist()
    assert math.copysign(1, store[0]) == -1 and math.isnan(store[1])
    keys = np.array([math.nan, 0.0, -0.0, -math.inf, -math.nan])
    store = ordna.Store()
    store.put_many(keys, np.arange(5))
    # All NaN are the same key, and so are both zeros. The last value is kept.
    same(list(store.items()), [(-math.inf, 3), (0.0, 2), (math.nan, 4)])
    assert store.get_many(keys).tolist() == [4, 2, 2, 3, 4]


def test_ints_and_floats_are_one_order():
    store = ordna.Store()
    store.put_many(np.array([-3, 2**53 + 1, 1]), np.array([1, 2, 3]))
    assert store.get_many(np.array([-3.0, 1.0])).tolist() == [1, 3]
    assert store.get_many(np.array([2.0**53]), default=0).tolist() == [0]
    store.put_many(np.array([2.5, 1.0]), np.array([4, 5]))
    same(list(store.items()), [(-3, 1), (1, 5), (2.5, 4), (2**53 + 1, 2)])
    # A column of floats can represent the keys up to 3, but not all keys.
    assert store.scan(hi=3)[0].tolist() == [-3.0, 1.0, 2.5]
    with pytest.raises(TypeError, match="9007199254740993 of type 'int' does not fit a column of float64"):
        store.scan()
    with pytest.raises(TypeError, match="the key 2.5 of type 'float' does not fit a column of uint64"):
        ordna.Store({2**53 + 1: 1, 2.5: 1}).scan(reverse=True)


def test_floats_of_an_opened_store(tmp_path):
    keys = np.array([1.0, 2.5, 1e300])
    with ordna.open(tmp_path / "store") as store:
        store.put_many(keys, keys)
    with ordna.open(tmp_path / "store") as store:
        assert [part.tolist() for part in store.scan()] == [[1.0, 2.5, 1e300]] * 2
        assert store.get_many(keys).tolist() == [1.0, 2.5, 1e300]


@pytest.mark.parametrize(("values", "dtype"), [
    ([0, 2**64 - 1], "uint64"),
    ([0, -1], "int64"),
    ([-1, 2**63 - 1], "int64"),
    ([2**63 - 1, -(2**63)], "int64"),
    ([1.0, -0.0], "float64"),
    ([dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)], "datetime64[us]"),
])
def test_the_type_follows_the_values(values, dtype):
    store = ordna.Store(enumerate(values))
    for found in (store.get_many(np.arange(2)), store.scan()[1]):
        assert found.dtype == dtype
        same(found.tolist(), values)
    for keys in (np.arange(1, 4, 2), np.arange(-2, 0)):
        found = store.get_many(keys, default=values[0])
        same(found.tolist(), [store.get(key, values[0]) for key in keys.tolist()])


def test_moments_with_a_zone():
    zone = pa.timestamp("ms", tz="+02:00")
    store = ordna.Store()
    times = pa.array([dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC)], zone)
    store.put_many(times, times)
    assert list(store.items()) == [(at, at) for at in sorted(times.to_pylist())]
    keys, values = store.scan(arrow=True)
    assert pa.array(keys).type == pa.timestamp("us", tz="UTC") == pa.array(values).type
    assert keys.tolist() == pa.array(keys).to_pylist() == list(store)
    assert pa.array(store.get_many(times)).to_pylist() == times.to_pylist()
    # NumPy has no time zones.
    assert store.scan()[0].tolist() == [at.replace(tzinfo=None) for at in store]
    with pytest.raises(TypeError, match="ordered"):
        store.put_many(np.array(["2026-06-01"], "datetime64[s]"), np.arange(1))
    with pytest.raises(KeyError, match="2026"):
        store.get_many(np.array(["2026-06-01T12"], "datetime64[s]"))
    utc_and_not = ordna.Store({1: dt.datetime(2026, 1, 1), 2: dt.datetime(2026, 1, 1, tzinfo=dt.UTC)})
    with pytest.raises(TypeError, match=r"the value of 2, .* does not fit an array of datetime64\[us\]$"):
        utc_and_not.get_many(np.array([1, 2]))


def test_nanoseconds_and_columns_of_them():
    store = ordna.Store()
    for times in (np.array([1000, -5000], "datetime64[ns]"), pa.array([1000, -5000], pa.timestamp("ns"))):
        store.put_many(times, np.array([1, 2]))
        epoch = dt.datetime(1970, 1, 1)
        micro = dt.timedelta(microseconds=1)
        assert dict(store) == {epoch - 5 * micro: 2, epoch + micro: 1}


@pytest.mark.parametrize(("items", "message"), [
    (np.array(["2020-01-01", "NaT"], "datetime64[D]"), "item 1, .*NaT"),
    (np.array([0, 1500], "datetime64[ns]"), "item 1, 1500 ns .*whole"),
    (np.array([-1], "datetime64[ps]"), "item 0, -1 ps .*whole"),
    (np.array(["10000-01-01"], "datetime64[s]"), "item 0, .*years 1 to 9999"),
    (np.array(["0000-12-31"], "datetime64[D]"), "item 0, .*years 1 to 9999"),
    (np.array([2**62], "datetime64[25W]"), "item 0, .*years 1 to 9999"),
    (np.array(["2020"], "datetime64[us]").reshape(1, 1), "dimension"),
    (np.zeros((2, 2)), "dimension"),
    (pa.array([1, None]), "null at item 1"),
    (pa.array([1.5, 2.5, None])[1:], "null at item 1"),
    (pa.array([None], pa.timestamp("us", tz="UTC")), "null at item 0"),
    (pa.array([2**62], pa.timestamp("s")), "item 0, .*years 1 to 9999"),
    (pa.array([1], pa.timestamp("ns", tz="UTC")), "item 0, 1 ns .*whole"),
])
def test_items_that_no_store_can_hold(items, message):
    store = ordna.Store({1: 2})
    for call in (lambda: store.put_many(items, items), lambda: store.put_many([1], items),
                 lambda: store.put_many(items, [1]), lambda: store.get_many(items)):
        with pytest.raises(ValueError, match=message):
            call()
    assert dict(store) == {1: 2}


@pytest.mark.parametrize("items", [
    np.zeros(1, ">f8"), np.zeros(1, ">i8"), np.zeros(1, ">M8[us]"), np.zeros(1, "M8[M]"), np.zeros(1, "M8"),
    np.array(5), np.zeros(1, bool), np.zeros(1, np.float16), np.zeros(1, complex), np.zeros(1, np.longdouble),
    array("u", "a"), pa.array([True]), pa.array([dt.date(2020, 1, 1)]), pa.array([[1]]),
    pa.array([1.5], pa.float16()), pa.array([1], pa.duration("us")),
], ids=lambda items: str(getattr(items, "dtype", type(items).__name__)))
def test_other_types(items):
    store = ordna.Store({1: 2})
    for call in (lambda: store.put_many(items, np.zeros(1)), lambda: store.put_many(np.zeros(1), items),
                 lambda: store.get_many(items)):
        with pytest.raises(TypeError):
            call()
    assert dict(store) == {1: 2}


def test_one_side_may_be_objects():
    store = ordna.Store()
    store.put_many(np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"), ["a", "b"])
    store.put_many([dt.datetime(2022, 1, 1)], np.array([2.5], np.float32))
    store.put_many((at for at in [dt.datetime(2023, 1, 1)]), pa.array(["d"]))
    assert list(store.items()) == [
        (dt.datetime(2020 + at, 1, 1), value) for at, value in enumerate(["a", "b", 2.5, "d"])
    ]
    for keys, values in ((np.arange(2), ["a"]), ([1], np.arange(2)), (np.arange(1), np.arange(2))):
        with pytest.raises(ValueError, match="keys"):
            ordna.Store().put_many(keys, values)
    # Bytes do not count as an array. Their items are numbers, as in a list.
    numbers = ordna.Store()
    numbers.put_many(bytearray(b"ab"), b"cd")
    assert dict(numbers) == {97: 99, 98: 100} and numbers.get_many(bytearray(b"b")) == [100]


def test_empty_arrays():
    store = ordna.Store()
    for dtype in ("int64", "float64", "datetime64[us]"):
        store.put_many(np.array([], dtype), np.array([], dtype))
        assert store.get_many(np.array([], dtype)).tolist() == []
        assert store.get_many(np.array([], dtype), out=np.array([], dtype)).tolist() == []
    assert len(store) == 0 and [part.tolist() for part in store.scan()] == [[], []]


STORE = {1: 5, 2: -1, 3: 2.5, 4: "text", 5: dt.datetime(2020, 1, 1), 6: None, 7: 2**53 + 1, 8: True}


@pytest.mark.parametrize(("keys", "out", "expected"), [
    ([1], "uint64", [5]),
    ([1, 2], "int64", [5, -1]),
    ([1, 2, 3], "float64", [5.0, -1.0, 2.5]),
    ([5], "datetime64[us]", [dt.datetime(2020, 1, 1)]),
    ([1, 2], "uint64", "the value of 2, -1 of type 'int' does not fit an array of uint64"),
    ([1, 3], "int64", "the value of 3, 2.5 of type 'float' does not fit an array of int64"),
    ([1, 7], "float64", "the value of 7, 9007199254740993 of type 'int'"),
    ([1, 4], "uint64", "the value of 4 of type 'str'"),
    ([1, 6], "int64", "the value of 6 of type 'NoneType'"),
    ([1, 8], "int64", "the value of 8 of type 'bool'"),
    ([5, 1], "datetime64[us]", "the value of 1, 5 of type 'int'"),
    ([5], "int64", "the value of 5, .* of type 'datetime'"),
    ([5], "datetime64[ns]", "must be of uint64, int64, float64 or datetime64"),
    ([1], "int32", "must be of uint64, int64, float64 or datetime64"),
    ([1], ">i8", "must be of uint64, int64, float64 or datetime64"),
])
def test_out_decides_the_type(keys, out, expected):
    store, keys = ordna.Store(STORE), np.array(keys)
    room = np.zeros(2 * len(keys), out)[::2]
    if isinstance(expected, list):
        assert store.get_many(keys, out=room) is room
        same(room.tolist(), expected)
    else:
        with pytest.raises(TypeError, match=expected):
            store.get_many(keys, out=room)
        assert (room == np.zeros(len(keys), out)).all()


@pytest.mark.parametrize(("keys", "message"), [
    ([1, 3], "the value of 3, 2.5 of type 'float' does not fit an array of uint64"),
    ([3, 1], "the value of 1, 5 of type 'int' does not fit an array of float64"),
    ([1, 5], "the value of 5, .* of type 'datetime' does not fit an array of uint64"),
    ([4], "the value of 4 of type 'str' does not fit an array: numbers of 64 bits or moments"),
    ([2, 9], "the default 2.5 does not fit an array of int64"),
])
def test_mixed_values(keys, message):
    with pytest.raises(TypeError, match=message):
        ordna.Store(STORE).get_many(np.array(keys), default=2.5)


def test_columns_of_mixed_values():
    store = ordna.Store(STORE)
    for call in (lambda: store.scan(arrow=True), lambda: store.get_many(pa.array(list(STORE)))):
        with pytest.raises(TypeError, match="the value of 3, 2.5 of type 'float' does not fit a column of int64"):
            call()
    with pytest.raises(TypeError, match="the value of 2, -1 of type 'int' does not fit a column of uint64"):
        ordna.Store({1: 2**63, 2: -1}).scan()
    with pytest.raises(TypeError, match="the value of 0 of type 'tuple' does not fit a column: numbers"):
        ordna.Store({0: (1, 2)}).scan(arrow=True)
    with pytest.raises(TypeError, match="the key .* of type 'tuple' does not fit a column: numbers"):
        ordna.Store({(1, 2): 0}).scan(arrow=True)


def test_defaults_and_read_only_arrays():
    store, keys = ordna.Store({1: 5}), np.array([1, 2])
    same(store.get_many(keys, default=-1).tolist(), [5, -1])
    same(store.get_many(np.array([2]), default=0.5).tolist(), [0.5])
    same(ordna.Store({1: 0.5}).get_many(keys, default=3).tolist(), [0.5, 3.0])
    same(store.get_many(keys, default=np.uint64(7)).tolist(), [5, 7])
    # The default is not checked if all keys are present.
    same(store.get_many(np.array([1]), default="none").tolist(), [5])
    for default in ("none", None, [1], 2**64):
        with pytest.raises((TypeError, KeyError), match="default|2"):
            store.get_many(keys, default=default)
    out = np.zeros(2, np.uint64)
    with pytest.raises(TypeError, match="the default -1 does not fit an array of uint64"):
        store.get_many(keys, default=-1, out=out)
    times = np.zeros(2, "datetime64[us]")
    for room in (out, times):
        room.flags.writeable = False
        with pytest.raises(ValueError, match="writable"):
            store.get_many(keys, default=0, out=room)
    with pytest.raises(ValueError, match="2 items"):
        store.get_many(keys, out=np.zeros(3))
    with pytest.raises(TypeError, match="out goes with an array"):
        store.get_many([1, 2], out=np.zeros(2))


def test_columns_fill_arrays():
    column = ordna.Store({1: dt.datetime(2020, 1, 1)}).scan(arrow=True)[1]
    out = np.zeros(1, "datetime64[us]")
    column.fill(out)
    assert out.tolist() == [dt.datetime(2020, 1, 1)] == column.to_numpy().tolist()
    for wrong in (np.zeros(1, np.int64), np.zeros(1)):
        with pytest.raises(TypeError, match="not of"):
            column.fill(wrong)
    with pytest.raises(TypeError, match="null"):
        ordna.Store().get_many(pa.array([1])).to_numpy()
