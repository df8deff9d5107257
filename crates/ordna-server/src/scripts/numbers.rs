//! Formatting of numbers as in C.

/// Formats a number like `%.{precision}g` in C.
pub fn general(number: f64, precision: usize) -> String {
    if number.is_nan() {
        return if number.is_sign_negative() { "-nan" } else { "nan" }.to_owned();
    }
    if number.is_infinite() {
        return if number < 0.0 { "-inf" } else { "inf" }.to_owned();
    }
    if number == 0.0 {
        return if number.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{number:.*e}", precision - 1);
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| -> String {
        match text.contains('.') {
            true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => text.to_owned(),
        }
    };
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(digits), exponent.abs());
    }
    let decimals = usize::try_from(precision as i32 - 1 - exponent).unwrap_or(0);
    trimmed(&format!("{number:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn numbers_are_those_of_c() {
        for (number, precision, text) in [
            (1e20, 17, "1e+20"),
            (0.1, 17, "0.10000000000000001"),
            (0.1, 14, "0.1"),
            (3.0, 17, "3"),
            (1e15, 14, "1e+15"),
            (123456.0, 14, "123456"),
            (-1.5e-7, 14, "-1.5e-07"),
            (f64::INFINITY, 14, "inf"),
            (0.0, 14, "0"),
        ] {
            assert_eq!(general(number, precision), text);
        }
    }
}
