//! Many keys in one call, with the GIL released.
//!
//! Arrays and columns of Arrow are copied before the GIL is released, so another thread may change
//! them during the call.

use std::ops::ControlFlow;
use std::sync::Arc;

use ordna::Direction;
use ordna::tuple::{Encode, code, decode};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList};

use crate::arrays::{Target, new_array, numbers_of};
use crate::arrow::{Column, Gathered, Item};
use crate::core::{Core, Encoded, encoded, wanted};
use crate::error::raise;
use crate::joining::Joining;
use crate::key::{self, Refused, Rules};
use crate::numbers::{Kind, Numbers, Scalar};
use crate::shapes::{self, Shape};
use crate::source::{Bytes, Source};

/// Number of keys that are passed to the store in one call.
const GROUP: usize = 1024;

/// Maximum number of items of one `put_many`. Their order is stored as 32-bit positions, which take
/// half of the memory of `usize`.
const MAX_ITEMS: usize = u32::MAX as usize;

/// Encoded items, stored one after the other.
#[derive(Default)]
struct Rows {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Rows {
    fn push(&mut self, append: impl FnOnce(&mut Vec<u8>)) {
        append(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }

    fn get(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[at]]
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// The items of an array or a column.
enum Data {
    /// Numbers, which are encoded in groups, because this takes less memory than encoding all at
    /// once.
    Numbers(Numbers),
    /// Encoded strings or bytes, and their shape.
    Encoded(Rows, u8),
}

/// Keys or values of one type, copied from an array or a column.
struct Items {
    data: Data,
    are_keys: bool,
    is_column: bool,
}

impl Items {
    /// Copies the items of an array of numbers, or of a column of Arrow. Returns `None` if the
    /// object is neither.
    fn of(object: &Bound<'_, PyAny>, are_keys: bool) -> PyResult<Option<Self>> {
        if let Some(column) = Column::import(object)? {
            column.check_nulls()?;
            let data = match column.numbers()? {
                Some(numbers) => Data::Numbers(numbers),
                None => Self::encode_column(&column, are_keys)?,
            };
            return Ok(Some(Self { data, are_keys, is_column: true }));
        }
        let numbers = numbers_of(object)?.map(Data::Numbers);
        Ok(numbers.map(|data| Self { data, are_keys, is_column: false }))
    }

    fn encode_column(column: &Column, are_keys: bool) -> PyResult<Data> {
        let (mut rows, mut shape) = (Rows::default(), shapes::BYTES);
        column.each_bytes(|bytes, is_text| {
            let code = if is_text { code::STRING } else { code::BYTES };
            shape = if is_text { shapes::STR } else { shapes::BYTES };
            rows.push(|out| {
                if !are_keys {
                    out.push(code);
                    out.extend_from_slice(bytes);
                } else if is_text {
                    // Columns of strings contain UTF-8, which was checked when they were imported.
                    String::from_utf8_lossy(bytes).encode(out);
                } else {
                    u8::encode_slice(bytes, out);
                }
            });
        })?;
        Ok(Data::Encoded(rows, shape))
    }

    fn len(&self) -> usize {
        match &self.data {
            Data::Numbers(numbers) => numbers.bits.len(),
            Data::Encoded(rows, _) => rows.ends.len(),
        }
    }

    fn shape(&self) -> u8 {
        match &self.data {
            Data::Numbers(numbers) => numbers.kind.shape(),
            Data::Encoded(_, shape) => *shape,
        }
    }

    fn encoded(&self, at: usize) -> Vec<u8> {
        let mut rows = Rows::default();
        self.group([at].into_iter(), &mut rows).concat()
    }

    /// Returns the encoded items at the given positions. Encodes numbers into `rows`.
    fn group<'a>(
        &'a self,
        positions: impl Iterator<Item = usize>,
        rows: &'a mut Rows,
    ) -> Vec<&'a [u8]> {
        match &self.data {
            Data::Numbers(numbers) => {
                rows.clear();
                for at in positions {
                    rows.push(|out| numbers.get(at).encode(self.are_keys, out));
                }
                let rows = &*rows;
                (0..rows.ends.len()).map(|at| rows.get(at)).collect()
            }
            Data::Encoded(rows, _) => positions.map(|at| rows.get(at)).collect(),
        }
    }

    /// Returns the positions, sorted by their items. Positions of equal items are in ascending
    /// order.
    fn order(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        match &self.data {
            Data::Numbers(Numbers { kind, bits }) => {
                order.sort_by_key(|at| kind.rank(bits[*at as usize]));
            }
            Data::Encoded(rows, _) => {
                order.sort_by(|a, b| rows.get(*a as usize).cmp(rows.get(*b as usize)));
            }
        }
        order
    }

    /// Returns a key as an object.
    fn key<'py>(&self, py: Python<'py>, at: usize) -> PyResult<Bound<'py, PyAny>> {
        key::decode(py, &self.encoded(at), &[self.shape()])
    }
}

/// The keys or values of `put_many`.
enum Side<'py> {
    Items(Items),
    Objects(Bound<'py, PyIterator>),
}

impl<'py> Side<'py> {
    fn of(object: &Bound<'py, PyAny>, are_keys: bool) -> PyResult<Self> {
        match Items::of(object, are_keys)? {
            Some(items) => Ok(Self::Items(items)),
            None => object.try_iter().map(Self::Objects),
        }
    }

    /// Returns the encoded item at a position. Encodes objects by `encode`. The caller must pass
    /// the positions in order, starting at 0.
    fn encoded(
        &mut self,
        at: usize,
        encode: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<Encoded>,
    ) -> Option<PyResult<Encoded>> {
        match self {
            Self::Items(items) => (at < items.len()).then(|| {
                let shape = [items.shape()].as_slice().into();
                Ok(Encoded { bytes: items.encoded(at), shape })
            }),
            Self::Objects(objects) => {
                objects.next().map(|object| object.and_then(|object| encode(&object)))
            }
        }
    }
}

/// Refuses more items than [`MAX_ITEMS`], before they are copied.
fn refuse_too_many(items: usize) -> PyResult<()> {
    if items > MAX_ITEMS {
        let message = format!("{items} items; one call takes at most {MAX_ITEMS}");
        return Err(PyValueError::new_err(message));
    }
    Ok(())
}

/// Sets many keys of a store. If a key occurs twice, its last value wins. Releases the GIL while it
/// writes arrays or columns of Arrow.
#[pyfunction]
pub fn put_many(
    py: Python<'_>,
    core: &Core,
    keys: &Bound<'_, PyAny>,
    values: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let store = core.store()?;
    for items in [keys, values] {
        refuse_too_many(items.len().unwrap_or(0))?;
    }
    let (keys, values) = match (Side::of(keys, true)?, Side::of(values, false)?) {
        (Side::Items(keys), Side::Items(values)) => (keys, values),
        (keys, values) => return put_objects(py, core, &store, keys, values),
    };
    if keys.len() != values.len() {
        let message = format!("{} keys, but {} values", keys.len(), values.len());
        return Err(PyValueError::new_err(message));
    }
    if keys.len() == 0 {
        return Ok(());
    }
    refuse_too_many(keys.len())?;
    let is_new = admit(core, &store, &keys)?;
    let mut present = 0;
    let done = py.detach(|| {
        // In the order of the keys, consecutive writes usually change the same leaf.
        let order = keys.order();
        let mut rows = (Rows::default(), Rows::default());
        for group in order.chunks(GROUP) {
            let positions = || group.iter().map(|at| *at as usize);
            let keys = keys.group(positions(), &mut rows.0);
            let values = values.group(positions(), &mut rows.1);
            let pairs: Vec<(&[u8], &[u8])> = keys.into_iter().zip(values).collect();
            present += pairs.len() - store.insert_many(&pairs)?;
        }
        Ok(())
    });
    // A call that failed may have written some of them.
    if is_new && !store.is_empty() && (done.is_err() || present < keys.len()) {
        core.shapes.remember(&[keys.shape()]);
    }
    done.map_err(raise)
}

/// Checks all keys against those of the store. Checks only the first one, as they have one type.
fn admit(core: &Core, store: &Arc<Bytes>, keys: &Items) -> PyResult<bool> {
    let first = Encoded { bytes: keys.encoded(0), shape: [keys.shape()].as_slice().into() };
    core.admit(&Source::Live(Arc::clone(store)), &first)
}

fn put_objects(
    py: Python<'_>,
    core: &Core,
    store: &Arc<Bytes>,
    mut keys: Side<'_>,
    mut values: Side<'_>,
) -> PyResult<()> {
    let source = Source::Live(Arc::clone(store));
    let (mut pairs, mut joining) = (Vec::new(), Joining::default());
    let encode_value = |value: &Bound<'_, PyAny>| {
        Ok(Encoded { bytes: core.encode_value(value)?, shape: Shape::new() })
    };
    for at in 0.. {
        let key = keys.encoded(at, encoded).transpose()?;
        let (key, value) = match (key, values.encoded(at, encode_value).transpose()?) {
            (Some(key), Some(value)) => (key, value),
            (None, None) => break,
            _ => return Err(PyValueError::new_err("not as many keys as values")),
        };
        let is_new = core.admit(&source, &key)?;
        joining.note(&source, is_new, &key.bytes, &key.shape);
        pairs.push((key.bytes, value.bytes));
    }
    joining.check(pairs.iter().map(|(key, _)| key.as_slice()))?;
    let done = py.detach(|| store.insert_many(&pairs));
    // A call that failed may have written some of them.
    if done.is_ok() || !store.is_empty() {
        joining.done(&core.shapes);
    }
    done.map(drop).map_err(raise)
}

/// Returns the values of many keys. The result is an array if the keys are an array, a column with
/// nulls for absent keys if the keys are a column of Arrow, and otherwise a list. With `out`, fills
/// and returns that array.
#[pyfunction]
#[pyo3(signature = (core, keys, default, out))]
pub fn get_many<'py>(
    py: Python<'py>,
    core: &Core,
    keys: &Bound<'py, PyAny>,
    default: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let source = core.source()?;
    let Some(items) = Items::of(keys, true)? else {
        if out.is_some() {
            return Err(PyTypeError::new_err(
                "out goes with an array or a column of keys; other keys give a list",
            ));
        }
        return get_objects(py, core, &source, keys, default);
    };
    if let Some(out) = out {
        fill(core, &source, &items, default, out)?;
        return Ok(out.clone());
    }
    if items.is_column && default.is_some() {
        let message = "default goes with an array or with out; a column has nulls";
        return Err(PyTypeError::new_err(message));
    }
    let gathered = gather(py, core, &source, &items)?;
    if items.is_column {
        return Ok(Bound::new(py, gathered.column())?.into_any());
    }
    new_array(py, &without_nulls(py, &items, gathered, default)?)
}

/// Fills the array `out` with the values. Writes nothing if the array cannot represent one of them.
fn fill(
    core: &Core,
    source: &Source,
    keys: &Items,
    default: Option<&Bound<'_, PyAny>>,
    out: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let py = out.py();
    let target = Target::of(out, keys.len())?;
    let missing = default.map(|default| default_in(default, &target)).transpose()?;
    let (mut found, mut wrong) = (vec![0; keys.len()], None);
    py.detach(|| {
        each_value(source, keys, |at, value| {
            let bits = match value {
                Some(value) => {
                    Scalar::decode(value, false).and_then(|scalar| scalar.bits_as(target.kind))
                }
                None => missing,
            };
            match bits {
                Some(bits) => found[at] = bits,
                None if wrong.is_none() => wrong = Some((at, value.map(<[u8]>::to_vec))),
                None => {}
            }
        });
    });
    match wrong {
        None => target.fill(py, &found),
        Some((at, None)) => Err(PyKeyError::new_err(keys.key(py, at)?.unbind())),
        Some((at, Some(value))) => {
            let holder = format!("an array of {}", target.kind.name());
            Err(does_not_fit(core, &keys.key(py, at)?, Some(&value), &holder)?)
        }
    }
}

/// Returns `default` as a number or a moment.
fn default_of(default: &Bound<'_, PyAny>) -> PyResult<Scalar> {
    let mut bytes = Vec::new();
    let scalar = match key::put(default, Rules::VALUE, 0, &mut bytes, &mut Shape::new()) {
        Ok(()) => Scalar::decode(&bytes, false),
        Err(Refused::Raised(error)) => return Err(error),
        Err(Refused::Type | Refused::Limit(_)) => None,
    };
    scalar.ok_or_else(|| default_does_not_fit(default, "an array"))
}

fn default_in(default: &Bound<'_, PyAny>, target: &Target) -> PyResult<u64> {
    let holder = format!("an array of {}", target.kind.name());
    let bits = default_of(default)?.bits_as(target.kind);
    bits.ok_or_else(|| default_does_not_fit(default, &holder))
}

fn default_does_not_fit(default: &Bound<'_, PyAny>, holder: &str) -> PyErr {
    match default.repr() {
        Ok(text) => PyTypeError::new_err(format!("the default {text} does not fit {holder}")),
        Err(error) => error,
    }
}

/// Returns the numbers for an array, with the default for absent keys.
fn without_nulls(
    py: Python<'_>,
    keys: &Items,
    gathered: Gathered,
    default: Option<&Bound<'_, PyAny>>,
) -> PyResult<Numbers> {
    let (mut numbers, nulls) = match gathered {
        Gathered::Numbers { numbers, nulls } => (numbers, nulls),
        // All keys are absent, because strings and bytes were refused when they were read.
        _ => (Numbers::zeros(keys.len()), (0..keys.len()).collect()),
    };
    let Some(first) = nulls.first() else { return Ok(numbers) };
    let Some(default) = default else {
        return Err(PyKeyError::new_err(keys.key(py, *first)?.unbind()));
    };
    let scalar = default_of(default)?;
    if nulls.len() == keys.len() {
        return Ok(Numbers { kind: scalar.kind, bits: vec![scalar.bits; keys.len()] });
    }
    // A default that is an integer may become a float.
    let are_numbers = numbers.kind == Kind::Float;
    let holder = format!("an array of {}", numbers.kind.name());
    if !numbers.push(scalar, are_numbers) {
        return Err(default_does_not_fit(default, &holder));
    }
    let bits = numbers.bits.pop().unwrap_or_default();
    nulls.iter().for_each(|at| numbers.bits[*at] = bits);
    Ok(numbers)
}

/// Calls `each` with the position and the value of every key.
fn each_value(source: &Source, keys: &Items, mut each: impl FnMut(usize, Option<&[u8]>)) {
    let mut rows = Rows::default();
    for start in (0..keys.len()).step_by(GROUP) {
        let group = start..(start + GROUP).min(keys.len());
        let bytes = keys.group(group, &mut rows);
        source.get_many(&bytes, |at, value| each(start + at, value));
    }
}

fn get_objects<'py>(
    py: Python<'py>,
    core: &Core,
    source: &Source,
    keys: &Bound<'py, PyAny>,
    default: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    // A key that no store can contain becomes empty bytes, which are always absent, because they
    // are the encoding of no key.
    let bytes = |key: PyResult<Bound<'py, PyAny>>| -> PyResult<Vec<u8>> {
        Ok(wanted(&key?)?.map_or_else(Vec::new, |key| key.bytes))
    };
    let bytes = keys.try_iter()?.map(bytes).collect::<PyResult<Vec<_>>>()?;
    let mut values = Vec::with_capacity(bytes.len());
    py.detach(|| source.get_many(&bytes, |_, value| values.push(value.map(<[u8]>::to_vec))));
    let none = py.None().into_bound(py);
    let default = default.unwrap_or(&none);
    let objects = values.into_iter().map(|value| match value {
        Some(value) => core.decode_value(py, &value),
        None => Ok(default.clone()),
    });
    let objects = objects.collect::<PyResult<Vec<_>>>()?;
    Ok(PyList::new(py, objects)?.into_any())
}

/// Returns a value as an item of a column.
fn value_item(value: &[u8]) -> Option<Item> {
    match value {
        [code::STRING, text @ ..] => String::from_utf8(text.to_vec()).ok().map(Item::Text),
        [code::BYTES, bytes @ ..] => Some(Item::Bytes(bytes.to_vec())),
        [code::NULL] => Some(Item::Null),
        value => Scalar::decode(value, false).map(Item::Scalar),
    }
}

/// Returns a key as an item of a column. `is_float` says that all keys were written as floats.
fn key_item(key: &[u8], is_float: bool) -> Option<Item> {
    match *key.first()? {
        code::STRING => decode(key).ok().map(Item::Text),
        code::BYTES => decode(key).ok().map(Item::Bytes),
        // An integer of more than 64 bits may equal a float.
        _ => Scalar::decode(key, is_float).or_else(|| Scalar::decode(key, true)).map(Item::Scalar),
    }
}

/// Returns the exception for a key that `holder` cannot contain or, with `value`, for the value of
/// that key.
///
/// # Errors
/// Returns an error if the value cannot be decoded.
fn does_not_fit(
    core: &Core,
    key: &Bound<'_, PyAny>,
    value: Option<&[u8]>,
    holder: &str,
) -> PyResult<PyErr> {
    let mut subject = format!("the key {}", key.repr()?);
    let mut object = key.clone();
    if let Some(value) = value {
        object = core.decode_value(key.py(), value)?;
        subject = format!("the value of {}", key.repr()?);
        // Only numbers and moments are displayed, as other values may be long.
        if Scalar::decode(value, false).is_some() {
            subject = format!("{subject}, {}", object.repr()?);
        }
    }
    let name = object.get_type().name()?;
    Ok(PyTypeError::new_err(format!("{subject} of type '{name}' does not fit {holder}")))
}

/// Describes what a column or an array that contains these items can contain.
fn holder(gathered: &Gathered, is_column: bool) -> String {
    match gathered {
        Gathered::Empty(_) if is_column => {
            "a column: numbers of 64 bits, moments, bytes or strings".to_owned()
        }
        Gathered::Empty(_) => "an array: numbers of 64 bits or moments".to_owned(),
        begun => format!("{} of {}", if is_column { "a column" } else { "an array" }, begun.name()),
    }
}

/// Returns the values of an array or a column of keys. For an array, they must be numbers or
/// moments.
fn gather(py: Python<'_>, core: &Core, source: &Source, keys: &Items) -> PyResult<Gathered> {
    let (mut gathered, mut wrong) = (Gathered::Empty(0), None);
    py.detach(|| {
        each_value(source, keys, |at, value| {
            let item = match value {
                Some(value) => value_item(value)
                    .filter(|item| keys.is_column || matches!(item, Item::Scalar(_))),
                None => Some(Item::Null),
            };
            if wrong.is_none() && !item.is_some_and(|item| gathered.push(item, false)) {
                wrong = Some((at, value.map(<[u8]>::to_vec)));
            }
        });
    });
    let Some((at, value)) = wrong else { return Ok(gathered) };
    let holder = holder(&gathered, keys.is_column);
    Err(does_not_fit(core, &keys.key(py, at)?, value.as_deref(), &holder)?)
}

/// Returns the keys and the values within the bounds as two columns, in order. Releases the GIL.
#[pyfunction]
#[pyo3(signature = (core, lo, hi, inclusive, reverse, limit))]
pub fn scan(
    py: Python<'_>,
    core: &Core,
    lo: Option<&Bound<'_, PyAny>>,
    hi: Option<&Bound<'_, PyAny>>,
    inclusive: (bool, bool),
    reverse: bool,
    limit: Option<usize>,
) -> PyResult<(Column, Column)> {
    let source = core.source()?;
    let span = core.span(&source, lo, hi, inclusive)?;
    let direction = if reverse { Direction::Descending } else { Direction::Ascending };
    let limit = limit.unwrap_or(usize::MAX);
    let shape = core.shapes.only();
    let is_float = shape.as_slice() == [shapes::FLOAT];
    let (mut keys, mut values, mut wrong) = (Gathered::Empty(0), Gathered::Empty(0), None);
    py.detach(|| {
        let mut left = limit;
        if left == 0 {
            return;
        }
        source.visit(&span, direction, |key, value| {
            if !key_item(key, is_float).is_some_and(|item| keys.push(item, true)) {
                wrong = Some((key.to_vec(), None));
            } else if !value_item(value).is_some_and(|item| values.push(item, false)) {
                wrong = Some((key.to_vec(), Some(value.to_vec())));
            }
            left -= 1;
            if wrong.is_none() && left > 0 {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
    });
    let Some((key, value)) = wrong else { return Ok((keys.column(), values.column())) };
    let holder = holder(if value.is_some() { &values } else { &keys }, true);
    Err(does_not_fit(core, &key::decode(py, &key, &shape)?, value.as_deref(), &holder)?)
}
