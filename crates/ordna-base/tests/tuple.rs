//! The tuple encoding: order, round trip, prefixes, and rejection of invalid bytes.

use std::cmp::{Ordering, Reverse};
use std::time::Duration;

use num_bigint::BigInt;
use num_rational::BigRational;
use ordna_base::tuple::{
    Decode, Encode, Like, Moment, Number, Prefix, Reader, Value, decode, encode,
};
use proptest::prelude::*;

fn agrees<T: Encode>(a: &T, b: &T, order: Ordering) -> Result<(), TestCaseError> {
    let (x, y) = (encode(a), encode(b));
    prop_assert_eq!(x.cmp(&y), order);
    prop_assert!(order == Ordering::Equal || !y.starts_with(&x), "one is a prefix of the other");
    Ok(())
}

/// Checks order and round trip of two values.
fn sound<T: Encode + Decode + Ord + std::fmt::Debug>(a: T, b: T) -> Result<(), TestCaseError> {
    agrees(&a, &b, a.cmp(&b))?;
    prop_assert_eq!(&decode::<T>(&encode(&a))?, &a);
    let (a, b) = (Reverse(a), Reverse(b));
    agrees(&a, &b, a.cmp(&b))?;
    prop_assert_eq!(&decode::<Reverse<T>>(&encode(&b))?, &b);
    Ok(())
}

/// Strings of the bytes at which escapes could be wrong.
fn nasty() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0, 1, 2, 0x50, 0x7F, 0xFE, 0xFF]), 0..6)
}

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!['\0', '\u{1}', 'a', 'é', '\u{10FFFF}']), 0..5)
        .prop_map(|chars| chars.into_iter().collect())
}

/// Integers near powers of two, where lengths change.
fn whole() -> impl Strategy<Value = BigInt> {
    (0_u32..300, -2_i32..3, any::<bool>(), any::<u64>()).prop_map(|(bits, off, minus, low)| {
        let mut value = (BigInt::from(1) << bits) + off;
        if off == 2 {
            value += low;
        }
        if minus { -value } else { value }
    })
}

fn float() -> impl Strategy<Value = f64> {
    let special = vec![
        0.0,
        -0.0,
        0.5,
        -0.5,
        1.0,
        -1.0,
        1.5,
        -1.5,
        127.5,
        128.0,
        255.5,
        256.0,
        f64::MAX,
        f64::MIN,
        f64::MIN_POSITIVE,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        -f64::NAN,
        5e-324,
        -5e-324,
        2_f64.powi(127),
        -(2_f64.powi(127)),
        2_f64.powi(128),
        9_007_199_254_740_993.0,
    ];
    prop_oneof![
        prop::sample::select(special),
        any::<u64>().prop_map(f64::from_bits),
        (-1_000_000_i64..1_000_000).prop_map(|n| n as f64 / 64.0),
    ]
}

/// A number with its exact value. `Err` holds the rank of a value that is not a rational number.
fn number() -> impl Strategy<Value = (Number, Result<BigRational, i8>)> {
    prop_oneof![
        whole().prop_map(|value| {
            let (sign, magnitude) = value.to_bytes_be();
            let number = Number::from_magnitude(sign == num_bigint::Sign::Minus, &magnitude);
            (number, Ok(BigRational::from(value)))
        }),
        float().prop_map(|value| {
            let exact = BigRational::from_float(value).ok_or({
                if value.is_nan() {
                    2
                } else if value > 0.0 {
                    1
                } else {
                    -1
                }
            });
            // Encoded directly and through the constructor: the bytes must be the same.
            assert_eq!(encode(&Number::Real(value)), encode(&Number::from(value)));
            (Number::from(value), exact)
        }),
    ]
}

fn exact_order(a: &Result<BigRational, i8>, b: &Result<BigRational, i8>) -> Ordering {
    match (a, b) {
        (Ok(a), Ok(b)) => a.cmp(b),
        (Err(a), Err(b)) => a.cmp(b),
        (Err(a), Ok(_)) => a.cmp(&0),
        (Ok(_), Err(b)) => 0.cmp(b),
    }
}

/// Values of all types, two levels deep.
fn value() -> impl Strategy<Value = Value> {
    let flat = prop_oneof![
        Just(Value::Missing),
        Just(Value::Null),
        any::<bool>().prop_map(Value::Bool),
        number().prop_map(|(number, _)| Value::Number(number)),
        float().prop_map(Value::F64),
        any::<u32>().prop_map(|bits| Value::F32(f32::from_bits(bits))),
        any::<char>().prop_map(Value::Char),
        text().prop_map(Value::String),
        nasty().prop_map(Value::Bytes),
        any::<[u8; 16]>().prop_map(Value::Uuid),
        any::<i32>().prop_map(Value::Date),
        (any::<i32>(), 0..86_400_000_000_000_u64)
            .prop_map(|(day, nanos)| Value::Utc(Moment { day, nanos })),
        (any::<i64>(), 0..1_000_000_000_u32)
            .prop_map(|(seconds, nanos)| Value::Duration(seconds.into(), nanos)),
    ];
    flat.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::Tuple),
            inner.clone().prop_map(|value| Value::Descending(Box::new(value))),
            inner.prop_map(|value| Value::Some(Box::new(value))),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn integers_of_every_width(a in any::<(i8, u8, i16, u16, i32, u32, i64, u64)>(),
            b in any::<(i8, u8, i16, u16, i32, u32, i64, u64)>(),
            c in any::<(i128, u128, i128, u128)>(), shift in 0_u32..128) {
        sound(a, b)?;
        sound(c.0 >> shift, c.2)?;
        sound(c.1 >> shift, c.3)?;
        for edge in [i128::MIN, i128::MIN + 1, i128::MAX, -1, 0, 1] {
            sound(edge, c.0 >> shift)?;
        }
        sound(u128::MAX, c.1)?;
        // All widths have one order, and the same number has the same bytes.
        prop_assert_eq!(encode(&a.0), encode(&i128::from(a.0)));
        prop_assert_eq!(encode(&a.7), encode(&u128::from(a.7)));
    }

    #[test]
    fn numbers_compare_by_their_exact_value(a in number(), b in number()) {
        agrees(&a.0, &b.0, exact_order(&a.1, &b.1))?;
        let back = decode::<Number>(&encode(&a.0))?;
        prop_assert_eq!(encode(&back), encode(&a.0));
        if let (Ok(exact), false) = (&a.1, matches!(a.0, Number::Big { .. })) {
            prop_assert_eq!(&BigRational::from_float(back.to_f64()).map(|f| f.to_integer()),
                &BigRational::from_float(a.0.to_f64()).map(|f| f.to_integer()));
            if let Number::Real(value) = back {
                prop_assert_eq!(&BigRational::from_float(value).unwrap(), exact);
            }
        }
    }

    #[test]
    fn a_float_made_a_number_comes_back(value in float()) {
        let back = decode::<Number>(&encode(&Number::from(value)))?.to_f64();
        // All NaN are equal, and −0 equals 0.
        prop_assert!(back == value || back.is_nan() && value.is_nan());
    }

    #[test]
    fn floats_are_in_total_order_and_keep_their_bits(a in float(), b in float(), c in any::<[u32; 2]>()) {
        agrees(&a, &b, a.total_cmp(&b))?;
        prop_assert_eq!(decode::<f64>(&encode(&a))?.to_bits(), a.to_bits());
        let c = c.map(f32::from_bits);
        agrees(&c[0], &c[1], c[0].total_cmp(&c[1]))?;
        prop_assert_eq!(decode::<f32>(&encode(&c[0]))?.to_bits(), c[0].to_bits());
    }

    #[test]
    fn big_integers(a in whole(), b in whole()) {
        agrees(&Big(a.clone()), &Big(b.clone()), a.cmp(&b))?;
    }

    #[test]
    fn strings_bytes_chars_and_bools(a in (text(), nasty(), any::<char>(), any::<bool>()),
            b in (text(), nasty(), any::<char>(), any::<bool>())) {
        sound(a.0.clone(), b.0.clone())?;
        sound(a.1.clone(), b.1.clone())?;
        sound(a, b)?;
    }

    #[test]
    fn options_arrays_and_vectors(
        a in (any::<Option<Option<i16>>>(), any::<[i16; 2]>(), prop::collection::vec(nasty(), 0..4)),
        b in (any::<Option<Option<i16>>>(), any::<[i16; 2]>(), prop::collection::vec(nasty(), 0..4)),
    ) {
        sound(a, b)?;
    }

    #[test]
    fn ascending_and_descending_parts(a in (text(), any::<i16>(), nasty(), any::<Option<u8>>()),
            b in (text(), any::<i16>(), nasty(), any::<Option<u8>>())) {
        let mixed = |(s, n, bytes, o): (String, i16, Vec<u8>, Option<u8>)|
            (Reverse(s), n, Reverse((bytes, Reverse(o))), Reverse(n));
        sound(mixed(a), mixed(b))?;
    }

    #[test]
    fn a_key_tells_its_types(value in value()) {
        let key = encode(&value);
        let back = decode::<Value>(&key)?;
        prop_assert_eq!(encode(&back), key);
    }

    #[test]
    fn no_value_is_a_prefix_of_another(a in value(), b in value()) {
        let (a, b) = (encode(&a), encode(&b));
        prop_assert!(a == b || !b.starts_with(&a));
    }

    #[test]
    fn any_bytes_are_refused_or_are_what_encode_makes(bytes in prop::collection::vec(any::<u8>(), 0..24)) {
        if let Ok(value) = decode::<Value>(&bytes) {
            prop_assert_eq!(encode(&value), bytes);
        }
    }

    #[test]
    fn damaged_keys_are_refused_or_are_what_encode_makes(value in value(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = encode(&value);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(value) = decode::<Value>(&bytes) {
            prop_assert_eq!(&encode(&value), &bytes);
        }
        bytes.truncate(at);
        prop_assert!(decode::<Value>(&bytes).is_err(), "{:?}", bytes);
    }

    #[test]
    fn a_prefix_finds_exactly_its_keys(a in (text(), nasty()), b in (text(), nasty(), any::<i8>())) {
        let key = encode(&b);
        let starts = |prefix: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            prefix(&mut out);
            key.starts_with(&out)
        };
        type Three = (String, Vec<u8>, i8);
        prop_assert_eq!(starts(&|out| Prefix::<Three>::encode_prefix(&(&*a.0,), out)), a.0 == b.0);
        let both = (a.0 == b.0, a.1 == b.1);
        prop_assert_eq!(
            starts(&|out| Prefix::<Three>::encode_prefix(&(&*a.0, &*a.1), out)),
            both.0 && both.1
        );
        let mut out = Vec::new();
        Prefix::<String>::encode_prefix(&*a.0, &mut out);
        prop_assert_eq!(encode(&b.0).starts_with(&out), b.0.starts_with(&a.0));
        out.clear();
        Prefix::<Vec<u8>>::encode_prefix(&*a.1, &mut out);
        prop_assert_eq!(encode(&b.1).starts_with(&out), b.1.starts_with(&a.1));
    }
}

/// Integers of any size without the feature `bigint`.
struct Big(BigInt);

impl Encode for Big {
    fn encode(&self, out: &mut Vec<u8>) {
        let (sign, magnitude) = self.0.to_bytes_be();
        Number::from_magnitude(sign == num_bigint::Sign::Minus, &magnitude).encode(out);
    }
}

/// Checks the bytes in the tables of docs/TUPLE.md.
#[test]
fn the_bytes_are_those_of_the_page() {
    fn is<T: Encode + ?Sized>(value: &T, hex: &str) {
        let bytes: Vec<String> = encode(value).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(bytes.join(" "), hex);
    }
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/TUPLE.md"));
    let page = page.unwrap();
    let mut rows = 0;
    for row in page.lines().filter_map(|line| line.strip_prefix("| `")) {
        let Some((value, rest)) = row.split_once("` | `") else { continue };
        let Some((bytes, _)) = rest.split_once('`') else { continue };
        rows += 1;
        match value {
            "None" => is(&None::<u8>, bytes),
            "Some(None)" => is(&Some(None::<u8>), bytes),
            "true" => is(&true, bytes),
            "0" => is(&0, bytes),
            "1" => is(&1_u8, bytes),
            "-1" => is(&-1_i64, bytes),
            "127" => is(&127_u128, bytes),
            "128" => is(&128_i16, bytes),
            "u64::MAX" => is(&u64::MAX, bytes),
            "i128::MIN" => is(&i128::MIN, bytes),
            "u128::MAX" => is(&u128::MAX, bytes),
            "Number 2.5" => is(&Number::from(2.5), bytes),
            "Number -2.5" => is(&Number::from(-2.5), bytes),
            "Number 1e300" => is(&Number::from(1e300), bytes),
            "f64 2.5" => is(&2.5_f64, bytes),
            "f64 -0.0" => is(&-0.0_f64, bytes),
            "f32 2.5" => is(&2.5_f32, bytes),
            "'é'" => is(&'é', bytes),
            "\"é\"" => is("é", bytes),
            "\"\"" => is("", bytes),
            "b\"a\\0\"" => is(b"a\0", bytes),
            "1970-01-02" => is(&Value::Date(1), bytes),
            "00:00:01" => is(&Value::Time(1_000_000_000), bytes),
            "1970-01-01 00:00:01 UTC" => {
                is(&Value::Utc(Moment { day: 0, nanos: 1_000_000_000 }), bytes);
            }
            "1 s" => is(&Duration::from_secs(1), bytes),
            "()" => is(&(), bytes),
            "(\"SE\", 5)" => is(&("SE", 5), bytes),
            "Reverse(5)" => is(&Reverse(5), bytes),
            other => panic!("the page has a row {other:?} that this test does not know"),
        }
    }
    assert_eq!(rows, 28);
}

#[test]
fn types_are_in_the_order_of_their_codes() {
    let moment = Moment { day: 0, nanos: 0 };
    let values = [
        Value::Missing,
        Value::Null,
        Value::Bool(false),
        Value::Bool(true),
        Value::Some(Box::new(Value::Null)),
        Value::Number(Number::Real(f64::NEG_INFINITY)),
        Value::Number(Number::Int(0)),
        Value::Number(Number::Real(f64::NAN)),
        Value::F32(0.0),
        Value::F64(0.0),
        Value::Char('a'),
        Value::String(String::new()),
        Value::Bytes(vec![]),
        Value::Uuid([0; 16]),
        Value::Date(0),
        Value::Time(0),
        Value::Local(moment),
        Value::Utc(moment),
        Value::Duration(0, 0),
        Value::Tuple(vec![]),
    ];
    for two in values.windows(2) {
        assert!(encode(&two[0]) < encode(&two[1]), "{two:?}");
    }
}

#[test]
fn wrong_types_and_lengths_are_refused_with_what_stands_there() {
    let error = decode::<String>(&encode(&5_u8)).unwrap_err();
    assert_eq!(error.to_string(), "at byte 0: expected a string, found 0x31");
    let error = decode::<u8>(&encode(&256_u16)).unwrap_err();
    assert_eq!((error.at, error.found), (0, Some(0x32)));
    assert_eq!(decode::<u8>(&[0x31, 2, 9]).unwrap_err().expected, "the end");
    assert!(decode::<i64>(&encode(&Number::Real(0.5))).is_err());
    assert!(decode::<[u8; 3]>(&encode(b"ab")).is_err());
    assert!(decode::<String>(&[0x50, 0xFF, 0]).is_err());
    assert!(decode::<char>(&[0x48, 0, 0xD8, 0]).is_err());
    assert!(decode::<u8>(&[]).is_err());
}

#[test]
fn nesting_is_bounded_without_recursion_beyond() {
    let deep = |depth: usize| [vec![0x70; depth], vec![0; depth]].concat();
    assert!(decode::<Value>(&deep(64)).is_ok());
    assert!(decode::<Value>(&deep(65)).is_err());
    assert!(decode::<Value>(&vec![0x70; 65_535]).is_err());
    assert!(decode::<Value>(&[0x70, 0x8F].repeat(30_000)).is_err());
}

/// Returns a value of `levels` levels, each created from the one below by `wrap`.
fn nested(levels: usize, wrap: impl Fn(Value) -> Value) -> Vec<u8> {
    encode(&(1..levels).fold(Value::Null, |value, _| wrap(value)))
}

#[test]
fn descending_values_and_present_ones_count_as_levels() {
    let some = |value| Value::Some(Box::new(value));
    assert!(decode::<Value>(&nested(64, some)).is_ok());
    assert!(decode::<Value>(&nested(65, some)).is_err());
    // Two levels for each step.
    let descending = |value| Value::Tuple(vec![Value::Descending(Box::new(value))]);
    assert!(decode::<Value>(&nested(32, descending)).is_ok());
    assert!(decode::<Value>(&nested(33, descending)).is_err());
}

#[test]
fn a_cut_value_is_refused_where_its_bytes_end() {
    let error = decode::<f64>(&encode(&2.5)[..5]).unwrap_err();
    assert_eq!((error.at, error.found), (5, None));
}

/// The position of a reader of several consecutive values.
#[test]
fn a_reader_tells_how_many_bytes_it_has_read() {
    let key = [encode(&true), encode(&2.5_f64)].concat();
    let mut reader = Reader::new(&key);
    assert_eq!((reader.position(), reader.is_empty()), (0, false));
    assert_eq!(bool::decode(&mut reader), Ok(true));
    assert_eq!((reader.position(), reader.is_empty()), (encode(&true).len(), false));
    assert_eq!(f64::decode(&mut reader), Ok(2.5));
    assert_eq!((reader.position(), reader.is_empty()), (key.len(), true));
}

#[test]
fn a_span_has_less_than_a_second_of_nanoseconds_and_a_time_less_than_a_day() {
    let span = |nanos: u32| [&encode(&Duration::from_secs(5))[..10], &nanos.to_be_bytes()].concat();
    assert_eq!(decode::<Duration>(&span(999_999_999)), Ok(Duration::new(5, 999_999_999)));
    assert!(decode::<Duration>(&span(1_000_000_000)).is_err());
    let day = 86_400_000_000_000;
    assert!(decode::<Value>(&encode(&Value::Time(day - 1))).is_ok());
    assert!(decode::<Value>(&encode(&Value::Time(day))).is_err());
}

#[test]
fn a_float_of_2_to_the_127th_is_that_integer() {
    let value = 2_f64.powi(127);
    assert_eq!(Number::from(value), Number::from(1_u128 << 127));
    assert_eq!(Number::from(-value), Number::from_magnitude(true, &(1_u128 << 127).to_be_bytes()));
}

#[test]
fn bytes_behind_the_sixteenth_break_a_tie() {
    // Half way between two floats, and one more.
    let tie = 1_u128 << 127 | 1 << 74;
    let magnitude = |last: u8| [&tie.to_be_bytes()[..], &[last]].concat();
    let float = |last| Number::from_magnitude(false, &magnitude(last)).to_f64();
    assert_eq!(float(0), 2_f64.powi(135));
    assert_eq!(float(1), 2_f64.powi(135) + 2_f64.powi(83));
}

#[test]
fn numbers_in_another_form_than_encode_writes_are_refused() {
    let number = |bytes: &[u8]| decode::<Number>(bytes);
    // 1 and a fraction of 0.
    assert!(number(&[0x31, 3, 0, 0, 0, 0, 0, 0, 0, 0]).is_err());
    let big =
        |bits: u32, first: u8| number(&[&[0x41], &bits.to_be_bytes()[..], &[first, 0]].concat());
    assert_eq!(big(128, 0x80), Ok(Number::from(1_u128 << 127)));
    assert!(big(127, 0x80).is_err(), "few enough bits for a small number");
    assert!(big(128, 0x40).is_err(), "the first bit is not set");
    assert!(big(65_535 * 8, 0x80).is_ok());
    assert!(big(65_535 * 8 + 1, 0x80).is_err(), "more bytes than a key may have");
}

#[test]
fn borrowed_forms_are_like_the_owned_ones() {
    fn like<K: Encode, Q: Like<K>>(owned: &K, borrowed: &Q) {
        assert_eq!(encode(owned), encode(borrowed));
    }
    like(&("SE".to_owned(), vec![1_u8], Some("x".to_owned())), &("SE", [1_u8], Some("x")));
    like(&Reverse("a".to_owned()), &Reverse("a"));
    like(&[1_u16, 2], &[1_u16, 2]);
    like(&vec!["a".to_owned()], &["a"].as_slice());
}

#[cfg(all(feature = "bigint", feature = "time", feature = "uuid"))]
mod foreign {
    use super::*;
    use num_bigint::BigUint;
    use time::{Date, Duration, OffsetDateTime, PrimitiveDateTime, Time, UtcOffset};
    use uuid::Uuid;

    fn date() -> impl Strategy<Value = Date> {
        (Date::MIN.to_julian_day()..=Date::MAX.to_julian_day())
            .prop_map(|day| Date::from_julian_day(day).unwrap())
    }

    fn time() -> impl Strategy<Value = Time> {
        (0..24_u8, 0..60_u8, 0..60_u8, 0..1_000_000_000_u32)
            .prop_map(|(h, m, s, n)| Time::from_hms_nano(h, m, s, n).unwrap())
    }

    fn local() -> impl Strategy<Value = PrimitiveDateTime> {
        (date(), time()).prop_map(|(date, time)| PrimitiveDateTime::new(date, time))
    }

    fn zoned() -> impl Strategy<Value = OffsetDateTime> {
        (-370_000_000_000_i64..250_000_000_000, any::<i8>()).prop_map(|(seconds, minutes)| {
            let offset = UtcOffset::from_whole_seconds(i32::from(minutes) * 60).unwrap();
            OffsetDateTime::from_unix_timestamp(seconds).unwrap().to_offset(offset)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn integers_of_any_size(a in whole(), b in whole()) {
            sound(a.clone(), b.clone())?;
            sound::<BigUint>(a.magnitude().clone(), b.magnitude().clone())?;
        }

        #[test]
        fn dates_times_and_uuids(a in (date(), time(), local(), zoned(), any::<[u8; 16]>()),
                b in (date(), time(), local(), zoned(), any::<[u8; 16]>()), spans in any::<[(i64, i32); 2]>()) {
            sound(a.0, b.0)?;
            sound(a.1, b.1)?;
            sound(a.2, b.2)?;
            sound(a.3, b.3)?;
            sound(Uuid::from_bytes(a.4), Uuid::from_bytes(b.4))?;
            let [x, y] = spans.map(|(seconds, nanos)| Duration::new(seconds / 2, nanos));
            sound(x, y)?;
            sound(x.unsigned_abs(), y.unsigned_abs())?;
        }
    }
}
