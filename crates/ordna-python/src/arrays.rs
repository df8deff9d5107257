//! Arrays of numbers and moments: the buffers of NumPy and of the standard library.

use pyo3::buffer::{Element, ElementType, PyUntypedBuffer};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::numbers::{Kind, Numbers, Unit};

/// The characters that mark formats in the byte order that is not the machine's.
const FOREIGN: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };

/// Copies the items of a buffer of numbers, or of a NumPy array of moments. Returns `None` if the
/// object is neither. Bytes do not count as an array.
pub fn numbers_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Numbers>> {
    if object.is_instance_of::<PyBytes>() || object.is_instance_of::<PyByteArray>() {
        return Ok(None);
    }
    let py = object.py();
    if let Ok(buffer) = PyUntypedBuffer::get(object) {
        return numbers_in(py, &buffer).map(Some);
    }
    let Some(unit) = unit_of(object)? else { return Ok(None) };
    let counts = counts_of(object)?;
    check_dimensions(&counts)?;
    moments(Kind::Local, unit, &counts.as_typed::<i64>()?.to_vec(py)?).map(Some)
}

/// Converts counts of a unit to moments.
///
/// # Errors
/// Returns an error if Python cannot represent one of the moments.
pub fn moments(kind: Kind, unit: Unit, counts: &[i64]) -> PyResult<Numbers> {
    let micros = |(at, count): (usize, &i64)| {
        unit.micros(*count).map(|micros| micros as u64).map_err(|reason| {
            let units = i128::from(*count) * unit.times;
            PyValueError::new_err(format!("item {at}, {units} {} from 1970, {reason}", unit.name))
        })
    };
    let bits = counts.iter().enumerate().map(micros).collect::<PyResult<_>>()?;
    Ok(Numbers { kind, bits })
}

fn check_dimensions(buffer: &PyUntypedBuffer) -> PyResult<()> {
    if buffer.dimensions() != 1 {
        let message = format!("an array must have one dimension, not {}", buffer.dimensions());
        return Err(PyValueError::new_err(message));
    }
    Ok(())
}

/// Returns the type of the items, if they have the byte order of the machine.
fn type_of(buffer: &PyUntypedBuffer) -> ElementType {
    let format = buffer.format();
    // PyO3 does not check the byte order.
    match format.to_bytes().first() {
        Some(mark) if FOREIGN.contains(mark) => ElementType::Unknown,
        _ => ElementType::from_format(format),
    }
}

fn numbers_in(py: Python<'_>, buffer: &PyUntypedBuffer) -> PyResult<Numbers> {
    use ElementType::{Float, SignedInteger, UnsignedInteger};

    check_dimensions(buffer)?;
    let (kind, bits) = match type_of(buffer) {
        UnsignedInteger { bytes: 8 } => (Kind::Unsigned, items::<u64>(py, buffer, |item| item)),
        UnsignedInteger { bytes: 4 } => (Kind::Unsigned, items::<u32>(py, buffer, u64::from)),
        UnsignedInteger { bytes: 2 } => (Kind::Unsigned, items::<u16>(py, buffer, u64::from)),
        UnsignedInteger { bytes: 1 } => (Kind::Unsigned, items::<u8>(py, buffer, u64::from)),
        SignedInteger { bytes: 8 } => (Kind::Signed, items(py, buffer, i64::cast_unsigned)),
        SignedInteger { bytes: 4 } => (Kind::Signed, items(py, buffer, |item: i32| item as u64)),
        SignedInteger { bytes: 2 } => (Kind::Signed, items(py, buffer, |item: i16| item as u64)),
        SignedInteger { bytes: 1 } => (Kind::Signed, items(py, buffer, |item: i8| item as u64)),
        Float { bytes: 8 } => (Kind::Float, items(py, buffer, f64::to_bits)),
        Float { bytes: 4 } => {
            (Kind::Float, items(py, buffer, |item: f32| f64::from(item).to_bits()))
        }
        _ => {
            let format = buffer.format().to_string_lossy();
            return Err(PyTypeError::new_err(format!(
                "arrays are of integers of at most 64 bits, float32, float64 or datetime64 in the \
                 byte order of the machine, not of the format {format:?}"
            )));
        }
    };
    Ok(Numbers { kind, bits: bits? })
}

fn items<T: Element>(
    py: Python<'_>,
    buffer: &PyUntypedBuffer,
    bits: impl Fn(T) -> u64,
) -> PyResult<Vec<u64>> {
    Ok(buffer.as_typed::<T>()?.to_vec(py)?.into_iter().map(bits).collect())
}

/// Returns the unit of an array of `datetime64`, which exports no buffer, or `None` for other
/// objects.
fn unit_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Unit>> {
    let Some(interface) = object.getattr_opt("__array_interface__")? else { return Ok(None) };
    let format: String = interface.get_item("typestr")?.extract()?;
    let (order, Some(unit)) = (format.as_bytes().first(), format.get(1..)) else { return Ok(None) };
    let Some(unit) = unit.strip_prefix("M8") else { return Ok(None) };
    if order.is_some_and(|mark| FOREIGN.contains(mark)) {
        let message = format!("arrays have the byte order of the machine, not that of {format:?}");
        return Err(PyTypeError::new_err(message));
    }
    let unit = unit.strip_prefix('[').and_then(|unit| unit.strip_suffix(']')).unwrap_or(unit);
    Unit::parse(unit).map(Some).ok_or_else(|| {
        PyTypeError::new_err(format!(
            "the unit {unit:?} of datetime64 has no fixed length: use astype('datetime64[us]')"
        ))
    })
}

/// Returns the integers of an array of `datetime64`.
fn counts_of(object: &Bound<'_, PyAny>) -> PyResult<PyUntypedBuffer> {
    PyUntypedBuffer::get(&object.call_method1("view", ("int64",))?)
}

/// A writable array of numbers or moments of 64 bits.
pub struct Target {
    pub kind: Kind,
    buffer: PyUntypedBuffer,
}

impl Target {
    /// Returns the array of an object.
    ///
    /// # Errors
    /// Returns an error if the array is of another type or read-only, or if it does not have one
    /// dimension and `length` items.
    pub fn of(object: &Bound<'_, PyAny>, length: usize) -> PyResult<Self> {
        let found = match PyUntypedBuffer::get(object) {
            Ok(buffer) => match type_of(&buffer) {
                ElementType::UnsignedInteger { bytes: 8 } => Some((Kind::Unsigned, buffer)),
                ElementType::SignedInteger { bytes: 8 } => Some((Kind::Signed, buffer)),
                ElementType::Float { bytes: 8 } => Some((Kind::Float, buffer)),
                _ => None,
            },
            Err(_) => match unit_of(object)? {
                Some(unit) if unit.is_micro() => Some((Kind::Local, counts_of(object)?)),
                _ => None,
            },
        };
        let Some((kind, buffer)) = found else {
            return Err(PyTypeError::new_err(
                "the array for values must be of uint64, int64, float64 or datetime64[us]",
            ));
        };
        if buffer.dimensions() != 1 || buffer.readonly() || buffer.item_count() != length {
            let message = format!(
                "the array for values must be writable, of one dimension and {length} items"
            );
            return Err(PyValueError::new_err(message));
        }
        Ok(Self { kind, buffer })
    }

    /// Copies items into the array. Their kind and number must be those of the array.
    pub fn fill(&self, py: Python<'_>, bits: &[u64]) -> PyResult<()> {
        let buffer = &self.buffer;
        match self.kind {
            Kind::Unsigned => buffer.as_typed::<u64>()?.copy_from_slice(py, bits),
            Kind::Float => {
                let items: Vec<f64> = bits.iter().map(|bits| f64::from_bits(*bits)).collect();
                buffer.as_typed::<f64>()?.copy_from_slice(py, &items)
            }
            Kind::Signed | Kind::Local | Kind::Utc => {
                let items: Vec<i64> = bits.iter().map(|bits| bits.cast_signed()).collect();
                buffer.as_typed::<i64>()?.copy_from_slice(py, &items)
            }
        }
    }
}

/// Returns a new NumPy array.
pub fn new_array<'py>(py: Python<'py>, numbers: &Numbers) -> PyResult<Bound<'py, PyAny>> {
    let length = numbers.bits.len();
    let array = py.import("numpy")?.call_method1("empty", (length, numbers.kind.dtype()))?;
    Target::of(&array, length)?.fill(py, &numbers.bits)?;
    Ok(array)
}
