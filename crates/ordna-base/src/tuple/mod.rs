//! The tuple encoding: typed values as byte strings whose byte order is the order of the values.
//!
//! Every value starts with a code that tells its type, so [`Value::decode`] reads a key without its
//! Rust type. No encoded value is a prefix of another one, so values can stand one after the other.
//! The byte tables stand in `docs/TUPLE.md`. Source: the published FoundationDB tuple layer gave
//! the idea of type codes, of escaped zeros and of lengths in the codes of integers.
//!
//! | type | order |
//! |---|---|
//! | missing, null (`None`) | in this order below everything else; `Some(x)` is x |
//! | `bool` | false, true |
//! | integers of all widths, [`Number`] | one numeric order, whatever the Rust type |
//! | `f32`, `f64` | `total_cmp`: −NaN, −∞, …, −0, 0, …, ∞, NaN; bits come back as they were |
//! | `char`, strings, byte strings | as in Rust; zeros inside are ordinary bytes |
//! | UUIDs, dates, times, `SystemTime` | bytewise; chronological |
//! | `NonZero`, `Wrapping`, IP addresses | as the integers; IPv4 below IPv6 |
//! | tuples, arrays, vectors, derived structs | element by element, the shorter one first |
//! | [`Reverse`](std::cmp::Reverse) | descending |
//!
//! A float that must compare with integers is a [`Number`]: 1 and 1.0 are then one key, −0 is 0,
//! and all NaN are one number above ∞.
//!
//! ```
//! use ordna_base::tuple::{decode, encode};
//!
//! let key = encode(&("SE", -5_i32, Some(2.5_f64)));
//! assert!(key < encode(&("SE", 7_u8, None::<f64>)));
//! let back: (String, i32, Option<f64>) = decode(&key)?;
//! assert_eq!(back, ("SE".to_owned(), -5, Some(2.5)));
//! # Ok::<(), ordna_base::tuple::DecodeError>(())
//! ```

pub mod code;
mod encode;
mod number;
mod read;
mod std_types;
mod types;
mod value;

#[cfg(feature = "bigint")]
mod bigint;
#[cfg(feature = "time")]
mod time;
#[cfg(feature = "uuid")]
mod uuid;

pub use encode::{Decode, Encode, Like, Prefix, decode, encode};
pub use number::Number;
pub use read::{DecodeError, Reader};
pub use value::{MAX_DEPTH, Moment, Value};
