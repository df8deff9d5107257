//! The type codes, in ascending order. A descending value starts with the complement of its code.

/// The end of a string or tuple; no value starts with it.
pub const END: u8 = 0x00;
/// A document's field that is not there.
pub const MISSING: u8 = 0x02;
/// `None`, null.
pub const NULL: u8 = 0x03;
/// `false`.
pub const FALSE: u8 = 0x04;
/// `true`.
pub const TRUE: u8 = 0x05;
/// `Some` of a type that has a null of its own.
pub const SOME: u8 = 0x08;
/// The number −∞.
pub const NEGATIVE_INFINITY: u8 = 0x1E;
/// A number of at most −2^127.
pub const NEGATIVE_BIG: u8 = 0x1F;
/// The number zero; `ZERO + n` and `ZERO - n` have n bytes, n up to 16.
pub const ZERO: u8 = 0x30;
/// A number of at least 2^127.
pub const BIG: u8 = 0x41;
/// The number ∞.
pub const INFINITY: u8 = 0x42;
/// The one number that is not a number.
pub const NAN: u8 = 0x43;
/// An `f32`, 4 bytes.
pub const F32: u8 = 0x45;
/// An `f64`, 8 bytes.
pub const F64: u8 = 0x46;
/// A Unicode scalar value, 3 bytes.
pub const CHAR: u8 = 0x48;
/// UTF-8, escaped.
pub const STRING: u8 = 0x50;
/// Bytes, escaped.
pub const BYTES: u8 = 0x54;
/// 16 bytes.
pub const UUID: u8 = 0x58;
/// A day, 4 bytes.
pub const DATE: u8 = 0x60;
/// A time of day, 6 bytes.
pub const TIME: u8 = 0x61;
/// A day and a time of it, without a zone, 10 bytes.
pub const LOCAL: u8 = 0x62;
/// The same in UTC.
pub const UTC: u8 = 0x63;
/// A span of time, 12 bytes.
pub const DURATION: u8 = 0x64;
/// Values up to `END`.
pub const TUPLE: u8 = 0x70;

/// Stands before an escaped byte, which is incremented.
pub(super) const ESCAPE: u8 = 0x01;
