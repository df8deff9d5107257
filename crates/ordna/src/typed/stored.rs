//! The encoding of typed values as bytes: [`Stored`], [`StoreAs`], [`Serde`].

use std::borrow::Borrow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::tuple;
pub use ordna_base::ValueError;

fn error<T>(bytes: &[u8], reason: &str) -> ValueError {
    let expected = std::any::type_name::<T>();
    ValueError { len: bytes.len(), expected, reason: reason.to_owned() }
}

/// A type that can be the value of a [`Map`](super::Map).
///
/// | type | bytes |
/// |---|---|
/// | integers, floats | their own width, little-endian |
/// | `bool`, `char` | 1, 4 bytes |
/// | `String`, `Box<str>`, `Arc<str>`, `Vec<u8>`, `[u8; N]` | their bytes |
/// | `()` | none |
/// | `Duration`, `SystemTime` | as [keys](crate::tuple) |
/// | `Option<T>` | 0, or 1 and the value |
/// | tuples, `Vec<T>` | each value after its length (as LEB128) |
/// | structs and enums with `derive(Stored)` (features `derive` and `serde`) | postcard |
/// | `Serde<T>` (feature `serde`) | postcard |
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a type of values",
    label = "not a type of values",
    note = "your structs and enums: `#[derive(serde::Serialize, serde::Deserialize, ordna::Stored)]` (features `derive` and `serde`)",
    note = "types of other crates that serde knows: `ordna::typed::Serde<{Self}>` (feature `serde`)"
)]
pub trait Stored: Sized + Borrow<Self::Ref> {
    /// The type that reads borrow without a copy: `str` for `String`, `[u8]` for `Vec<u8>`, and
    /// `Self` for types without a borrowed form.
    type Ref: ?Sized;

    /// Decodes a value. This may run inside a reading section of the store, so it must be fast.
    ///
    /// # Errors
    /// The bytes are not a value of this type.
    fn load(bytes: &[u8]) -> Result<Self, ValueError>;

    /// Calls `read` with the value, without a copy if the type has a borrowed form.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    fn lend<R>(bytes: &[u8], read: impl FnOnce(&Self::Ref) -> R) -> Result<R, ValueError> {
        Self::load(bytes).map(|value| read(value.borrow()))
    }

    /// Decodes a vector of values.
    #[doc(hidden)]
    fn load_vec(bytes: &[u8]) -> Result<Vec<Self>, ValueError> {
        let mut parts = Parts(bytes);
        let mut values = Vec::new();
        while !parts.0.is_empty() {
            values.push(parts.next()?);
        }
        Ok(values)
    }

    /// Calls `read` with a vector of values.
    #[doc(hidden)]
    fn lend_vec<R>(bytes: &[u8], read: impl FnOnce(&[Self]) -> R) -> Result<R, ValueError> {
        Self::load_vec(bytes).map(|values| read(&values))
    }
}

/// A type that can be stored as a `V`: `V` itself or a borrowed form of it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored as a value of the type `{V}`",
    label = "expected `{V}` or a borrowed form of it",
    note = "your structs and enums: `#[derive(serde::Serialize, serde::Deserialize, ordna::Stored)]` (features `derive` and `serde`)",
    note = "types of other crates that serde knows: `ordna::typed::Serde` (feature `serde`)"
)]
pub trait StoreAs<V> {
    /// Calls `store` with the bytes of the value.
    ///
    /// # Errors
    /// The value cannot be encoded. Only types of serde fail.
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError>;

    /// Calls `store` with the bytes of a vector of values.
    #[doc(hidden)]
    fn with_vec_bytes<R>(values: &[Self], store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError>
    where
        Self: Sized,
    {
        let mut out = Vec::new();
        values.iter().try_for_each(|value| put_part(value, &mut out))?;
        Ok(store(&out))
    }
}

/// Appends the length of a value and its bytes.
fn put_part<V>(value: &(impl StoreAs<V> + ?Sized), out: &mut Vec<u8>) -> Result<(), ValueError> {
    value.with_bytes(|bytes| {
        let mut len = bytes.len();
        while len >= 0x80 {
            out.push(len as u8 | 0x80);
            len >>= 7;
        }
        out.push(len as u8);
        out.extend_from_slice(bytes);
    })
}

/// An iterator over values that are stored one after the other.
struct Parts<'a>(&'a [u8]);

impl Parts<'_> {
    fn next<V: Stored>(&mut self) -> Result<V, ValueError> {
        let (mut len, mut shift) = (0_usize, 0);
        loop {
            let Some((byte, rest)) = self.0.split_first() else {
                return Err(error::<V>(self.0, ": the value ends early"));
            };
            self.0 = rest;
            // Values are much shorter than 2^35 bytes.
            if shift > 28 {
                return Err(error::<V>(self.0, ": a length is too large"));
            }
            len |= usize::from(byte & 0x7F) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let Some((bytes, rest)) = self.0.split_at_checked(len) else {
            return Err(error::<V>(self.0, ": the value ends early"));
        };
        self.0 = rest;
        V::load(bytes)
    }

    fn finish<V>(&self) -> Result<(), ValueError> {
        if self.0.is_empty() { Ok(()) } else { Err(error::<V>(self.0, ": too many bytes")) }
    }
}

macro_rules! numbers {
    ($($type:ty $(, $hook:ident)?;)*) => { $(
        impl Stored for $type {
            type Ref = Self;

            #[inline]
            fn load(bytes: &[u8]) -> Result<Self, ValueError> {
                match bytes.try_into() {
                    Ok(bytes) => Ok(Self::from_le_bytes(bytes)),
                    Err(_) => Err(error::<Self>(bytes, "")),
                }
            }
            $( $hook!(load); )?
        }
        impl StoreAs<Self> for $type {
            #[inline]
            fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
                Ok(store(&self.to_le_bytes()))
            }
            $( $hook!(store); )?
        }
    )* };
}

/// Implements vectors of bytes, which are stored as they are.
macro_rules! plain_vec {
    (load) => {
        fn load_vec(bytes: &[u8]) -> Result<Vec<u8>, ValueError> {
            Ok(bytes.to_vec())
        }
        fn lend_vec<R>(bytes: &[u8], read: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
            Ok(read(bytes))
        }
    };
    (store) => {
        fn with_vec_bytes<R>(
            values: &[u8],
            store: impl FnOnce(&[u8]) -> R,
        ) -> Result<R, ValueError> {
            Ok(store(values))
        }
    };
}
numbers! {
    u8, plain_vec; u16; u32; u64; u128; usize; i8; i16; i32; i64; i128; isize; f32; f64;
}

/// Implements types that are stored as another type.
macro_rules! as_other {
    ($($type:ty, $to:expr, $load:expr;)*) => { $(
        impl Stored for $type {
            type Ref = Self;

            fn load(bytes: &[u8]) -> Result<Self, ValueError> {
                let load: fn(&[u8]) -> Option<Self> = $load;
                load(bytes).ok_or_else(|| error::<Self>(bytes, ""))
            }
        }
        impl StoreAs<Self> for $type {
            fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
                let to = $to;
                Ok(store(to(self).as_ref()))
            }
        }
    )* };
}
as_other! {
    (), |_: &()| [0_u8; 0], |bytes| bytes.is_empty().then_some(());
    bool, |value: &bool| [u8::from(*value)], |bytes| match bytes {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    };
    char, |value: &char| u32::from(*value).to_le_bytes(),
        |bytes| Self::from_u32(u32::load(bytes).ok()?);
    Duration, |value: &Self| tuple::encode(value), |bytes| tuple::decode(bytes).ok();
    SystemTime, |value: &Self| tuple::encode(value), |bytes| tuple::decode(bytes).ok();
}

/// Implements strings, which are stored as their bytes.
macro_rules! strings {
    ($($type:ty),*) => { $(
        impl Stored for $type {
            type Ref = str;

            fn load(bytes: &[u8]) -> Result<Self, ValueError> {
                Self::lend(bytes, |text| text.into())
            }
            fn lend<R>(bytes: &[u8], read: impl FnOnce(&str) -> R) -> Result<R, ValueError> {
                std::str::from_utf8(bytes).map(read).map_err(|_| error::<Self>(bytes, ""))
            }
        }
        impl StoreAs<$type> for str {
            #[inline]
            fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
                Ok(store(self.as_bytes()))
            }
        }
        impl StoreAs<Self> for $type {
            #[inline]
            fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
                Ok(store(self.as_bytes()))
            }
        }
    )* };
}
strings!(String, Box<str>, Arc<str>);

impl<const N: usize> Stored for [u8; N] {
    type Ref = Self;

    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        bytes.try_into().map_err(|_| error::<Self>(bytes, ""))
    }
}

impl<const N: usize> StoreAs<Self> for [u8; N] {
    #[inline]
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
        Ok(store(self))
    }
}

impl<T: Stored> Stored for Vec<T> {
    type Ref = [T];

    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        T::load_vec(bytes)
    }
    fn lend<R>(bytes: &[u8], read: impl FnOnce(&[T]) -> R) -> Result<R, ValueError> {
        T::lend_vec(bytes, read)
    }
}

macro_rules! vectors {
    ($([$($generics:tt)*] $type:ty),*) => { $(
        impl<V: Stored, T: StoreAs<V>, $($generics)*> StoreAs<Vec<V>> for $type {
            #[inline]
            fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
                T::with_vec_bytes(self, store)
            }
        }
    )* };
}
vectors!([] [T], [] Vec<T>, [const N: usize] [T; N]);

impl<T: Stored> Stored for Option<T> {
    type Ref = Self;

    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        match bytes {
            [0] => Ok(None),
            [1, value @ ..] => T::load(value).map(Some),
            _ => Err(error::<Self>(bytes, "")),
        }
    }
}

impl<V: Stored, T: StoreAs<V>> StoreAs<Option<V>> for Option<T> {
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
        match self {
            None => Ok(store(&[0])),
            Some(value) => {
                let bytes = value.with_bytes(|bytes| [&[1], bytes].concat())?;
                Ok(store(&bytes))
            }
        }
    }
}

macro_rules! tuples {
    ($(($($name:ident $stored:ident $at:tt),*))*) => { $(
        impl<$($name: Stored),*> Stored for ($($name,)*) {
            type Ref = Self;

            fn load(bytes: &[u8]) -> Result<Self, ValueError> {
                let mut parts = Parts(bytes);
                let value = ($(parts.next::<$name>()?,)*);
                parts.finish::<Self>()?;
                Ok(value)
            }
        }
        impl<$($stored: Stored, $name: StoreAs<$stored>),*> StoreAs<($($stored,)*)>
            for ($($name,)*)
        {
            fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
                let mut out = Vec::new();
                $(put_part(&self.$at, &mut out)?;)*
                Ok(store(&out))
            }
        }
    )* };
}
tuples! {
    (A A2 0)
    (A A2 0, B B2 1)
    (A A2 0, B B2 1, C C2 2)
    (A A2 0, B B2 1, C C2 2, D D2 3)
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4)
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4, F F2 5)
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4, F F2 5, G G2 6)
    (A A2 0, B B2 1, C C2 2, D D2 3, E E2 4, F F2 5, G G2 6, H H2 7)
}

impl<V, T: StoreAs<V> + ?Sized> StoreAs<V> for &T {
    #[inline]
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
        (**self).with_bytes(store)
    }
}

/// A wrapper that stores any type of serde in the format of the crate `postcard`. Writes take
/// `Serde(value)` or `Serde(&value)`. For your own types, `derive(Stored)` makes the wrapper
/// unnecessary.
#[cfg(feature = "serde")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serde<T>(pub T);

#[cfg(feature = "serde")]
impl<T: serde::de::DeserializeOwned> Stored for Serde<T> {
    type Ref = Self;

    fn load(bytes: &[u8]) -> Result<Self, ValueError> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(Self(value)),
            Ok((_, rest)) => Err(error::<T>(bytes, &format!(": {} bytes too many", rest.len()))),
            Err(reason) => Err(error::<T>(bytes, &format!(": {reason}"))),
        }
    }
}

/// The bounds that `derive(Stored)` puts on type parameters.
#[cfg(feature = "serde")]
#[doc(hidden)]
pub trait SerdeOwned: serde::Serialize + serde::de::DeserializeOwned {}
#[cfg(feature = "serde")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> SerdeOwned for T {}

#[cfg(feature = "serde")]
fn with_serde_bytes<T: serde::Serialize, R>(
    value: &T,
    store: impl FnOnce(&[u8]) -> R,
) -> Result<R, ValueError> {
    let bytes = postcard::to_stdvec(value);
    let bytes = bytes.map_err(|reason| error::<T>(&[], &format!(": {reason}")))?;
    Ok(store(&bytes))
}

#[cfg(feature = "serde")]
impl<T: serde::Serialize> StoreAs<Self> for Serde<T> {
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
        with_serde_bytes(&self.0, store)
    }
}

#[cfg(feature = "serde")]
impl<T: serde::Serialize> StoreAs<Serde<T>> for Serde<&T> {
    fn with_bytes<R>(&self, store: impl FnOnce(&[u8]) -> R) -> Result<R, ValueError> {
        with_serde_bytes(self.0, store)
    }
}
