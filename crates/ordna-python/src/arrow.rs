//! Columns of Arrow, which are exchanged with other libraries through capsules.

#![expect(unsafe_code, reason = "the Arrow C data interface passes pointers")]

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi, to_ffi};
use arrow_array::types::{
    ArrowTimestampType, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, Float64Array, Int64Array, StringArray,
    TimestampMicrosecondArray, UInt64Array, make_array,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList, PyTuple};

use crate::arrays::{Target, moments, new_array};
use crate::key;
use crate::numbers::{Kind, Numbers, Scalar, Unit};

const SCHEMA: &std::ffi::CStr = c"arrow_schema";
const ARRAY: &std::ffi::CStr = c"arrow_array";

/// A column of keys or values: numbers, datetimes, bytes or strings. It has the Arrow PyCapsule
/// interface, so `pyarrow.array(column)` and `polars.Series(column)` accept it.
#[pyclass(frozen, module = "ordna._ordna")]
pub struct Column(pub ArrayRef);

/// Returns the bits of the items of a column of type `T`, or `None` if it is of another type.
fn bits_of<T: ArrowPrimitiveType>(
    column: &ArrayRef,
    bits: impl Fn(T::Native) -> u64,
) -> Option<Vec<u64>> {
    let values = column.as_primitive_opt::<T>()?.values();
    Some(values.iter().map(|value| bits(*value)).collect())
}

/// Returns the moments of a column of type `T`, or `None` if it is of another type.
fn moments_of<T: ArrowTimestampType>(column: &ArrayRef, unit: Unit) -> Option<PyResult<Numbers>> {
    let column = column.as_primitive_opt::<T>()?;
    let kind = if column.timezone().is_some() { Kind::Utc } else { Kind::Local };
    Some(moments(kind, unit, column.values()))
}

impl Column {
    /// Imports the column of an object that exports Arrow data. Returns `None` for other objects.
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
        // SAFETY: by Arrow's PyCapsule interface, capsules of these names contain these structures.
        // The array is moved out, and the one that remains in the capsule is marked as released.
        let data = unsafe { from_ffi(FFI_ArrowArray::from_raw(array.as_ptr()), schema.as_ref()) };
        let data = data.map_err(|error| PyValueError::new_err(error.to_string()))?;
        data.validate_full().map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Some(Self(make_array(data))))
    }

    /// Returns an error if the column contains a null.
    pub fn check_nulls(&self) -> PyResult<()> {
        let nulls = self.0.nulls();
        match nulls.and_then(|nulls| nulls.iter().position(|is_valid| !is_valid)) {
            Some(at) => Err(PyValueError::new_err(format!("the column holds a null at item {at}"))),
            None => Ok(()),
        }
    }

    /// Copies the numbers or moments of the column. Those of nulls are arbitrary. Returns `None` if
    /// the items are of another type.
    ///
    /// # Errors
    /// Returns an error if Python cannot represent one of the moments.
    pub fn numbers(&self) -> PyResult<Option<Numbers>> {
        let column = &self.0;
        let unsigned = bits_of::<UInt64Type>(column, |item| item)
            .or_else(|| bits_of::<UInt32Type>(column, u64::from))
            .or_else(|| bits_of::<UInt16Type>(column, u64::from))
            .or_else(|| bits_of::<UInt8Type>(column, u64::from));
        if let Some(bits) = unsigned {
            return Ok(Some(Numbers { kind: Kind::Unsigned, bits }));
        }
        let signed = bits_of::<Int64Type>(column, i64::cast_unsigned)
            .or_else(|| bits_of::<Int32Type>(column, |item| item as u64))
            .or_else(|| bits_of::<Int16Type>(column, |item| item as u64))
            .or_else(|| bits_of::<Int8Type>(column, |item| item as u64));
        if let Some(bits) = signed {
            return Ok(Some(Numbers { kind: Kind::Signed, bits }));
        }
        let floats = bits_of::<Float64Type>(column, f64::to_bits)
            .or_else(|| bits_of::<Float32Type>(column, |item| f64::from(item).to_bits()));
        if let Some(bits) = floats {
            return Ok(Some(Numbers { kind: Kind::Float, bits }));
        }
        moments_of::<TimestampMicrosecondType>(column, Unit::MICRO)
            .or_else(|| moments_of::<TimestampNanosecondType>(column, Unit::NANO))
            .or_else(|| moments_of::<TimestampMillisecondType>(column, Unit::MILLI))
            .or_else(|| moments_of::<TimestampSecondType>(column, Unit::SECOND))
            .transpose()
    }

    /// Returns the numbers or moments for an array. The column must not contain nulls.
    fn filled(&self) -> PyResult<Numbers> {
        let numbers = self.numbers()?.filter(|_| self.0.null_count() == 0);
        numbers.ok_or_else(|| {
            let (nulls, of) = (self.0.null_count(), self.0.data_type());
            let message =
                format!("a column of {of} with {nulls} nulls cannot be an array of numbers");
            PyTypeError::new_err(message)
        })
    }

    /// Calls `each` with the bytes of every item, and whether it is a string. The column must not
    /// contain nulls.
    pub fn each_bytes(&self, mut each: impl FnMut(&[u8], bool)) -> PyResult<()> {
        if let Some(items) = self.0.as_binary_opt::<i32>() {
            items.iter().flatten().for_each(|item| each(item, false));
        } else if let Some(items) = self.0.as_binary_opt::<i64>() {
            items.iter().flatten().for_each(|item| each(item, false));
        } else if let Some(items) = self.0.as_string_opt::<i32>() {
            items.iter().flatten().for_each(|item| each(item.as_bytes(), true));
        } else if let Some(items) = self.0.as_string_opt::<i64>() {
            items.iter().flatten().for_each(|item| each(item.as_bytes(), true));
        } else {
            return Err(PyTypeError::new_err(format!(
                "columns are of integers of at most 64 bits, float, double, timestamp, binary or \
                 string, not of {}",
                self.0.data_type()
            )));
        }
        Ok(())
    }
}

#[pymethods]
impl Column {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Exports the column through the Arrow PyCapsule interface.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        // A producer may ignore the requested schema.
        drop(requested_schema);
        let (array, schema) =
            to_ffi(&self.0.to_data()).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
        let array = PyCapsule::new_with_value(py, array, ARRAY)?;
        PyTuple::new(py, [schema, array])
    }

    /// Copies the column into a writable array of the same type and length. The column must contain
    /// numbers or datetimes, and no nulls.
    fn fill(&self, py: Python<'_>, out: &Bound<'_, PyAny>) -> PyResult<()> {
        let target = Target::of(out, self.0.len())?;
        let numbers = self.filled()?;
        if numbers.kind.dtype() != target.kind.dtype() {
            let (is, wanted) = (numbers.kind.name(), target.kind.name());
            return Err(PyTypeError::new_err(format!("the column is of {is}, not of {wanted}")));
        }
        target.fill(py, &numbers.bits)
    }

    /// Returns a new NumPy array. The column must contain numbers or datetimes, and no nulls.
    fn to_numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        new_array(py, &self.filled()?)
    }

    /// Returns a list of the items as Python objects, with None for nulls.
    fn tolist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        if let Some(numbers) = self.numbers()? {
            let mut encoded = Vec::new();
            let objects = (0..numbers.bits.len()).map(|at| {
                if self.0.is_null(at) {
                    return Ok(py.None().into_bound(py));
                }
                encoded.clear();
                numbers.get(at).encode(false, &mut encoded);
                key::decode(py, &encoded, &[])
            });
            return PyList::new(py, objects.collect::<PyResult<Vec<_>>>()?);
        }
        if let Some(texts) = self.0.as_string_opt::<i32>() {
            return PyList::new(py, texts.iter().collect::<Vec<_>>());
        }
        PyList::new(py, self.0.as_binary::<i32>().iter().collect::<Vec<_>>())
    }
}

/// Gathers decoded keys or values into a column of their type.
pub enum Gathered {
    /// Only nulls, and their number.
    Empty(usize),
    Numbers {
        numbers: Numbers,
        nulls: Vec<usize>,
    },
    Bytes(Vec<Option<Vec<u8>>>),
    Texts(Vec<Option<String>>),
}

/// An item of a column.
pub enum Item {
    Null,
    Scalar(Scalar),
    Bytes(Vec<u8>),
    Text(String),
}

impl Gathered {
    /// Appends an item. Returns `false` if a column cannot contain both this item and those before
    /// it. If `are_keys`, integers and floats may be mixed, and all become floats.
    pub fn push(&mut self, item: Item, are_keys: bool) -> bool {
        if let Self::Empty(nulls) = self {
            let nulls = *nulls;
            *self = match item {
                Item::Null => Self::Empty(nulls + 1),
                Item::Scalar(Scalar { kind, bits }) => {
                    let bits = std::iter::repeat_n(0, nulls).chain([bits]).collect();
                    Self::Numbers { numbers: Numbers { kind, bits }, nulls: (0..nulls).collect() }
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
            (Self::Numbers { numbers, .. }, Item::Scalar(scalar)) => {
                return numbers.push(scalar, are_keys);
            }
            (Self::Numbers { numbers, nulls }, Item::Null) => {
                nulls.push(numbers.bits.len());
                numbers.bits.push(0);
            }
            (Self::Bytes(all), Item::Bytes(bytes)) => all.push(Some(bytes)),
            (Self::Bytes(all), Item::Null) => all.push(None),
            (Self::Texts(all), Item::Text(text)) => all.push(Some(text)),
            (Self::Texts(all), Item::Null) => all.push(None),
            _ => return false,
        }
        true
    }

    /// Returns the name of the type of the items.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Empty(_) => "null",
            Self::Numbers { numbers, .. } => numbers.kind.name(),
            Self::Bytes(_) => "binary",
            Self::Texts(_) => "string",
        }
    }

    /// Returns the column. A column that is empty or contains only nulls is of type `uint64`.
    pub fn column(self) -> Column {
        let (numbers, nulls) = match self {
            Self::Empty(nulls) => (Numbers::zeros(nulls), (0..nulls).collect()),
            Self::Numbers { numbers, nulls } => (numbers, nulls),
            Self::Bytes(bytes) => return Column(Arc::new(BinaryArray::from_iter(bytes))),
            Self::Texts(texts) => return Column(Arc::new(StringArray::from_iter(texts))),
        };
        let Numbers { kind, bits } = numbers;
        let valid = (!nulls.is_empty()).then(|| {
            let mut valid = vec![true; bits.len()];
            nulls.iter().for_each(|at| valid[*at] = false);
            valid.into()
        });
        let signed =
            |bits: Vec<u64>| -> Vec<i64> { bits.into_iter().map(u64::cast_signed).collect() };
        Column(match kind {
            Kind::Unsigned => Arc::new(UInt64Array::new(bits.into(), valid)),
            Kind::Signed => Arc::new(Int64Array::new(signed(bits).into(), valid)),
            Kind::Float => {
                let floats: Vec<f64> = bits.into_iter().map(f64::from_bits).collect();
                Arc::new(Float64Array::new(floats.into(), valid))
            }
            Kind::Local => Arc::new(TimestampMicrosecondArray::new(signed(bits).into(), valid)),
            Kind::Utc => {
                let moments = TimestampMicrosecondArray::new(signed(bits).into(), valid);
                Arc::new(moments.with_timezone("UTC"))
            }
        })
    }
}
