//! Parsing and formatting of doubles, as Redis reads and writes scores.

/// Parses what C's `strtod` accepts, except blanks, NaN, and numbers that are too large or too
/// small. Returns `None` for any other text.
pub fn parse(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    let (is_negative, digits) = match text.strip_prefix(['-', '+']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    let first = digits.bytes().next()?;
    let value = if let Some(hex) = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        hexadecimal(hex)?
    } else if first.is_ascii_digit() || first == b'.' {
        let value: f64 = digits.parse().ok()?;
        let is_zero = || {
            let mantissa = digits.split(['e', 'E']).next().unwrap_or_default();
            mantissa.bytes().all(|byte| matches!(byte, b'0' | b'.'))
        };
        if value.is_infinite() || value == 0.0 && !is_zero() {
            return None;
        }
        value
    } else if digits.eq_ignore_ascii_case("inf") || digits.eq_ignore_ascii_case("infinity") {
        f64::INFINITY
    } else {
        return None;
    };
    Some(if is_negative { -value } else { value })
}

/// Parses an end of a range of scores, as `strtod` reads a C string: leading blanks are skipped, an
/// empty text is 0, a number that is too large or small becomes an infinity or 0, and a zero byte
/// ends the text.
pub fn parse_bound(text: &[u8]) -> Option<f64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = match text.is_empty() {
        true => return Some(0.0),
        false => text.trim_ascii_start(),
    };
    parse(text).or_else(|| {
        let text = std::str::from_utf8(text).ok()?;
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        let begins =
            digits.bytes().next().is_some_and(|byte| byte.is_ascii_digit() || byte == b'.');
        if begins { text.parse().ok() } else { None }
    })
}

/// Returns the value of hexadecimal digits with a point and a binary exponent. Digits after the
/// first sixteen are not rounded exactly.
fn hexadecimal(text: &str) -> Option<f64> {
    let (mantissa, exponent) = match text.split_once(['p', 'P']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut value = 0.0;
    for digit in whole.chars().chain(fraction.chars()) {
        value = value * 16.0 + f64::from(digit.to_digit(16)?);
    }
    let exponent = exponent.checked_sub(4 * i32::try_from(fraction.len()).ok()?)?;
    // Applied in two steps, because the power alone may be out of range.
    let half = exponent / 2;
    let scaled = value * 2_f64.powi(half) * 2_f64.powi(exponent - half);
    let fits = scaled.is_finite() && (scaled != 0.0 || value == 0.0);
    fits.then_some(scaled)
}

/// Formats a double like `%.17g` in C.
pub fn text(value: f64) -> String {
    const DIGITS: i32 = 17;
    if value.is_infinite() {
        return if value > 0.0 { "inf".to_owned() } else { "-inf".to_owned() };
    }
    if value == 0.0 {
        return if value.is_sign_negative() { "-0".to_owned() } else { "0".to_owned() };
    }
    /// Bound below which a double without a fraction has at most 16 digits, all of which are exact.
    const WHOLE: f64 = 9_007_199_254_740_992.0;
    if value.abs() < WHOLE && value.trunc() == value {
        return (value as i64).to_string();
    }
    let exact = format!("{:.16e}", value.abs());
    let (mantissa, exponent) = exact.split_once('e').unwrap_or((&exact, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let digits = digits.trim_end_matches('0');
    let sign = if value < 0.0 { "-" } else { "" };
    let with_point = |digits: &str, at: usize| match digits.len() > at {
        true => format!("{}.{}", &digits[..at], &digits[at..]),
        false => format!("{digits:0<at$}"),
    };
    if (0..DIGITS).contains(&exponent) {
        return format!("{sign}{}", with_point(digits, exponent as usize + 1));
    }
    if (-4..0).contains(&exponent) {
        let zeros = "0".repeat((-exponent - 1) as usize);
        return format!("{sign}0.{zeros}{digits}");
    }
    let direction = if exponent < 0 { '-' } else { '+' };
    format!("{sign}{}e{direction}{:02}", with_point(digits, 1), exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_those_of_c() {
        for (value, expected) in [
            (0.1, "0.10000000000000001"),
            (3.0, "3"),
            (-1.5, "-1.5"),
            (1e17, "1e+17"),
            (1e16, "10000000000000000"),
            (9_007_199_254_740_993.0, "9007199254740992"),
            (-9_007_199_254_740_991.0, "-9007199254740991"),
            (-7.0, "-7"),
            (12_345_678_901_234_568.0, "12345678901234568"),
            (1e-5, "1.0000000000000001e-05"),
            (0.0001, "0.0001"),
            (1e300, "1.0000000000000001e+300"),
            (100.0, "100"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(text(value), expected);
            assert_eq!(parse(expected.as_bytes()), Some(value));
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in
            ["", " 1", "1 ", "nan", "1e", "--1", "1e400", "1e-400", "0x", "1,5", "one", "e5"]
        {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
        for (text, expected) in [
            ("0x10", 16.0),
            ("0x1p-3", 0.125),
            ("+1", 1.0),
            (".5", 0.5),
            ("1.", 1.0),
            ("-inf", f64::NEG_INFINITY),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(expected), "{text}");
        }
    }
}
