//! [`Mode`]: whether a map owns its store, and therefore what its reads return.

use std::fmt;
use std::marker::PhantomData;

use crate::Error;

/// The types of a map that has no values of these types itself.
pub(super) type Types<K, V, M> = PhantomData<fn() -> (K, V, M)>;

mod sealed {
    pub trait Sealed {}
}

/// Marks whether a map owns its store: [`Own`] or [`Shared`].
pub trait Mode: sealed::Sealed + 'static {
    /// The result of a read: `T` in a map that owns its store, and otherwise `Result<T, Error>`.
    type Read<T>;

    /// Converts the result of a read.
    #[doc(hidden)]
    fn read<T>(result: Result<T, Error>) -> Self::Read<T>;

    /// Formats an entry of a map for debugging.
    #[doc(hidden)]
    fn debug<K: fmt::Debug, V: fmt::Debug>(
        map: &mut fmt::DebugMap<'_, '_>,
        entry: Self::Read<(K, V)>,
    );
}

/// The mode of a map that owns its store. No other code can write to it, so all its entries have
/// the map's types, and reads return plain values.
///
/// ```
/// let ages: ordna::Map<String, u32> = [("ann", 31), ("bob", 27)].into_iter().collect();
/// // Reads of a map that owns its store return plain values.
/// let age: Option<u32> = ages.get("ann");
/// assert_eq!(age, Some(31));
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Own {}

/// The mode of a map in a store to which other code can write. An entry may have other types, so
/// reads return a `Result`.
///
/// ```
/// use std::sync::Arc;
/// use ordna::{Store, Table};
///
/// let store = Arc::new(Store::new());
/// let ages: Table<String, u32> = Table::named(&store, "ages")?;
/// ages.put("ann", 31)?;
/// // Reads of a table return a result.
/// let age: Result<Option<u32>, ordna::Error> = ages.get("ann");
/// assert_eq!(age?, Some(31));
/// # Ok::<(), ordna::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub enum Shared {}

impl sealed::Sealed for Own {}
impl sealed::Sealed for Shared {}

impl Mode for Own {
    type Read<T> = T;

    #[inline]
    fn read<T>(result: Result<T, Error>) -> T {
        result.unwrap_or_else(|error| wrong_type(&error))
    }

    fn debug<K: fmt::Debug, V: fmt::Debug>(map: &mut fmt::DebugMap<'_, '_>, (key, value): (K, V)) {
        map.entry(&key, &value);
    }
}

#[cold]
fn wrong_type(error: &Error) -> ! {
    panic!("a type of keys or values does not read what it wrote: {error}")
}

impl Mode for Shared {
    type Read<T> = Result<T, Error>;

    #[inline]
    fn read<T>(result: Result<T, Error>) -> Result<T, Error> {
        result
    }

    fn debug<K: fmt::Debug, V: fmt::Debug>(
        map: &mut fmt::DebugMap<'_, '_>,
        entry: Result<(K, V), Error>,
    ) {
        match entry {
            Ok((key, value)) => map.entry(&key, &value),
            Err(error) => map.entry(&"error", &error),
        };
    }
}
