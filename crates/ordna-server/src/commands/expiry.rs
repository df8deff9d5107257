//! Commands on the expiry of keys.

use ordna::{Change, Found};

use crate::execution::command::{CHANGE, Command, CommandOutcome, Context, READ, Result};
use crate::keyspace::stored_value;
use crate::state::command_spec::{CommandFlags, ONE_KEY};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

/// Flags of commands that change the deadline of a key.
const DEADLINE: CommandFlags = CHANGE.or(CommandFlags::CHANGES_DEADLINE);

pub const COMMANDS: &[Command] = &[
    Command::new(
        "expire",
        -3,
        DEADLINE,
        ONE_KEY,
        "Sets the time to live of a key in seconds.",
        expire,
    ),
    Command::new(
        "pexpire",
        -3,
        DEADLINE,
        ONE_KEY,
        "Sets the time to live of a key in milliseconds.",
        pexpire,
    ),
    Command::new(
        "expireat",
        -3,
        DEADLINE,
        ONE_KEY,
        "Sets the expiration time of a key as a Unix time in seconds.",
        expireat,
    ),
    Command::new(
        "pexpireat",
        -3,
        DEADLINE,
        ONE_KEY,
        "Sets the expiration time of a key as a Unix time in milliseconds.",
        pexpireat,
    ),
    Command::new("persist", 2, DEADLINE, ONE_KEY, "Removes the expiration time of a key.", persist),
    Command::new("ttl", 2, READ, ONE_KEY, "Returns the time to live of a key in seconds.", ttl),
    Command::new(
        "pttl",
        2,
        READ,
        ONE_KEY,
        "Returns the time to live of a key in milliseconds.",
        pttl,
    ),
    Command::new(
        "expiretime",
        2,
        READ,
        ONE_KEY,
        "Returns the expiration time of a key as a Unix time in seconds.",
        expiretime,
    ),
    Command::new(
        "pexpiretime",
        2,
        READ,
        ONE_KEY,
        "Returns the expiration time of a key as a Unix time in milliseconds.",
        pexpiretime,
    ),
];

/// The unit and reference of a time in a command's arguments.
#[derive(Clone, Copy, PartialEq)]
pub struct Scale {
    /// Number of milliseconds in one unit.
    unit: i64,
    /// Whether the time is relative to 1970 rather than to now.
    absolute: bool,
}

impl Scale {
    pub const SECONDS: Self = Self { unit: 1000, absolute: false };
    pub const MILLISECONDS: Self = Self { unit: 1, absolute: false };
    pub const AT_SECOND: Self = Self { unit: 1000, absolute: true };
    pub const AT_MILLISECOND: Self = Self { unit: 1, absolute: true };

    /// Returns the scale of an option of SET and GETEX.
    pub fn of_option(option: &[u8]) -> Option<Self> {
        let scales = [
            ("ex", Self::SECONDS),
            ("px", Self::MILLISECONDS),
            ("exat", Self::AT_SECOND),
            ("pxat", Self::AT_MILLISECOND),
        ];
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        scales.into_iter().find(|(name, _)| is(name)).map(|(_, scale)| scale)
    }

    /// Converts a number to milliseconds since 1970. Returns `None` if it is too large.
    pub(super) fn milliseconds(self, number: i64, now: u64) -> Option<i64> {
        let time = number.checked_mul(self.unit)?;
        if self.absolute { Some(time) } else { time.checked_add(i64::try_from(now).ok()?) }
    }

    /// Returns the deadline that an argument of SET, GETEX or SETEX describes.
    pub fn deadline(self, argument: &[u8], now: u64, command: &str) -> Result<u64> {
        let count = number(argument).ok_or(CommandError::NotAnInteger)?;
        let deadline = Some(count).filter(|count| *count > 0);
        let deadline = deadline.and_then(|count| self.milliseconds(count, now));
        deadline.and_then(|deadline| u64::try_from(deadline).ok()).ok_or_else(|| invalid(command))
    }
}

fn invalid(command: &str) -> CommandError {
    format!("ERR invalid expire time in '{command}' command").into()
}

/// Conditions on the former deadline that EXPIRE and HEXPIRE may have.
#[derive(Default)]
pub(super) struct Only {
    absent: bool,
    present: bool,
    later: bool,
    earlier: bool,
}

impl Only {
    pub(super) fn read<'a>(options: impl Iterator<Item = &'a [u8]>) -> Result<Self> {
        let mut only = Self::default();
        for option in options {
            // As in Redis, a NUL ends the option.
            let option = option.split(|byte| *byte == 0).next().unwrap_or_default();
            match option.to_ascii_lowercase().as_slice() {
                b"nx" => only.absent = true,
                b"xx" => only.present = true,
                b"gt" => only.later = true,
                b"lt" => only.earlier = true,
                _ => {
                    let shown = String::from_utf8_lossy(option);
                    return Err(format!("ERR Unsupported option {shown}").into());
                }
            }
        }
        if only.absent && (only.present || only.later || only.earlier) {
            return Err(
                "ERR NX and XX, GT or LT options at the same time are not compatible".into()
            );
        }
        if only.later && only.earlier {
            return Err("ERR GT and LT options at the same time are not compatible".into());
        }
        Ok(only)
    }

    /// Returns whether the conditions allow the new deadline. An absent deadline counts as later than
    /// every deadline.
    pub(super) fn allow(&self, old: Option<u64>, new: i64) -> bool {
        let new = u64::try_from(new).unwrap_or(0);
        !(self.absent && old.is_some()
            || self.present && old.is_none()
            || self.later && old.is_none_or(|old| new <= old)
            || self.earlier && old.is_some_and(|old| new >= old))
    }
}

/// Calls [`Context::modify_expiry`]. If a snapshot needs a copy of the former value and the memory
/// limit has no room for it, ends the snapshots of `SCAN` and tries again.
fn change(
    context: &Context<'_>,
    key: &[u8],
    mut decide: impl FnMut(Option<Found<'_, [u8]>>) -> Change<Option<u64>>,
) -> Result<()> {
    let done = context.modify_expiry(key, &mut decide);
    if !matches!(done, Err(CommandError::OutOfMemory)) {
        return done;
    }
    context.state.cursors.end_leases();
    context.modify_expiry(key, decide)
}

fn set(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    scale: Scale,
    command: &str,
) -> Result {
    let only = Only::read(arguments.iter_from(3))?;
    let now = context.keys.now();
    let count = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    let deadline = scale.milliseconds(count, now).ok_or_else(|| invalid(command))?;
    let mut done = false;
    change(context, arguments.get(1), |found| {
        done = found.is_some_and(|found| only.allow(found.expires_at, deadline));
        match u64::try_from(deadline) {
            _ if !done => Change::Keep,
            Ok(deadline) if deadline > now => Change::Put(Some(deadline)),
            // The deadline has already passed.
            _ => Change::Remove,
        }
    })?;
    out.integer(i64::from(done));
    Ok(CommandOutcome::Done)
}

fn expire(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    set(context, arguments, out, Scale::SECONDS, "expire")
}

fn pexpire(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    set(context, arguments, out, Scale::MILLISECONDS, "pexpire")
}

fn expireat(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    set(context, arguments, out, Scale::AT_SECOND, "expireat")
}

fn pexpireat(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    set(context, arguments, out, Scale::AT_MILLISECOND, "pexpireat")
}

fn persist(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let mut done = false;
    change(context, arguments.get(1), |found| {
        done = found.is_some_and(|found| found.expires_at.is_some());
        if done { Change::Put(None) } else { Change::Keep }
    })?;
    out.integer(i64::from(done));
    Ok(CommandOutcome::Done)
}

/// Replies -2 for an absent key, -1 for a key without a deadline, and otherwise the result of
/// `show` for the deadline and the time.
fn tell(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    show: impl FnOnce(u64, u64) -> u64,
) -> Result {
    let now = context.keys.now();
    out.integer(match context.keys.expiry(arguments.get(1)) {
        None => -2,
        Some(None) => -1,
        Some(Some(deadline)) => i64::try_from(show(deadline, now)).unwrap_or(i64::MAX),
    });
    Ok(CommandOutcome::Done)
}

fn ttl(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    tell(context, arguments, out, |deadline, now| (deadline.saturating_sub(now) + 500) / 1000)
}

fn pttl(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    tell(context, arguments, out, u64::saturating_sub)
}

fn expiretime(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    tell(context, arguments, out, |deadline, _| (deadline + 500) / 1000)
}

fn pexpiretime(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    tell(context, arguments, out, |deadline, _| deadline)
}

/// The effect of GETEX on the expiry.
#[derive(Clone, Copy)]
enum GetexExpiry<'a> {
    Keep,
    Lift,
    At(Scale, &'a [u8]),
}

impl<'a> GetexExpiry<'a> {
    fn read(mut options: impl Iterator<Item = &'a [u8]>) -> Result<Self> {
        let mut expiry = Self::Keep;
        while let Some(option) = options.next() {
            expiry = match (Scale::of_option(option), expiry) {
                (Some(scale), Self::Keep) => {
                    Self::At(scale, options.next().ok_or(CommandError::Syntax)?)
                }
                // If the option is repeated, the last time counts.
                (Some(scale), Self::At(said, _)) if said == scale => {
                    Self::At(scale, options.next().ok_or(CommandError::Syntax)?)
                }
                (None, Self::Keep | Self::Lift) if option.eq_ignore_ascii_case(b"persist") => {
                    Self::Lift
                }
                _ => return Err(CommandError::Syntax),
            };
        }
        Ok(expiry)
    }
}

pub fn getex(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let now = context.keys.now();
    let expiry = GetexExpiry::read(arguments.iter_from(2))?;
    if let GetexExpiry::Keep = expiry {
        // A read, which is possible even while the log refuses writes.
        out.bulk_or_null(context.value(arguments.get(1))?.as_deref());
        return Ok(CommandOutcome::Done);
    }
    // As in Redis, an invalid time is an error only if the key exists.
    let deadline = match expiry {
        GetexExpiry::At(scale, argument) => scale.deadline(argument, now, "getex").map(Some),
        GetexExpiry::Keep | GetexExpiry::Lift => Ok(None),
    };
    let (mut value, mut is_string) = (None, true);
    change(context, arguments.get(1), |found| {
        let string = found.map(|found| stored_value::string(found.value));
        is_string = string != Some(None);
        if !is_string {
            return Change::Keep;
        }
        value = string.flatten().map(<[u8]>::to_vec);
        match (expiry, &deadline) {
            (GetexExpiry::Keep, _) | (_, Err(_)) => Change::Keep,
            (GetexExpiry::Lift, _) if found.is_none_or(|found| found.expires_at.is_none()) => {
                Change::Keep
            }
            (_, Ok(Some(deadline))) if *deadline <= now => Change::Remove,
            (_, Ok(deadline)) => Change::Put(*deadline),
        }
    })?;
    if !is_string {
        return Err(CommandError::WrongType);
    }
    if value.is_some() {
        deadline?;
    }
    out.bulk_or_null(value.as_deref());
    Ok(CommandOutcome::Done)
}
