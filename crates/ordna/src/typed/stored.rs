//! How values are stored.

/// Bytes that are no value of the type asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueError {
    /// Length of the value.
    pub len: usize,
    /// The type asked for.
    pub expected: &'static str,
    /// The reader's own words, if it has any.
    pub reason: String,
}

impl std::fmt::Display for ValueError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { len, expected, reason } = self;
        write!(f, "a value of {len} bytes is no {expected}{reason}")
    }
}

impl std::error::Error for ValueError {}

impl ValueError {
    fn new<T>(bytes: &[u8]) -> Self {
        let expected = std::any::type_name::<T>();
        Self { len: bytes.len(), expected, reason: String::new() }
    }
}

/// A type of values: what is read from a map.
///
/// | type | bytes |
/// |---|---|
/// | integers, floats | their own width, little-endian |
/// | `bool`, `char` | 1, 4 bytes |
/// | `String`, `Vec<u8>`, `[u8; N]` | their bytes |
/// | `()` | none |
/// | `Serde<T>` (feature `serde`) | postcard |
pub trait Stored: Sized {
    /// Reads a value. It may run inside a reading section of the store: it must be short.
    ///
    /// # Errors
    /// The bytes are no value of this type.
    fn load(bytes: &[u8]) -> Result<Self, ValueError>;
}

/// A type that is stored as a `V`: a borrowed form of it, or `V` itself.
pub trait StoreAs<V> {
    /// Calls `store` with the bytes of the value.
    ///
    /// # Errors
    /// The value has no such form. None of the types above refuses.
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError>;
}

macro_rules! numbers {
    ($($type:ty),*) => { $(
        impl Stored for $type {
            #[inline]
            fn load(bytes: &[u8]) -> Result<Self, ValueError> {
                match bytes.try_into() {
                    Ok(bytes) => Ok(Self::from_le_bytes(bytes)),
                    Err(_) => Err(ValueError::new::<Self>(bytes)),
                }
            }
        }
        impl StoreAs<Self> for $type {
            #[inline]
            fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
                Ok(store(&self.to_le_bytes()))
            }
        }
    )* };
}
numbers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64);

impl Stored for bool {
    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        match bytes {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(ValueError::new::<Self>(bytes)),
        }
    }
}

impl StoreAs<Self> for bool {
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
        Ok(store(&[u8::from(*self)]))
    }
}

impl Stored for char {
    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        Self::from_u32(u32::load(bytes)?).ok_or_else(|| ValueError::new::<Self>(bytes))
    }
}

impl StoreAs<Self> for char {
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
        u32::from(*self).with_bytes(store)
    }
}

impl Stored for () {
    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        if bytes.is_empty() { Ok(()) } else { Err(ValueError::new::<Self>(bytes)) }
    }
}

impl StoreAs<()> for () {
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
        Ok(store(&[]))
    }
}

impl Stored for String {
    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        let text = std::str::from_utf8(bytes).map_err(|_| ValueError::new::<Self>(bytes))?;
        Ok(text.to_owned())
    }
}

impl Stored for Vec<u8> {
    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        Ok(bytes.to_vec())
    }
}

impl<const N: usize> Stored for [u8; N] {
    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        bytes.try_into().map_err(|_| ValueError::new::<Self>(bytes))
    }
}

macro_rules! bytes {
    ($([$($generic:tt)*] $from:ty => $to:ty),*) => { $(
        impl<$($generic)*> StoreAs<$to> for $from {
            #[inline]
            fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
                Ok(store(self.as_ref()))
            }
        }
    )* };
}
bytes!([] str => String, [] String => String, [] [u8] => Vec<u8>, [] Vec<u8> => Vec<u8>);
bytes!([const N: usize] [u8; N] => [u8; N], [const N: usize] [u8; N] => Vec<u8>);

impl<V, T: StoreAs<V> + ?Sized> StoreAs<V> for &T {
    #[inline]
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
        (**self).with_bytes(store)
    }
}

/// A value of any type that serde knows, stored in the format of the crate `postcard`.
#[cfg(feature = "serde")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serde<T>(pub T);

#[cfg(feature = "serde")]
impl<T: serde::de::DeserializeOwned> Stored for Serde<T> {
    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        let error = |reason: String| ValueError { reason, ..ValueError::new::<T>(bytes) };
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(Self(value)),
            Ok((_, rest)) => Err(error(format!(": {} bytes too many", rest.len()))),
            Err(reason) => Err(error(format!(": {reason}"))),
        }
    }
}

#[cfg(feature = "serde")]
impl<T: serde::Serialize> StoreAs<Self> for Serde<T> {
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
        let bytes = postcard::to_stdvec(&self.0).map_err(|reason| ValueError {
            reason: format!(": {reason}"),
            ..ValueError::new::<T>(&[])
        })?;
        Ok(store(&bytes))
    }
}
