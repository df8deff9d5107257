//! Columns of Arrow, given and taken through capsules.

#![expect(unsafe_code, reason = "the Arrow C data interface passes pointers")]

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi, to_ffi};
use arrow_array::types::UInt64Type;
use arrow_array::{Array, ArrayRef, BinaryArray, StringArray, UInt64Array, make_array};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList, PyTuple};

const SCHEMA: &std::ffi::CStr = c"arrow_schema";
const ARRAY: &std::ffi::CStr = c"arrow_array";

/// The buffer of an object, which must be of uint64 in the byte order of the machine.
pub fn words_of(object: &Bound<'_, PyAny>, what: &str) -> PyResult<PyBuffer<u64>> {
    let foreign: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };
    // PyO3 does not look at the byte order.
    match PyBuffer::<u64>::get(object) {
        Ok(buffer)
            if !buffer.format().to_bytes().first().is_some_and(|mark| foreign.contains(mark)) =>
        {
            Ok(buffer)
        }
        _ => Err(PyTypeError::new_err(format!("{what} must be of uint64"))),
    }
}

/// A column of keys or values: unsigned integers, bytes or strings.
#[pyclass(frozen, module = "ordna._ordna")]
pub struct Column(pub ArrayRef);

impl Column {
    pub fn words(words: Vec<u64>) -> Self {
        Self(Arc::new(UInt64Array::from(words)))
    }

    /// The column that a producer of Arrow gives; `None` if the object is none.
    pub fn import(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if let Ok(column) = object.cast::<Self>() {
            return Ok(Some(Self(Arc::clone(&column.get().0))));
        }
        if !object.hasattr("__arrow_c_array__")? {
            return Ok(None);
        }
        let pair = object.call_method0("__arrow_c_array__")?;
        let (schema, array): (Bound<'_, PyCapsule>, Bound<'_, PyCapsule>) = pair.extract()?;
        let schema = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
        let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
        // SAFETY: capsules of these names hold these structures by Arrow's PyCapsule interface.
        // The array is moved out: what stays in the capsule is marked as released.
        let data = unsafe { from_ffi(FFI_ArrowArray::from_raw(array.as_ptr()), schema.as_ref()) };
        let data = data.map_err(|error| PyValueError::new_err(error.to_string()))?;
        data.validate_full().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Some(Self(make_array(data))))
    }

    /// The words, if it is a column of `uint64`.
    pub fn as_words(&self) -> Option<&UInt64Array> {
        self.0.as_primitive_opt::<UInt64Type>()
    }

    /// Calls `each` with every item as bytes: `Err` for a null.
    pub fn each_bytes(&self, mut each: impl FnMut(&[u8], bool)) -> PyResult<()> {
        if self.0.null_count() > 0 {
            return Err(PyValueError::new_err("the column holds nulls"));
        }
        if let Some(items) = self.0.as_binary_opt::<i32>() {
            items.iter().flatten().for_each(|item| each(item, false));
        } else if let Some(items) = self.0.as_binary_opt::<i64>() {
            items.iter().flatten().for_each(|item| each(item, false));
        } else if let Some(items) = self.0.as_string_opt::<i32>() {
            items.iter().flatten().for_each(|item| each(item.as_bytes(), true));
        } else if let Some(items) = self.0.as_string_opt::<i64>() {
            items.iter().flatten().for_each(|item| each(item.as_bytes(), true));
        } else {
            let message =
                format!("columns are uint64, binary or string, not {}", self.0.data_type());
            return Err(PyTypeError::new_err(message));
        }
        Ok(())
    }
}

#[pymethods]
impl Column {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// The Arrow PyCapsule interface.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // The producer may ignore what is requested.
        drop(requested_schema);
        let (array, schema) =
            to_ffi(&self.0.to_data()).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
        let array = PyCapsule::new_with_value(py, array, ARRAY)?;
        PyTuple::new(py, [schema, array])
    }

    /// Copies a column of uint64 without nulls into a buffer of as many items.
    fn fill(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let Some(words) = self.as_words() else {
            return Err(PyTypeError::new_err("the column is not of uint64"));
        };
        if words.null_count() > 0 {
            return Err(PyTypeError::new_err("the column holds nulls: None is no uint64"));
        }
        words_of(out, "the buffer")?.copy_from_slice(py, words.values())
    }

    /// The items as Python's own objects; a null is None.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        if let Some(words) = self.as_words() {
            return PyList::new(py, words.iter().collect::<Vec<_>>());
        }
        if let Some(texts) = self.0.as_string_opt::<i32>() {
            return PyList::new(py, texts.iter().collect::<Vec<_>>());
        }
        PyList::new(py, self.0.as_binary::<i32>().iter().collect::<Vec<_>>())
    }
}

/// Gathers decoded keys or values into a column of their type.
pub enum Gathered {
    Empty(usize),
    Words(Vec<Option<u64>>),
    Bytes(Vec<Option<Vec<u8>>>),
    Texts(Vec<Option<String>>),
}

/// An item that a column can hold.
pub enum Item {
    Null,
    Word(u64),
    Bytes(Vec<u8>),
    Text(String),
}

impl Gathered {
    /// Appends an item; `false` if it is of another type than those before it.
    pub fn push(&mut self, item: Item) -> bool {
        if let Self::Empty(nulls) = self {
            let nulls = *nulls;
            *self = match item {
                Item::Null => Self::Empty(nulls + 1),
                Item::Word(word) => {
                    Self::Words(vec![None; nulls].into_iter().chain([Some(word)]).collect())
                }
                Item::Bytes(bytes) => {
                    Self::Bytes(vec![None; nulls].into_iter().chain([Some(bytes)]).collect())
                }
                Item::Text(text) => {
                    Self::Texts(vec![None; nulls].into_iter().chain([Some(text)]).collect())
                }
            };
            return true;
        }
        match (self, item) {
            (Self::Words(words), Item::Word(word)) => words.push(Some(word)),
            (Self::Words(words), Item::Null) => words.push(None),
            (Self::Bytes(all), Item::Bytes(bytes)) => all.push(Some(bytes)),
            (Self::Bytes(all), Item::Null) => all.push(None),
            (Self::Texts(all), Item::Text(text)) => all.push(Some(text)),
            (Self::Texts(all), Item::Null) => all.push(None),
            _ => return false,
        }
        true
    }

    /// The column; one of nulls only, or of nothing, is of `uint64`.
    pub fn column(self) -> Column {
        Column(match self {
            Self::Empty(nulls) => Arc::new(UInt64Array::from(vec![None; nulls])),
            Self::Words(words) => Arc::new(UInt64Array::from(words)),
            Self::Bytes(bytes) => Arc::new(BinaryArray::from_iter(bytes)),
            Self::Texts(texts) => Arc::new(StringArray::from_iter(texts)),
        })
    }
}
