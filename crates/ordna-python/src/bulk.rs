//! Many keys in one call, with the GIL released.
//!
//! Buffers of `uint64` and columns of Arrow are copied before the GIL is released, so another
//! thread may change them meanwhile.

use std::borrow::Borrow;
use std::sync::Arc;

use ordna::Direction;
use ordna::tuple::{Encode, code, decode};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::arrow::{Column, Gathered, Item, words_of};
use crate::core::{Core, encoded, wanted};
use crate::error::raise;
use crate::joining::Joining;
use crate::key;
use crate::plain::{Word, word_of};
use crate::shapes;
use crate::source::{Bytes, Source};

/// So many keys go to the store in one call.
const GROUP: usize = 1024;

/// Most items of one `put_many`: their order is kept as 32-bit positions, half of the memory of
/// `usize`.
const MAX_ITEMS: usize = u32::MAX as usize;

/// Keys or values of one type, copied from a buffer or a column.
enum Items {
    Words(Vec<u64>),
    /// Encoded as keys or as values; and whether they are strings.
    Encoded(Vec<Vec<u8>>, bool),
}

impl Items {
    /// The items of a buffer of uint64, or of a column of Arrow; `None` if the object is neither.
    fn of(object: &Bound<'_, PyAny>, are_keys: bool) -> PyResult<Option<Self>> {
        if let Some(column) = Column::import(object)? {
            if let Some(words) = column.as_words() {
                if arrow_array::Array::null_count(words) > 0 {
                    return Err(PyValueError::new_err("the column holds nulls"));
                }
                return Ok(Some(Self::Words(words.values().to_vec())));
            }
            let (mut items, mut texts) = (Vec::new(), false);
            column.each_bytes(|bytes, is_text| {
                texts = is_text;
                let first = if is_text { code::STRING } else { code::BYTES };
                let mut item = Vec::with_capacity(bytes.len() + 2);
                if !are_keys {
                    item.push(first);
                    item.extend_from_slice(bytes);
                } else if is_text {
                    // Columns of strings hold UTF-8, checked when they came in.
                    String::from_utf8_lossy(bytes).encode(&mut item);
                } else {
                    u8::encode_slice(bytes, &mut item);
                }
                items.push(item);
            })?;
            return Ok(Some(Self::Encoded(items, texts)));
        }
        if object.cast::<pyo3::types::PyBytes>().is_ok() || !is_buffer(object) {
            return Ok(None);
        }
        let buffer = words_of(object, "a buffer of keys or values")?;
        if buffer.dimensions() != 1 {
            let message = format!("a buffer must have one dimension, not {}", buffer.dimensions());
            return Err(PyValueError::new_err(message));
        }
        Ok(Some(Self::Words(buffer.to_vec(object.py())?)))
    }

    fn len(&self) -> usize {
        match self {
            Self::Words(words) => words.len(),
            Self::Encoded(items, _) => items.len(),
        }
    }

    fn shape(&self) -> u8 {
        match self {
            Self::Words(_) => shapes::INT,
            Self::Encoded(_, true) => shapes::STR,
            Self::Encoded(_, false) => shapes::BYTES,
        }
    }

    fn word(&self, at: usize) -> Word {
        match self {
            Self::Words(words) => Word::new(words[at]),
            Self::Encoded(..) => Word::new(0),
        }
    }

    fn bytes<'a>(&'a self, at: usize, word: &'a Word) -> &'a [u8] {
        match self {
            Self::Words(_) => word.borrow(),
            Self::Encoded(items, _) => &items[at],
        }
    }
}

fn is_buffer(object: &Bound<'_, PyAny>) -> bool {
    pyo3::buffer::PyUntypedBuffer::get(object).is_ok()
}

/// Refuses more items than [`MAX_ITEMS`], before they are copied.
fn refuse_too_many(items: usize) -> PyResult<()> {
    if items > MAX_ITEMS {
        let message = format!("{items} items; one call takes at most {MAX_ITEMS}");
        return Err(PyValueError::new_err(message));
    }
    Ok(())
}

/// Sets many keys; of a key that is given twice the later value stays. Pairs of a buffer of uint64
/// or a column of Arrow are written with the GIL released.
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
    let (Some(keys), Some(values)) = (Items::of(keys, true)?, Items::of(values, false)?) else {
        return put_objects(py, core, &store, keys, values);
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
        // In the order of the keys one write goes where the one before it went.
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        match &keys {
            Items::Words(words) => order.sort_by_key(|at| words[*at as usize]),
            Items::Encoded(items, _) => {
                order.sort_by(|a, b| items[*a as usize].cmp(&items[*b as usize]))
            }
        }
        let mut words = Vec::with_capacity(GROUP);
        for group in order.chunks(GROUP) {
            words.clear();
            words.extend(
                group.iter().map(|at| (keys.word(*at as usize), values.word(*at as usize))),
            );
            let pairs: Vec<(&[u8], &[u8])> = group
                .iter()
                .zip(&words)
                .map(|(at, (key, value))| {
                    (keys.bytes(*at as usize, key), values.bytes(*at as usize, value))
                })
                .collect();
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

/// Admits all keys by the first one: they have one type.
fn admit(core: &Core, store: &Arc<Bytes>, keys: &Items) -> PyResult<bool> {
    let word = keys.word(0);
    let bytes = keys.bytes(0, &word).to_vec();
    let first = crate::core::Encoded { bytes, shape: [keys.shape()].as_slice().into() };
    core.admit(&Source::Live(Arc::clone(store)), &first)
}

fn put_objects(
    py: Python<'_>,
    core: &Core,
    store: &Arc<Bytes>,
    keys: &Bound<'_, PyAny>,
    values: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let source = Source::Live(Arc::clone(store));
    let (mut pairs, mut joining) = (Vec::new(), Joining::default());
    let (mut keys, mut values) = (keys.try_iter()?, values.try_iter()?);
    loop {
        let (key, value) = match (keys.next(), values.next()) {
            (Some(key), Some(value)) => (key?, value?),
            (None, None) => break,
            _ => return Err(PyValueError::new_err("not as many keys as values")),
        };
        let key = encoded(&key)?;
        let is_new = core.admit(&source, &key)?;
        joining.note(&source, is_new, &key.bytes, &key.shape);
        pairs.push((key.bytes, core.encode_value(&value)?));
    }
    joining.check(pairs.iter().map(|(key, _)| key.as_slice()))?;
    let done = py.detach(|| store.insert_many(&pairs));
    // A call that failed may have written some of them.
    if done.is_ok() || !store.is_empty() {
        joining.done(&core.shapes);
    }
    done.map(drop).map_err(raise)
}

/// The values of many keys. Keys of a buffer: into the buffer `out`, both of uint64. Keys of a
/// column: a column, with nulls for absent keys. Other keys: a list.
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
            return Err(PyTypeError::new_err("out goes with keys of uint64; these give a list"));
        }
        return get_objects(py, core, &source, keys, default);
    };
    let Some(out) = out else {
        if default.is_some() {
            let message = "default goes with an array or with out; a column has nulls";
            return Err(PyTypeError::new_err(message));
        }
        return gather(py, &source, &items);
    };
    let missing = default.map(|default| default.extract::<u64>()).transpose()?;
    let buffer = words_of(out, "the buffer for values")?;
    if buffer.dimensions() != 1 || buffer.readonly() || buffer.item_count() != items.len() {
        let message = format!(
            "the buffer for values must be writable, of one dimension and {} items",
            items.len()
        );
        return Err(PyValueError::new_err(message));
    }
    let (mut found, mut wrong) = (vec![0; items.len()], None);
    py.detach(|| {
        each_value(&source, &items, |at, value| {
            match value.map_or(missing.ok_or(true), |value| word_of(value).ok_or(false)) {
                Ok(word) => found[at] = word,
                Err(is_missing) => wrong = wrong.or(Some((at, is_missing))),
            }
        });
    });
    if let Some((at, is_missing)) = wrong {
        let word = items.word(at);
        let key = key::decode(py, items.bytes(at, &word), &[])?;
        let what = format!("the value of {key} is no integer of 64 bits");
        return Err(if is_missing {
            PyKeyError::new_err(key.unbind())
        } else {
            PyTypeError::new_err(what)
        });
    }
    buffer.copy_from_slice(py, &found)?;
    Ok(out.clone())
}

/// Calls `each` with position and value of every key.
fn each_value(source: &Source, keys: &Items, mut each: impl FnMut(usize, Option<&[u8]>)) {
    let mut words = Vec::with_capacity(GROUP);
    for start in (0..keys.len()).step_by(GROUP) {
        let group = start..(start + GROUP).min(keys.len());
        words.clear();
        words.extend(group.clone().map(|at| keys.word(at)));
        let bytes: Vec<&[u8]> = group.zip(&words).map(|(at, word)| keys.bytes(at, word)).collect();
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
    // A key that no store can hold is as absent as the empty one, which encodes nothing.
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
    Ok(pyo3::types::PyList::new(py, objects)?.into_any())
}

/// A value as an item of a column.
fn value_item(value: &[u8]) -> Option<Item> {
    match value {
        [code::STRING, text @ ..] => String::from_utf8(text.to_vec()).ok().map(Item::Text),
        [code::BYTES, bytes @ ..] => Some(Item::Bytes(bytes.to_vec())),
        [code::NULL] => Some(Item::Null),
        value => word_of(value).map(Item::Word),
    }
}

/// A key as an item of a column.
fn key_item(key: &[u8]) -> Option<Item> {
    match *key.first()? {
        code::STRING => decode(key).ok().map(Item::Text),
        code::BYTES => decode(key).ok().map(Item::Bytes),
        _ => word_of(key).map(Item::Word),
    }
}

fn mixed() -> PyErr {
    PyTypeError::new_err(
        "a column holds integers of 64 bits, bytes or strings, and only one of these",
    )
}

fn gather<'py>(py: Python<'py>, source: &Source, keys: &Items) -> PyResult<Bound<'py, PyAny>> {
    let (mut gathered, mut fits) = (Gathered::Empty(0), true);
    py.detach(|| {
        each_value(source, keys, |_, value| {
            let item = value.map_or(Some(Item::Null), value_item);
            fits = fits && item.is_some_and(|item| gathered.push(item));
        });
    });
    if !fits {
        return Err(mixed());
    }
    Ok(Bound::new(py, gathered.column())?.into_any())
}

/// Columns of the keys and values within the bounds, in order, read with the GIL released.
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
    let (mut keys, mut values, mut fits) = (Gathered::Empty(0), Gathered::Empty(0), true);
    py.detach(|| {
        let mut left = limit;
        if left == 0 {
            return;
        }
        source.visit(&span, direction, |key, value| {
            fits = key_item(key).is_some_and(|item| keys.push(item))
                && value_item(value).is_some_and(|item| values.push(item));
            left -= 1;
            if fits && left > 0 {
                std::ops::ControlFlow::Continue(())
            } else {
                std::ops::ControlFlow::Break(())
            }
        });
    });
    if fits { Ok((keys.column(), values.column())) } else { Err(mixed()) }
}
