//! Commands on the expiry of hash fields, as in Redis 7.4 and 8.
//!
//! An expired field is absent for all commands immediately. A task removes it some milliseconds
//! later, reports the key to watchers and indexes, and publishes `hexpired`.

use super::expiry::{Only, Scale};
use crate::execution::command::{
    CHANGE, Command, CommandOutcome, Context, READ, Result, TAKE, UPDATE, WRITE,
};
use crate::keyspace::collections::head::NEVER;
use crate::keyspace::edits::hash::{HashChange, HashView};
use crate::state::command_spec::ONE_KEY;
use crate::state::events::Classes;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

/// Latest deadline of a field, in milliseconds since 1970. It is that of Redis, in the year 4199;
/// Redis' `RESTORE` refuses later ones.
pub(super) const LATEST: u64 = (1 << 46) - 1;

pub const COMMANDS: &[Command] = &[
    Command::new(
        "hexpire",
        -6,
        WRITE,
        ONE_KEY,
        "Sets the time to live of fields in seconds.",
        hexpire,
    ),
    Command::new(
        "hpexpire",
        -6,
        WRITE,
        ONE_KEY,
        "Sets the time to live of fields in milliseconds.",
        |context, arguments, out| expire(context, arguments, out, Scale::MILLISECONDS, "hpexpire"),
    ),
    Command::new(
        "hexpireat",
        -6,
        WRITE,
        ONE_KEY,
        "Sets the expiration time of fields as a Unix time in seconds.",
        |context, arguments, out| expire(context, arguments, out, Scale::AT_SECOND, "hexpireat"),
    ),
    Command::new(
        "hpexpireat",
        -6,
        WRITE,
        ONE_KEY,
        "Sets the expiration time of fields as a Unix time in milliseconds.",
        |context, arguments, out| {
            expire(context, arguments, out, Scale::AT_MILLISECOND, "hpexpireat")
        },
    ),
    Command::new(
        "hpersist",
        -5,
        CHANGE,
        ONE_KEY,
        "Removes the expiration time of fields.",
        hpersist,
    ),
    Command::new(
        "httl",
        -5,
        READ,
        ONE_KEY,
        "Returns the time to live of fields in seconds.",
        |context, arguments, out| {
            tell(context, arguments, out, |deadline, now| (deadline - now).div_ceil(1000))
        },
    ),
    Command::new(
        "hpttl",
        -5,
        READ,
        ONE_KEY,
        "Returns the time to live of fields in milliseconds.",
        |context, arguments, out| tell(context, arguments, out, |deadline, now| deadline - now),
    ),
    Command::new(
        "hexpiretime",
        -5,
        READ,
        ONE_KEY,
        "Returns the expiration time of fields as a Unix time in seconds.",
        |context, arguments, out| {
            tell(context, arguments, out, |deadline, _| deadline.div_ceil(1000))
        },
    ),
    Command::new(
        "hpexpiretime",
        -5,
        READ,
        ONE_KEY,
        "Returns the expiration time of fields as a Unix time in milliseconds.",
        |context, arguments, out| tell(context, arguments, out, |deadline, _| deadline),
    ),
    Command::new(
        "hgetex",
        -5,
        TAKE,
        ONE_KEY,
        "Returns the values of fields and sets or removes their expiration time.",
        hgetex,
    ),
    Command::new(
        "hsetex",
        -6,
        UPDATE,
        ONE_KEY,
        "Sets the values of fields and their expiration time.",
        hsetex,
    ),
    Command::new(
        "hgetdel",
        -5,
        TAKE,
        ONE_KEY,
        "Returns the values of fields and removes the fields.",
        hgetdel,
    ),
];

/// Returns the number of fields in `FIELDS count field …` at a position. Each field has `parts`
/// arguments.
fn count_fields(arguments: Arguments<'_>, at: usize, parts: usize) -> Result<usize> {
    let is_there = at < arguments.len() && arguments.get(at).eq_ignore_ascii_case(b"fields");
    if !is_there || at + 1 == arguments.len() {
        return Err("ERR Mandatory argument FIELDS is missing or not at the right position".into());
    }
    let count = number(arguments.get(at + 1)).and_then(|count| usize::try_from(count).ok());
    let count = count.filter(|count| *count > 0);
    let count = count.ok_or("ERR Number of fields must be a positive integer")?;
    if count.checked_mul(parts) != Some(arguments.len() - at - 2) {
        return Err("ERR The `numfields` parameter must match the number of arguments".into());
    }
    Ok(count)
}

/// Returns the deadline that an argument describes.
fn deadline(scale: Scale, argument: &[u8], now: u64, command: &str) -> Result<u64> {
    let count = number(argument).ok_or(CommandError::NotAnInteger)?;
    if count < 0 {
        return Err("ERR invalid expire time, must be >= 0".into());
    }
    let deadline = scale.milliseconds(count, now).and_then(|deadline| u64::try_from(deadline).ok());
    let deadline = deadline.filter(|deadline| *deadline <= LATEST);
    deadline.ok_or_else(|| format!("ERR invalid expire time in '{command}' command").into())
}

/// Returns the events for fields that got a deadline, or that were removed because it had passed.
fn events_of(expires: bool, removes: bool) -> Vec<&'static str> {
    let events = [(expires, "hexpire"), (removes, "hdel")];
    events.into_iter().filter(|(happened, _)| *happened).map(|(_, event)| event).collect()
}

/// Replies for each field: -2 if it is absent, 0 if the condition does not hold, 1 if it has the
/// deadline, 2 if it was removed because the deadline has passed.
fn expire(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    scale: Scale,
    command: &str,
) -> Result {
    let now = context.keys.now();
    let deadline = deadline(scale, arguments.get(2), now, command)?;
    let is_condition = |word: &[u8]| {
        [&b"nx"[..], b"xx", b"gt", b"lt"].iter().any(|known| word.eq_ignore_ascii_case(known))
    };
    let has_condition = is_condition(arguments.get(3));
    let only = Only::read(has_condition.then(|| arguments.get(3)).into_iter())?;
    let at = if has_condition { 4 } else { 3 };
    let count = count_fields(arguments, at, 1)?;
    let change = |hash: &mut HashChange<'_>| {
        let fields = arguments.iter_from(at + 2);
        let done = fields.map(|field| match hash.deadline(field) {
            None => -2,
            Some(former) => {
                let former = Some(former).filter(|former| *former != NEVER);
                if !only.allow(former, deadline.cast_signed()) {
                    0
                } else if deadline <= now {
                    hash.remove(field);
                    2
                } else {
                    hash.set_deadline(field, deadline);
                    1
                }
            }
        });
        Ok(done.collect::<Vec<i64>>())
    };
    let done = context.modify_hash_and_tell(arguments.get(1), change, |done| {
        events_of(done.contains(&1), done.contains(&2))
    })?;
    out.array(count);
    done.into_iter().for_each(|done| out.integer(done));
    Ok(CommandOutcome::Done)
}

fn hexpire(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    expire(context, arguments, out, Scale::SECONDS, "hexpire")
}

/// Replies for each field: -2 if it is absent, -1 if it had no deadline, 1 if it had one.
fn hpersist(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let count = count_fields(arguments, 2, 1)?;
    let change = |hash: &mut HashChange<'_>| {
        let done = arguments.iter_from(4).map(|field| match hash.deadline(field) {
            None => -2,
            Some(NEVER) => -1,
            Some(_) => {
                hash.set_deadline(field, NEVER);
                1
            }
        });
        Ok(done.collect::<Vec<i64>>())
    };
    let done = context.modify_hash_and_tell(arguments.get(1), change, |_| vec!["hpersist"])?;
    out.array(count);
    done.into_iter().for_each(|done| out.integer(done));
    Ok(CommandOutcome::Done)
}

/// Replies for each field: -2 if it is absent, -1 if it has no deadline, and otherwise the result
/// of `show` for the deadline and the time.
fn tell(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    show: impl Fn(u64, u64) -> u64,
) -> Result {
    let (count, now) = (count_fields(arguments, 2, 1)?, context.keys.now());
    let read = |hash: &HashView<'_>| {
        out.array(count);
        for field in arguments.iter_from(4) {
            out.integer(match hash.deadline(field) {
                None => -2,
                Some(NEVER) => -1,
                Some(deadline) => i64::try_from(show(deadline.max(now), now)).unwrap_or(i64::MAX),
            });
        }
    };
    if context.hash(arguments.get(1), read)?.is_none() {
        out.array(count);
        (0..count).for_each(|_| out.integer(-2));
    }
    Ok(CommandOutcome::Done)
}

/// The values of fields that a command also changes, within the limit of replies.
struct TakenValues {
    values: Vec<Option<Vec<u8>>>,
    /// Number of bytes that may still be added.
    left: usize,
    most: usize,
}

impl TakenValues {
    fn new(context: &Context<'_>) -> Self {
        let most = context.state.settings.reply_limit();
        Self { values: Vec::new(), left: most, most }
    }

    /// Removes the values of an earlier attempt.
    fn clear(&mut self) {
        self.values.clear();
        self.left = self.most;
    }

    /// Adds the value of a field. Returns whether the field has one.
    ///
    /// # Errors
    /// The reply would be too long.
    fn add(&mut self, hash: &HashChange<'_>, field: &[u8]) -> Result<bool> {
        let len = hash.get_with(field, <[u8]>::len).unwrap_or(0);
        self.left = self.left.checked_sub(len).ok_or_else(|| {
            format!("ERR the reply would exceed {} bytes; ask for fewer fields", self.most)
        })?;
        let value = hash.get_with(field, <[u8]>::to_vec);
        let is_there = value.is_some();
        self.values.push(value);
        Ok(is_there)
    }

    fn reply(self, out: &mut Replies) -> Result {
        out.array(self.values.len());
        self.values.iter().for_each(|value| out.bulk_or_null(value.as_deref()));
        Ok(CommandOutcome::Done)
    }
}

/// `HGETEX key [EX s | PX ms | EXAT s | PXAT ms | PERSIST] FIELDS count field …`
fn hgetex(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let now = context.keys.now();
    let option = arguments.get(2);
    let (deadline, at) = match Scale::of_option(option) {
        Some(scale) => (Some(deadline(scale, arguments.get(3), now, "hgetex")?), 4),
        None if option.eq_ignore_ascii_case(b"persist") => (Some(NEVER), 3),
        None => (None, 2),
    };
    count_fields(arguments, at, 1)?;
    let mut taken = TakenValues::new(context);
    let change = |hash: &mut HashChange<'_>| {
        taken.clear();
        for field in arguments.iter_from(at + 2) {
            let is_there = taken.add(hash, field)?;
            match deadline {
                Some(deadline) if is_there && deadline <= now => {
                    hash.remove(field);
                }
                Some(deadline) if is_there && hash.deadline(field) != Some(deadline) => {
                    hash.set_deadline(field, deadline);
                }
                _ => {}
            }
        }
        Ok(())
    };
    context.modify_hash_and_tell(arguments.get(1), change, |()| match deadline {
        Some(NEVER) => vec!["hpersist"],
        Some(deadline) => events_of(deadline > now, deadline <= now),
        None => Vec::new(),
    })?;
    taken.reply(out)
}

/// `HGETDEL key FIELDS count field …`
fn hgetdel(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    count_fields(arguments, 2, 1)?;
    let mut taken = TakenValues::new(context);
    let change = |hash: &mut HashChange<'_>| {
        taken.clear();
        for field in arguments.iter_from(4) {
            if taken.add(hash, field)? {
                hash.remove(field);
            }
        }
        Ok(())
    };
    context.check_work(arguments.len() - 4)?;
    let event = Some((Classes::HASH, "hdel"));
    context.edit_much_of_hash(event, arguments.get(1), change)?;
    taken.reply(out)
}

/// Maximum number of bytes of an unknown argument that an error shows.
const SHOWN: usize = 128;

/// The effect of HSETEX on the deadlines of the fields.
#[derive(Clone, Copy)]
enum NewDeadline {
    Lift,
    Keep,
    At(u64),
}

/// `HSETEX key [FNX | FXX] [EX s | PX ms | EXAT s | PXAT ms | KEEPTTL] FIELDS count field value …`. Replies 1
/// if all fields were set, 0 if none was.
fn hsetex(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let now = context.keys.now();
    // Whether all fields must be present, or all absent.
    let (mut presence, mut expiry, mut at) = (None, None, 2);
    while at < arguments.len() && !arguments.get(at).eq_ignore_ascii_case(b"fields") {
        let option = arguments.get(at);
        let is = |word: &str| option.eq_ignore_ascii_case(word.as_bytes());
        at += 1;
        let scale = Scale::of_option(option);
        if is("fnx") || is("fxx") {
            if presence.is_some() {
                return Err("ERR Only one of FXX or FNX arguments can be specified".into());
            }
            presence = Some(is("fxx"));
        } else if is("keepttl") || scale.is_some() {
            if expiry.is_some() {
                const ONE: &str =
                    "ERR Only one of EX, PX, EXAT, PXAT or KEEPTTL arguments can be specified";
                return Err(ONE.into());
            }
            expiry = Some(NewDeadline::Keep);
            if let Some(scale) = scale {
                let argument = (at < arguments.len()).then(|| arguments.get(at));
                let argument = argument.ok_or("ERR missing expire time")?;
                expiry = Some(NewDeadline::At(deadline(scale, argument, now, "hsetex")?));
                at += 1;
            }
        } else {
            let shown = String::from_utf8_lossy(&option[..option.len().min(SHOWN)]);
            return Err(format!("ERR unknown argument: {shown}").into());
        }
    }
    count_fields(arguments, at, 2)?;
    let expiry = expiry.unwrap_or(NewDeadline::Lift);
    let change = |hash: &mut HashChange<'_>| {
        let mut fields = arguments.iter_from(at + 2).step_by(2);
        if presence
            .is_some_and(|wanted| fields.any(|field| hash.deadline(field).is_some() != wanted))
        {
            return Ok(false);
        }
        let fields = arguments.iter_from(at + 2).step_by(2);
        for (field, value) in fields.zip(arguments.iter_from(at + 3).step_by(2)) {
            match expiry {
                NewDeadline::Keep => {
                    hash.set_keeping_deadline(field, value)?;
                }
                NewDeadline::At(deadline) if deadline <= now => {
                    hash.remove(field);
                }
                NewDeadline::At(deadline) => {
                    hash.set(field, value)?;
                    hash.set_deadline(field, deadline);
                }
                NewDeadline::Lift => {
                    hash.set(field, value)?;
                }
            }
        }
        Ok(true)
    };
    let done = context.modify_hash_and_tell(arguments.get(1), change, |_| match expiry {
        NewDeadline::At(deadline) if deadline <= now => vec!["hset", "hdel"],
        NewDeadline::At(_) => vec!["hset", "hexpire"],
        NewDeadline::Keep | NewDeadline::Lift => vec!["hset"],
    })?;
    out.integer(i64::from(done));
    Ok(CommandOutcome::Done)
}
