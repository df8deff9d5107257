//! The encodings of further types of the standard library, each as a type of `types` or `value`.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::{NonZero, Wrapping};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::encode::{Decode, Encode, Like, Prefix};
use super::read::{DecodeError, Reader};
use super::value::{Moment, Value};

const SECONDS_OF_A_DAY: i64 = 86_400;

/// A time is encoded as a day and a time of day in UTC, so that it equals an `OffsetDateTime` of
/// `time`.
///
/// A time that is more than 2^31 days from 1970 is ordered like the last time within that range.
impl Encode for SystemTime {
    fn encode(&self, out: &mut Vec<u8>) {
        // Seconds rounded down, and the nanoseconds above them.
        let (seconds, nanos) = match self.duration_since(UNIX_EPOCH) {
            Ok(after) => (i64::try_from(after.as_secs()).unwrap_or(i64::MAX), after.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                let seconds = i64::try_from(before.as_secs()).unwrap_or(i64::MAX);
                match before.subsec_nanos() {
                    0 => (-seconds, 0),
                    nanos => (-seconds - 1, 1_000_000_000 - nanos),
                }
            }
        };
        let day = seconds.div_euclid(SECONDS_OF_A_DAY);
        let day = day.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32;
        let second = seconds.rem_euclid(SECONDS_OF_A_DAY) as u64;
        Value::Utc(Moment { day, nanos: second * 1_000_000_000 + u64::from(nanos) }).encode(out);
    }
}

impl Decode for SystemTime {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let unread = reader.clone();
        let time = match Value::decode(reader)? {
            Value::Utc(Moment { day, nanos }) => {
                let seconds = u64::from(day.unsigned_abs()) * SECONDS_OF_A_DAY as u64;
                let days = Duration::from_secs(seconds);
                let midnight = match day < 0 {
                    true => UNIX_EPOCH.checked_sub(days),
                    false => UNIX_EPOCH.checked_add(days),
                };
                midnight.and_then(|midnight| midnight.checked_add(Duration::from_nanos(nanos)))
            }
            _ => None,
        };
        time.ok_or_else(|| unread.error("a time of the system"))
    }
}
impl Like<Self> for SystemTime {}

/// Types that encode as another one.
macro_rules! as_other {
    ($([$($generics:tt)*] $type:ty, $other:ty, $to:expr, $from:expr, $expected:literal;)*) => { $(
        impl<$($generics)*> Encode for $type {
            #[inline]
            fn encode(&self, out: &mut Vec<u8>) {
                let to: fn(&Self) -> $other = $to;
                to(self).encode(out);
            }
        }
        impl<$($generics)*> Decode for $type {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
                let unread = reader.clone();
                let from: fn($other) -> Option<Self> = $from;
                from(<$other>::decode(reader)?).ok_or_else(|| unread.error($expected))
            }
        }
        impl<$($generics)*> Like<Self> for $type {}
    )* };
}

macro_rules! non_zero {
    ($($int:ty),*) => {
        as_other! { $(
            [] NonZero<$int>, $int, |value| value.get(), NonZero::new, "a number other than 0";
        )* }
        as_other! { $(
            [] Wrapping<$int>, $int, |value| value.0, |value| Some(Wrapping(value)), "a number";
        )* }
    };
}
non_zero!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

// All IPv4 addresses are below all IPv6 addresses, as in `IpAddr`.
as_other! {
    [] Ipv4Addr, u32, |ip| ip.to_bits(), |bits| Some(Self::from_bits(bits)), "an IPv4 address";
    [] Ipv6Addr, u128, |ip| ip.to_bits(), |bits| Some(Self::from_bits(bits)), "an IPv6 address";
    [] IpAddr, (bool, u128),
        |ip| match ip {
            IpAddr::V4(ip) => (false, u128::from(ip.to_bits())),
            IpAddr::V6(ip) => (true, ip.to_bits()),
        },
        |(is_v6, bits)| match is_v6 {
            true => Some(Self::V6(Ipv6Addr::from_bits(bits))),
            false => u32::try_from(bits).ok().map(|bits| Self::V4(Ipv4Addr::from_bits(bits))),
        },
        "an IP address";
}

impl Encode for Box<str> {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}

impl Decode for Box<str> {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        String::decode(reader).map(String::into_boxed_str)
    }
}
impl Like<Self> for Box<str> {}
impl Like<Box<str>> for str {}
impl Like<Box<str>> for String {}
impl Prefix<Box<str>> for str {
    fn encode_prefix(&self, out: &mut Vec<u8>) {
        <Self as Prefix<String>>::encode_prefix(self, out);
    }
}

impl Encode for Cow<'_, str> {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}
impl Like<String> for Cow<'_, str> {}

#[cfg(test)]
mod tests {
    use super::super::{decode, encode};
    use super::*;

    #[test]
    fn times_are_in_order_and_come_back() {
        let spans = [0, 1, 999_999_999, 1_000_000_000, 86_400_000_000_000, u64::MAX / 4];
        let mut times: Vec<SystemTime> =
            spans.iter().map(|nanos| UNIX_EPOCH + Duration::from_nanos(*nanos)).collect();
        times.extend(spans.iter().map(|nanos| UNIX_EPOCH - Duration::from_nanos(*nanos)));
        times.sort();
        let keys: Vec<Vec<u8>> = times.iter().map(encode).collect();
        assert!(keys.is_sorted());
        let back: Result<Vec<SystemTime>, _> = keys.iter().map(|key| decode(key)).collect();
        assert_eq!(back.unwrap(), times);
    }

    #[test]
    fn addresses_and_other_forms_come_back() {
        let mut ips: Vec<IpAddr> = ["10.0.0.1", "255.255.255.255", "::", "::1", "ff::"]
            .map(|ip| ip.parse().unwrap())
            .into();
        ips.sort();
        let keys: Vec<Vec<u8>> = ips.iter().map(encode).collect();
        assert!(keys.is_sorted());
        assert_eq!(keys.iter().map(|key| decode(key).unwrap()).collect::<Vec<IpAddr>>(), ips);
        assert_eq!(decode::<NonZero<u8>>(&encode(&5_u8)).unwrap().get(), 5);
        assert!(decode::<NonZero<u8>>(&encode(&0_u8)).is_err());
        assert!(decode::<IpAddr>(&encode(&(false, u128::MAX))).is_err());
        assert_eq!(&*decode::<Box<str>>(&encode("a\0b")).unwrap(), "a\0b");
        assert_eq!(encode(&Cow::Borrowed("a")), encode("a"));
        assert_eq!(decode::<Wrapping<i8>>(&encode(&Wrapping(-1_i8))).unwrap(), Wrapping(-1));
    }
}
