//! Numbers and moments of 64 bits: the items of arrays, and of columns that do not contain bytes.

use std::borrow::Borrow;

use ordna::tuple::{Decode, Encode, Moment, Number, Reader, Value, code};

use crate::key::{DAY, EPOCH, LAST_DAY};
use crate::plain::{Word, word_of};
use crate::shapes;

/// The meaning of the 64 bits of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A `u64`.
    Unsigned,
    /// An `i64`.
    Signed,
    /// The bits of an `f64`.
    Float,
    /// Microseconds since 1970 as an `i64`, without a time zone.
    Local,
    /// Microseconds since 1970 in UTC as an `i64`.
    Utc,
}

impl Kind {
    /// Returns the name of the type in Arrow and NumPy.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unsigned => "uint64",
            Self::Signed => "int64",
            Self::Float => "float64",
            Self::Local => "datetime64[us]",
            Self::Utc => "datetime64[us] in UTC",
        }
    }

    /// Returns the dtype in NumPy. NumPy has no time zones, so moments in UTC have the same dtype
    /// as moments without a zone.
    pub fn dtype(self) -> &'static str {
        if self == Self::Utc { Self::Local.name() } else { self.name() }
    }

    /// Returns the shape of a key of this kind.
    pub fn shape(self) -> u8 {
        match self {
            Self::Unsigned | Self::Signed => shapes::INT,
            Self::Float => shapes::FLOAT,
            Self::Local => shapes::LOCAL,
            Self::Utc => shapes::UTC,
        }
    }

    /// Returns a word that orders items as their encodings as keys do. Equal keys have equal words.
    pub fn rank(self, bits: u64) -> u64 {
        const SIGN: u64 = 1 << 63;
        match self {
            Self::Unsigned => bits,
            Self::Signed | Self::Local | Self::Utc => bits ^ SIGN,
            Self::Float => match f64::from_bits(bits) {
                value if value.is_nan() => u64::MAX,
                0.0 => SIGN,
                value if value < 0.0 => !bits,
                _ => bits | SIGN,
            },
        }
    }
}

/// A number or a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scalar {
    pub kind: Kind,
    pub bits: u64,
}

impl Scalar {
    /// Appends the encoding, either as a part of a key or as a value.
    #[inline]
    pub fn encode(self, is_key: bool, out: &mut Vec<u8>) {
        let Self { kind, bits } = self;
        let moment = || {
            let micros = bits as i64;
            let nanos = micros.rem_euclid(DAY) as u64 * 1000;
            Moment { day: micros.div_euclid(DAY) as i32, nanos }
        };
        match kind {
            Kind::Unsigned => out.extend_from_slice(Word::new(bits).borrow()),
            Kind::Signed => (bits as i64).encode(out),
            Kind::Float if is_key => Number::from(f64::from_bits(bits)).encode(out),
            Kind::Float => f64::from_bits(bits).encode(out),
            Kind::Local => Value::Local(moment()).encode(out),
            Kind::Utc => Value::Utc(moment()).encode(out),
        }
    }

    /// Decodes the number or moment of an encoded key or value. Returns `None` if it is of another
    /// type, damaged, or an integer of more than 64 bits.
    ///
    /// Integers from 0 on become unsigned. If `is_float`, a number becomes a float if a float can
    /// represent it.
    #[inline]
    pub fn decode(encoded: &[u8], is_float: bool) -> Option<Self> {
        let integer = if is_float { None } else { word_of(encoded) };
        if let Some(bits) = integer {
            return Some(Self { kind: Kind::Unsigned, bits });
        }
        let mut reader = Reader::new(encoded);
        let scalar = match *encoded.first()? {
            code::NEGATIVE_INFINITY..=code::NAN => {
                Self::of_number(&Number::decode(&mut reader).ok()?, is_float)?
            }
            code::F64 => Self::float(f64::decode(&mut reader).ok()?),
            code::LOCAL | code::UTC => match Value::decode(&mut reader).ok()? {
                Value::Local(at) => Self::moment(Kind::Local, at),
                Value::Utc(at) => Self::moment(Kind::Utc, at),
                _ => return None,
            },
            _ => return None,
        };
        reader.finish().ok().map(|()| scalar)
    }

    fn float(value: f64) -> Self {
        Self { kind: Kind::Float, bits: value.to_bits() }
    }

    /// Converts a moment to microseconds. Moments of Python have whole microseconds, too.
    fn moment(kind: Kind, Moment { day, nanos }: Moment) -> Self {
        let micros = i64::from(day) * DAY + (nanos / 1000) as i64;
        Self { kind, bits: micros as u64 }
    }

    fn of_number(number: &Number, is_float: bool) -> Option<Self> {
        if let Number::Real(value) = number {
            return Some(Self::float(*value));
        }
        if is_float && Number::from(number.to_f64()) == *number {
            return Some(Self::float(number.to_f64()));
        }
        let Number::Int(value) = number else { return None };
        let unsigned = u64::try_from(*value).ok();
        unsigned.map(|bits| Self { kind: Kind::Unsigned, bits }).or_else(|| {
            let bits = i64::try_from(*value).ok()? as u64;
            Some(Self { kind: Kind::Signed, bits })
        })
    }

    /// Returns the bits of the same number or moment in another kind, or `None` if that kind cannot
    /// represent it.
    #[inline]
    pub fn bits_as(self, kind: Kind) -> Option<u64> {
        // An integer of 64 bits is rounded to a float that is a whole number far below 2^127.
        let exact = |float: f64, value: i128| (float as i128 == value).then(|| float.to_bits());
        match (self.kind, kind) {
            (from, to) if from == to => Some(self.bits),
            (Kind::Unsigned, Kind::Signed) | (Kind::Signed, Kind::Unsigned) => {
                (self.bits as i64 >= 0).then_some(self.bits)
            }
            (Kind::Unsigned, Kind::Float) => exact(self.bits as f64, i128::from(self.bits)),
            (Kind::Signed, Kind::Float) => {
                let value = self.bits as i64;
                exact(value as f64, i128::from(value))
            }
            (Kind::Utc, Kind::Local) => Some(self.bits),
            _ => None,
        }
    }
}

/// Numbers or moments of one kind.
pub struct Numbers {
    pub kind: Kind,
    pub bits: Vec<u64>,
}

impl Numbers {
    pub fn zeros(length: usize) -> Self {
        Self { kind: Kind::Unsigned, bits: vec![0; length] }
    }

    #[inline]
    pub fn get(&self, at: usize) -> Scalar {
        Scalar { kind: self.kind, bits: self.bits[at] }
    }

    /// Appends an item. Returns `false` if no kind can represent both this item and those before
    /// it.
    ///
    /// An integer below 0 makes all items signed. If `are_numbers`, integers and floats may be
    /// mixed, and all become floats.
    #[inline]
    pub fn push(&mut self, item: Scalar, are_numbers: bool) -> bool {
        let kind = match (self.kind, item.kind) {
            (all, one) if all == one => all,
            (Kind::Unsigned | Kind::Signed, Kind::Unsigned | Kind::Signed) => Kind::Signed,
            (Kind::Unsigned | Kind::Signed, Kind::Float) if are_numbers => Kind::Float,
            (Kind::Float, Kind::Unsigned | Kind::Signed) if are_numbers => Kind::Float,
            _ => return false,
        };
        if kind != self.kind && !self.convert(kind) {
            return false;
        }
        let bits = item.bits_as(kind);
        self.bits.extend(bits);
        bits.is_some()
    }

    /// Converts all items. Returns `false` and changes nothing if the kind cannot represent one of
    /// them.
    fn convert(&mut self, kind: Kind) -> bool {
        let bits = (0..self.bits.len()).map(|at| self.get(at).bits_as(kind));
        let Some(bits) = bits.collect() else { return false };
        *self = Self { kind, bits };
        true
    }
}

/// The length of a unit of time in microseconds: `times * micros / parts`.
#[derive(Clone, Copy)]
pub struct Unit {
    pub name: &'static str,
    pub times: i128,
    pub micros: i128,
    pub parts: i128,
}

/// The units of fixed length, with their names in NumPy.
const UNITS: [Unit; 11] = [
    Unit::new("W", 7 * DAY as i128, 1),
    Unit::new("D", DAY as i128, 1),
    Unit::new("h", 3_600_000_000, 1),
    Unit::new("m", 60_000_000, 1),
    Unit::SECOND,
    Unit::MILLI,
    Unit::MICRO,
    Unit::NANO,
    Unit::new("ps", 1, 1_000_000),
    Unit::new("fs", 1, 1_000_000_000),
    Unit::new("as", 1, 1_000_000_000_000),
];

impl Unit {
    pub const SECOND: Self = Self::new("s", 1_000_000, 1);
    pub const MILLI: Self = Self::new("ms", 1000, 1);
    pub const MICRO: Self = Self::new("us", 1, 1);
    pub const NANO: Self = Self::new("ns", 1, 1000);

    const fn new(name: &'static str, micros: i128, parts: i128) -> Self {
        Self { name, times: 1, micros, parts }
    }

    /// Parses a unit of NumPy, such as `ms` or `25ms`. Returns `None` if it has no fixed length.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (times, name) = text.split_at(digits);
        let times = if digits == 0 { 1 } else { times.parse::<u32>().ok()? };
        let unit = UNITS.iter().find(|unit| unit.name == name)?;
        Some(Self { times: times.into(), ..*unit })
    }

    /// Returns whether counts of this unit are microseconds.
    pub fn is_micro(self) -> bool {
        (self.times, self.micros, self.parts) == (1, 1, 1)
    }

    /// Converts a count of this unit to microseconds.
    ///
    /// # Errors
    /// Returns the reason why Python cannot represent the moment, as a text that follows the item
    /// in the message.
    pub fn micros(self, count: i64) -> Result<i64, &'static str> {
        const YEARS: &str = "is not in the years 1 to 9999";
        // NumPy and pandas represent a missing moment in this way.
        if count == i64::MIN {
            return Err("is NaT, no moment");
        }
        let scaled = (i128::from(count) * self.times).checked_mul(self.micros).ok_or(YEARS)?;
        let micros = i64::try_from(scaled.div_euclid(self.parts)).map_err(|_| YEARS)?;
        if !(1..=LAST_DAY).contains(&(micros.div_euclid(DAY) + EPOCH)) {
            Err(YEARS)
        } else if scaled % self.parts != 0 {
            Err("is not a whole number of microseconds")
        } else {
            Ok(micros)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOATS: [f64; 12] = [
        f64::NEG_INFINITY,
        f64::MIN,
        -2.5,
        -f64::MIN_POSITIVE,
        -0.0,
        0.0,
        0.5,
        1.0,
        9_007_199_254_740_993.0,
        1e300,
        f64::INFINITY,
        f64::NAN,
    ];

    fn encoded(kind: Kind, bits: u64, is_key: bool) -> Vec<u8> {
        let mut out = Vec::new();
        Scalar { kind, bits }.encode(is_key, &mut out);
        out
    }

    #[test]
    fn ranks_order_as_the_encodings_of_keys() {
        let signed = [i64::MIN, -256, -1, 0, 1, 255, i64::MAX].map(|value| value as u64);
        let moments = [-1, 0, 1, DAY, -DAY].map(|value| value as u64);
        let cases = [
            (Kind::Unsigned, vec![0, 1, 255, 256, u64::MAX]),
            (Kind::Signed, signed.to_vec()),
            (Kind::Float, FLOATS.map(f64::to_bits).to_vec()),
            (Kind::Local, moments.to_vec()),
            (Kind::Utc, moments.to_vec()),
        ];
        for (kind, all) in cases {
            for a in &all {
                for b in &all {
                    let keys = encoded(kind, *a, true).cmp(&encoded(kind, *b, true));
                    assert_eq!(kind.rank(*a).cmp(&kind.rank(*b)), keys, "{kind:?} {a:x} {b:x}");
                }
            }
        }
    }

    #[test]
    fn scalars_come_back() {
        for value in FLOATS {
            let bits = value.to_bits();
            let exact = Scalar::decode(&encoded(Kind::Float, bits, false), false);
            assert_eq!(exact, Some(Scalar { kind: Kind::Float, bits }));
            let key = Scalar::decode(&encoded(Kind::Float, bits, true), true);
            let key = key.map(|key| (key.kind, f64::from_bits(key.bits).total_cmp(&(value + 0.0))));
            assert_eq!(key, Some((Kind::Float, std::cmp::Ordering::Equal)));
        }
        for value in [i64::MIN, -256, -1] {
            let scalar = Scalar { kind: Kind::Signed, bits: value as u64 };
            assert_eq!(Scalar::decode(&ordna::tuple::encode(&value), false), Some(scalar));
        }
        for kind in [Kind::Local, Kind::Utc] {
            for micros in [-62_135_596_800_000_000_i64, -1, 0, 253_402_300_799_999_999] {
                let bits = micros as u64;
                let back = Scalar::decode(&encoded(kind, bits, true), false);
                assert_eq!(back, Some(Scalar { kind, bits }));
                assert_eq!(Unit::MICRO.micros(micros), Ok(micros));
            }
        }
        for foreign in [Vec::new(), vec![code::NULL], ordna::tuple::encode("a"), vec![0x38, 1]] {
            assert_eq!(Scalar::decode(&foreign, false), None);
        }
        assert_eq!(Scalar::decode(&ordna::tuple::encode(&(i128::from(i64::MIN) - 1)), false), None);
    }

    #[test]
    fn a_kind_takes_what_it_can_hold() {
        let unsigned = |bits| Scalar { kind: Kind::Unsigned, bits };
        let signed = |value: i64| Scalar { kind: Kind::Signed, bits: value as u64 };
        assert_eq!(unsigned(1 << 63).bits_as(Kind::Signed), None);
        assert_eq!(signed(-1).bits_as(Kind::Unsigned), None);
        assert_eq!(unsigned(5).bits_as(Kind::Signed), Some(5));
        assert_eq!(unsigned(1 << 53).bits_as(Kind::Float), Some(2_f64.powi(53).to_bits()));
        for long in [(1 << 53) + 1, u64::MAX] {
            assert_eq!(unsigned(long).bits_as(Kind::Float), None);
        }
        assert_eq!(signed(-2).bits_as(Kind::Float), Some((-2_f64).to_bits()));
        assert_eq!(signed(i64::MIN + 1).bits_as(Kind::Float), None);
        assert_eq!(Scalar::float(1.0).bits_as(Kind::Signed), None);
    }

    #[test]
    fn units_are_exact() {
        let micros = |unit, count| Unit::parse(unit).map(|unit| unit.micros(count));
        assert_eq!(micros("25ms", 2), Some(Ok(50_000)));
        assert_eq!(micros("ns", -3000), Some(Ok(-3)));
        assert!(matches!(micros("ns", -1), Some(Err(_))));
        assert!(matches!(micros("D", i64::MAX), Some(Err(_))));
        assert!(matches!(micros("us", i64::MIN), Some(Err(_))));
        assert_eq!(micros("D", 2_932_896), Some(Ok(2_932_896 * DAY)));
        assert!(matches!(micros("D", 2_932_897), Some(Err(_))));
        assert!(matches!(micros("D", -719_163), Some(Err(_))));
        for other in ["M", "Y", "generic", "", "99999999999s"] {
            assert!(Unit::parse(other).is_none());
        }
    }
}
