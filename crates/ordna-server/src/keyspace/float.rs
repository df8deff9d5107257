//! Numbers as `INCRBYFLOAT` computes them: the 80-bit format of x87, which Redis calls `long
//! double`.

use rustc_apfloat::ieee::X87DoubleExtended;
use rustc_apfloat::{Float, Round, Status, StatusAnd};

/// Bias of the exponent, and number of bits of the significand after its first bit.
const BIAS: i32 = 16_383;
const FRACTION: i32 = 63;
/// Number of digits after the point that Redis writes.
const DIGITS: u32 = 17;

/// A number of the 80-bit format.
#[derive(Debug, Clone, Copy)]
pub struct LongDouble(X87DoubleExtended);

impl LongDouble {
    pub const ZERO: Self = Self(X87DoubleExtended::ZERO);

    /// Parses decimal or hexadecimal digits with point and exponent, or an infinity. Returns `None`
    /// if the text is anything else or the number is too large.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (negative, digits) = match text.strip_prefix(['-', '+']) {
            Some(rest) => (text.starts_with('-'), rest),
            None => (false, text),
        };
        if digits.eq_ignore_ascii_case("inf") || digits.eq_ignore_ascii_case("infinity") {
            let infinity = X87DoubleExtended::INFINITY;
            return Some(Self(if negative { -infinity } else { infinity }));
        }
        if let Some(hex) = digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            let exponent = if hex.contains(['p', 'P']) { "" } else { "p0" };
            let hex = format!("0x{hex}{exponent}");
            let parsed = X87DoubleExtended::from_str_r(&hex, Round::NearestTiesToEven).ok()?;
            let is_zero = hex.bytes().take_while(|byte| !matches!(byte, b'p' | b'P'));
            let is_zero = is_zero.into_iter().all(|byte| matches!(byte, b'0' | b'.' | b'x'));
            return Self::in_range(parsed, is_zero, negative);
        }
        let (significand, exponent) = match digits.split_once(['e', 'E']) {
            Some((significand, exponent)) => (significand, Some(exponent)),
            None => (digits, None),
        };
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (whole, fraction) = significand.split_once('.').unwrap_or((significand, ""));
        if whole.len() + fraction.len() == 0 || !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        if let Some(exponent) = exponent {
            let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
            // A larger exponent is out of range whatever the digits are.
            if digits.is_empty() || !all_digits(digits) || digits.len() > 6 {
                return None;
            }
        }
        let parsed = X87DoubleExtended::from_str_r(digits, Round::NearestTiesToEven).ok()?;
        let is_zero = whole.bytes().chain(fraction.bytes()).all(|digit| digit == b'0');
        Self::in_range(parsed, is_zero, negative)
    }

    /// Returns the number, unless it is too large, or too small and not zero.
    fn in_range(
        parsed: StatusAnd<X87DoubleExtended>,
        is_zero: bool,
        negative: bool,
    ) -> Option<Self> {
        let underflows = parsed.value.is_zero() && !is_zero;
        if underflows || parsed.status.intersects(Status::OVERFLOW) {
            return None;
        }
        Some(Self(if negative { -parsed.value } else { parsed.value }))
    }

    pub fn add(self, other: Self) -> Self {
        Self(self.0.add_r(other.0, Round::NearestTiesToEven).value)
    }

    /// Returns a thousand times the number, rounded up, or `None` if 64 bits cannot hold it.
    pub fn thousandfold(self) -> Option<i64> {
        let product =
            self.0.mul_r(X87DoubleExtended::from_i128(1000).value, Round::NearestTiesToEven);
        let mut is_exact = false;
        let rounded = product.value.to_i128_r(64, Round::TowardPositive, &mut is_exact);
        match rounded.status.intersects(Status::INVALID_OP) {
            true => None,
            false => i64::try_from(rounded.value).ok(),
        }
    }

    /// Formats the number with at most 17 digits after the point and without trailing zeros.
    /// Returns `None` if it is not a number.
    pub fn text(self) -> Option<String> {
        if !self.0.is_finite() {
            return None;
        }
        let bits = self.0.to_bits();
        let negative = bits >> 79 & 1 == 1;
        let exponent = (bits >> 64 & 0x7FFF) as i32 - BIAS - FRACTION;
        let significand = bits as u64;
        let (whole, fraction) = if exponent >= 0 {
            (shifted_left(significand, exponent as u32), 0)
        } else {
            split(significand, exponent.unsigned_abs())
        };
        let fraction = format!("{fraction:0digits$}", digits = DIGITS as usize);
        let fraction = fraction.trim_end_matches('0');
        let point = if fraction.is_empty() { "" } else { "." };
        let sign = if negative && (whole != "0" || !fraction.is_empty()) { "-" } else { "" };
        Some(format!("{sign}{whole}{point}{fraction}"))
    }
}

/// Returns the integer part of `significand / 2^bits`, in digits, and its fraction times 10^17,
/// rounded.
fn split(significand: u64, bits: u32) -> (String, u64) {
    let one = 10_u128.pow(DIGITS);
    let whole = u128::from(significand).checked_shr(bits).unwrap_or(0);
    let fraction = u128::from(significand) - whole.checked_shl(bits).unwrap_or(0);
    // The product of a number below 2^64 and one below 2^57.
    let scaled = fraction * one;
    let (rounded, rest, half) = match bits {
        ..122 => (scaled >> bits, scaled & ((1 << bits) - 1), 1 << (bits - 1)),
        // The value is less than half.
        _ => (0, 0, 1),
    };
    let rounded = rounded + u128::from(rest > half || rest == half && rounded & 1 == 1);
    let (carry, fraction) = (rounded / one, rounded % one);
    ((whole + carry).to_string(), fraction as u64)
}

/// Returns the digits of `number * 2^bits`.
fn shifted_left(number: u64, bits: u32) -> String {
    const BASE: u64 = 1_000_000_000;
    // Groups of nine digits, the lowest group first.
    let mut groups = vec![number % BASE, number / BASE % BASE, number / BASE / BASE];
    let mut left = bits;
    while left > 0 {
        let now = left.min(29);
        let mut carry = 0;
        for group in &mut groups {
            let product = (*group << now) + carry;
            *group = product % BASE;
            carry = product / BASE;
        }
        if carry > 0 {
            groups.push(carry);
        }
        left -= now;
    }
    while groups.len() > 1 && groups.last() == Some(&0) {
        groups.pop();
    }
    let mut digits = groups.pop().unwrap_or(0).to_string();
    groups.iter().rev().for_each(|group| digits.push_str(&format!("{group:09}")));
    digits
}

#[cfg(test)]
mod tests {
    use super::LongDouble;

    fn sum(a: &str, b: &str) -> Option<String> {
        LongDouble::parse(a.as_bytes())?.add(LongDouble::parse(b.as_bytes())?).text()
    }

    #[test]
    fn milliseconds_are_rounded_up() {
        for (text, expected) in [
            ("0", Some(0)),
            ("0.0001", Some(1)),
            ("1.0015", Some(1002)),
            ("-0.0005", Some(0)),
            ("-1", Some(-1000)),
            ("9223372036854775.807", Some(i64::MAX)),
            ("9223372036854775.808", None),
            ("1e4000", None),
            ("-1e4000", None),
            ("inf", None),
        ] {
            let number = LongDouble::parse(text.as_bytes()).unwrap();
            assert_eq!(number.thousandfold(), expected, "{text}");
        }
    }

    #[test]
    fn sums_are_those_of_redis() {
        let sums = [
            ("10.50", "0.1", "10.6"),
            ("0.1", "0.2", "0.3"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "-3", "0"),
            ("-0.0", "-0", "0"),
            ("1", "1e-17", "1.00000000000000001"),
            ("0", "-1e-18", "0"),
            ("9007199254740993", "0.5", "9007199254740993.5"),
            ("1e30", "0", "1000000000000000000024696061952"),
            ("+1.5", ".5", "2"),
            ("0x10", "-0x1.8p1", "13"),
        ];
        for (a, b, expected) in sums {
            assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
        }
        for text in ["", "x", " 1", "1 ", "1e", "1e5000", "nan", "--1", ".", "0x"] {
            assert!(LongDouble::parse(text.as_bytes()).is_none(), "{text:?}");
        }
        assert_eq!(sum("inf", "1"), None);
    }
}
