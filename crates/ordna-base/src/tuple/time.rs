//! The encodings of the types of the crate `time`, in chronological order. An [`OffsetDateTime`] is
//! decoded in UTC.

use time::{Date, Duration, OffsetDateTime, PrimitiveDateTime, Time, UtcOffset};

use super::encode::{Decode, Encode, Like};
use super::read::{DecodeError, Reader};
use super::value::Value;
use super::value::{Moment, as_value};

/// The Julian day of 1970-01-01.
const EPOCH: i32 = 2_440_588;

fn day(date: Date) -> i32 {
    date.to_julian_day() - EPOCH
}

fn nanos(time: Time) -> u64 {
    let (hour, minute, second, nanos) = time.as_hms_nano();
    let seconds = (u64::from(hour) * 60 + u64::from(minute)) * 60 + u64::from(second);
    seconds * 1_000_000_000 + u64::from(nanos)
}

fn date(day: i32) -> Option<Date> {
    Date::from_julian_day(day.checked_add(EPOCH)?).ok()
}

fn time(nanos: u64) -> Option<Time> {
    let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    let hour = u8::try_from(seconds / 3600).ok()?;
    let minute = u8::try_from(seconds / 60 % 60).ok()?;
    let second = u8::try_from(seconds % 60).ok()?;
    Time::from_hms_nano(hour, minute, second, u32::try_from(nanos).ok()?).ok()
}

fn local(moment: Moment) -> Option<PrimitiveDateTime> {
    Some(PrimitiveDateTime::new(date(moment.day)?, time(moment.nanos)?))
}

impl From<Date> for Value {
    fn from(date: Date) -> Self {
        Self::Date(day(date))
    }
}

impl From<Time> for Value {
    fn from(time: Time) -> Self {
        Self::Time(nanos(time))
    }
}

impl From<PrimitiveDateTime> for Value {
    fn from(moment: PrimitiveDateTime) -> Self {
        Self::Local(Moment { day: day(moment.date()), nanos: nanos(moment.time()) })
    }
}

/// A moment whose day in UTC is outside of the years of `time` is ordered correctly, but cannot be
/// decoded.
impl From<OffsetDateTime> for Value {
    fn from(moment: OffsetDateTime) -> Self {
        let at = moment.unix_timestamp_nanos();
        let day_nanos = 86_400_000_000_000_i128;
        // The years up to 999,999 have fewer than 2^31 days.
        let day = at.div_euclid(day_nanos) as i32;
        Self::Utc(Moment { day, nanos: at.rem_euclid(day_nanos) as u64 })
    }
}

impl From<Duration> for Value {
    fn from(span: Duration) -> Self {
        let nanos = span.whole_nanoseconds();
        Self::Duration(nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000) as u32)
    }
}

as_value! {
    Date, Date(day => date(day)), "a date";
    Time, Time(nanos => time(nanos)), "a time of day";
    PrimitiveDateTime, Local(moment => local(moment)), "a date and time";
    OffsetDateTime,
        Utc(moment => local(moment).map(|local| local.assume_offset(UtcOffset::UTC))),
        "a date and time in UTC";
}

impl Encode for Duration {
    fn encode(&self, out: &mut Vec<u8>) {
        Value::from(*self).encode(out);
    }
}

impl Decode for Duration {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let unread = reader.clone();
        let (seconds, nanos) = super::types::take_duration(reader)?;
        let seconds = i64::try_from(seconds).map_err(|_| unread.error("a span of i64 seconds"))?;
        let span = Self::seconds(seconds).checked_add(Self::nanoseconds(i64::from(nanos)));
        span.ok_or_else(|| unread.error("a span of i64 seconds"))
    }
}
impl Like<Self> for Duration {}
