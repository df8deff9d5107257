//! Commands that read or write whole values.

use std::borrow::Borrow;

use ordna::Change;
use ordna::{Put, Write};

use super::expiry::{Scale, getex};
use crate::execution::command::{
    Command, CommandOutcome, Context, READ, Result, TAKE, UPDATE, WRITE, WRITE_SLOW, ok,
};
use crate::keyspace::multi_get::{MultiGet, too_large};
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::stored_value::{self, Packed};
use crate::state::command_spec::{ALL_KEYS, CommandFlags, KeyAccess, ONE_KEY, PAIRS};
use crate::state::events::Wrote;
use crate::wire::decimal::Decimal;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[
    Command::new("get", 2, READ, ONE_KEY, "Returns the value of a key.", get),
    Command::new("strlen", 2, READ, ONE_KEY, "Returns the length of the value of a key.", strlen)
        .access(KeyAccess::METADATA),
    Command::new("mget", -2, READ, ALL_KEYS, "Returns the values of several keys.", mget)
        .exclusive_if_several_keys(),
    Command::new(
        "set",
        -3,
        WRITE_SLOW,
        ONE_KEY,
        "Sets the value of a key, optionally with conditions and an expiration time.",
        set,
    )
    .access_of(set_access),
    Command::new(
        "setex",
        4,
        WRITE_SLOW,
        ONE_KEY,
        "Sets the value of a key and its time to live in seconds.",
        setex,
    ),
    Command::new(
        "psetex",
        4,
        WRITE_SLOW,
        ONE_KEY,
        "Sets the value of a key and its time to live in milliseconds.",
        psetex,
    ),
    Command::new(
        "setnx",
        3,
        WRITE,
        ONE_KEY,
        "Sets the value of a key if the key does not exist.",
        setnx,
    ),
    Command::new(
        "getset",
        3,
        UPDATE,
        ONE_KEY,
        "Sets the value of a key and returns its old value.",
        getset,
    ),
    Command::new("getdel", 2, TAKE, ONE_KEY, "Returns the value of a key and removes it.", getdel),
    Command::new(
        "getex",
        -2,
        TAKE,
        ONE_KEY,
        "Returns the value of a key and sets or removes its expiration time.",
        getex,
    )
    .with(CommandFlags::READS_WITHOUT_OPTIONS.or(CommandFlags::CHANGES_DEADLINE)),
    Command::new(
        "delifeq",
        3,
        TAKE,
        ONE_KEY,
        "Removes a key if it has the given value. Returns the number of removed keys.",
        delifeq,
    ),
    Command::new("mset", -3, WRITE_SLOW, PAIRS, "Sets several keys as one step.", mset).exclusive(),
    Command::new(
        "msetnx",
        -3,
        WRITE_SLOW,
        PAIRS,
        "Sets several keys as one step, if none of them exists.",
        msetnx,
    )
    .exclusive(),
    Command::new("incr", 2, UPDATE, ONE_KEY, "Increments an integer value by one.", |c, a, out| {
        add(c, a.get(1), 1, out)
    }),
    Command::new("decr", 2, UPDATE, ONE_KEY, "Decrements an integer value by one.", |c, a, out| {
        add(c, a.get(1), -1, out)
    }),
    Command::new("incrby", 3, UPDATE, ONE_KEY, "Increments an integer value by a number.", incrby),
    Command::new("decrby", 3, UPDATE, ONE_KEY, "Decrements an integer value by a number.", decrby),
    Command::new(
        "incrbyfloat",
        3,
        UPDATE,
        ONE_KEY,
        "Increments a value by a floating-point number.",
        incrbyfloat,
    ),
];

/// Number of keys that MGET reads under the exclusive lock; for more keys it takes a snapshot.
const KEYS_WITHOUT_SNAPSHOT: usize = 64;
/// Number of bytes that MGET copies under the exclusive lock before it takes a snapshot instead.
const BYTES_WITHOUT_SNAPSHOT: usize = 1 << 20;

/// Returns the access that `SET` needs: with GET and IFEQ its reply depends on the old value.
fn set_access(arguments: Arguments<'_>) -> KeyAccess {
    let reads =
        |option: &[u8]| option.eq_ignore_ascii_case(b"get") || option.eq_ignore_ascii_case(b"ifeq");
    KeyAccess { read: arguments.iter_from(3).any(reads), write: true }
}

fn get(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if context.string(arguments.get(1), |value| out.bulk(value))?.is_some() {
        context.state.hits.add(1);
    } else {
        context.state.misses.add(1);
        out.null();
    }
    Ok(CommandOutcome::Done)
}

fn strlen(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let length = context.string(arguments.get(1), <[u8]>::len)?;
    out.count(length.unwrap_or(0));
    Ok(CommandOutcome::Done)
}

fn mget(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let keys: Vec<&[u8]> = arguments.iter_from(1).collect();
    let start = out.bytes.len();
    let inside = context.session.executing;
    if keys.len() <= KEYS_WITHOUT_SNAPSHOT || inside {
        // A short request can ask for one large value many times over.
        let most =
            if inside { context.state.settings.reply_limit() } else { BYTES_WITHOUT_SNAPSHOT };
        let mut fits = true;
        out.array(keys.len());
        context.keys.get_many_with(&keys, |_, stored| {
            let value = stored.and_then(stored_value::string);
            fits &= out.bytes.len() - start + value.map_or(0, <[u8]>::len) <= most;
            if fits {
                out.bulk_or_null(value);
            }
        });
        if fits {
            return Ok(CommandOutcome::Done);
        }
        out.bytes.truncate(start);
        if inside {
            return Err(too_large(most).into());
        }
    }
    let snapshot = KeyspaceSnapshot::of(&context.keys);
    Ok(CommandOutcome::Lookup(Box::new(MultiGet::new(snapshot, arguments.to_owned_request()))))
}

/// The condition under which SET sets a key.
enum Condition<'a> {
    Always,
    IfAbsent,
    IfPresent,
    IfEqual(&'a [u8]),
}

/// What SET does with the expiry.
enum SetExpiry {
    None,
    Keep,
    At(u64),
}

/// Sets a key if the condition holds. Returns whether it did, and the old value if `want_old` is
/// set.
fn set_if(
    context: &Context<'_>,
    key: &[u8],
    value: &[u8],
    condition: &Condition<'_>,
    expiry: &SetExpiry,
    want_old: bool,
) -> Result<(bool, Option<Vec<u8>>)> {
    let (mut written, mut old, mut is_refused) = (false, None, false);
    let packed = Packed::new(value);
    let value: &[u8] = packed.borrow();
    let keeps = matches!(expiry, SetExpiry::Keep);
    context.modify_stored_with(key, keeps, |found| {
        // The old value must be a string only if it is read.
        let reads = want_old || matches!(condition, Condition::IfEqual(_));
        let string = found.filter(|_| reads).map(|found| stored_value::string(found.value));
        is_refused = string == Some(None);
        if is_refused {
            return Change::Keep;
        }
        let string = string.flatten();
        old = string.filter(|_| want_old).map(<[u8]>::to_vec);
        written = match condition {
            Condition::Always => true,
            Condition::IfAbsent => found.is_none(),
            Condition::IfPresent => found.is_some(),
            Condition::IfEqual(expected) => string == Some(*expected),
        };
        let expires_at = match expiry {
            SetExpiry::None => None,
            SetExpiry::Keep => found.and_then(|found| found.expires_at),
            SetExpiry::At(deadline) => Some(*deadline),
        };
        if written { Change::Put(Put { value, expires_at }) } else { Change::Keep }
    })?;
    if is_refused {
        return Err(CommandError::WrongType);
    }
    Ok((written, old))
}

fn set(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let mut condition = Condition::Always;
    let mut want_old = false;
    let mut keep = false;
    let mut expires = None;
    let mut options = arguments.iter_from(3);
    while let Some(option) = options.next() {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        // As in Redis, the same option may be repeated, and the last one counts.
        let fits = |scale: &Scale| !keep && expires.is_none_or(|(said, _)| said == *scale);
        match (Scale::of_option(option).filter(fits), &condition) {
            (Some(scale), _) => {
                expires = Some((scale, options.next().ok_or(CommandError::Syntax)?))
            }
            (None, Condition::Always | Condition::IfAbsent) if is("nx") => {
                condition = Condition::IfAbsent;
            }
            (None, Condition::Always | Condition::IfPresent) if is("xx") => {
                condition = Condition::IfPresent;
            }
            (None, Condition::Always) if is("ifeq") => {
                condition = Condition::IfEqual(options.next().ok_or(CommandError::Syntax)?);
            }
            (None, _) if is("get") => want_old = true,
            (None, _) if is("keepttl") && expires.is_none() => keep = true,
            (None, _) => return Err(CommandError::Syntax),
        }
    }
    let expiry = match expires {
        Some((scale, count)) => SetExpiry::At(scale.deadline(count, context.keys.now(), "set")?),
        None if keep => SetExpiry::Keep,
        None => SetExpiry::None,
    };
    let (key, value) = (arguments.get(1), arguments.get(2));
    let (written, old) = set_if(context, key, value, &condition, &expiry, want_old)?;
    match (want_old, written) {
        (true, _) => out.bulk_or_null(old.as_deref()),
        (false, true) => out.simple("OK"),
        (false, false) => out.null(),
    }
    Ok(CommandOutcome::Done)
}

fn set_for(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    scale: Scale,
    command: &str,
) -> Result {
    let deadline = scale.deadline(arguments.get(2), context.keys.now(), command)?;
    let (key, value) = (arguments.get(1), arguments.get(3));
    set_if(context, key, value, &Condition::Always, &SetExpiry::At(deadline), false)?;
    ok(out)
}

fn setex(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    set_for(context, arguments, out, Scale::SECONDS, "setex")
}

fn psetex(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    set_for(context, arguments, out, Scale::MILLISECONDS, "psetex")
}

fn setnx(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, value) = (arguments.get(1), arguments.get(2));
    let (written, _) = set_if(context, key, value, &Condition::IfAbsent, &SetExpiry::None, false)?;
    out.integer(i64::from(written));
    Ok(CommandOutcome::Done)
}

fn getset(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, value) = (arguments.get(1), arguments.get(2));
    let (_, old) = set_if(context, key, value, &Condition::Always, &SetExpiry::None, true)?;
    out.bulk_or_null(old.as_deref());
    Ok(CommandOutcome::Done)
}

fn getdel(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let mut old = None;
    context.modify::<&[u8]>(arguments.get(1), |found| {
        old = found.map(|found| found.value.to_vec());
        Change::Remove
    })?;
    out.bulk_or_null(old.as_deref());
    Ok(CommandOutcome::Done)
}

fn delifeq(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let removed = delete_if_equal(context, arguments.get(1), arguments.get(2))?;
    out.integer(i64::from(removed));
    Ok(CommandOutcome::Done)
}

/// Removes a key if it has this value, and returns whether it did.
pub fn delete_if_equal(context: &Context<'_>, key: &[u8], expected: &[u8]) -> Result<bool> {
    let mut equal = false;
    context.modify::<&[u8]>(key, |found| {
        equal = found.is_some_and(|found| found.value == expected);
        if equal { Change::Remove } else { Change::Keep }
    })?;
    Ok(equal)
}

type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// Returns the keys and values of MSET or MSETNX.
fn pairs<'a>(arguments: &Arguments<'a>, name: &'static str) -> Result<Pairs<'a>> {
    if arguments.len().is_multiple_of(2) {
        return Err(CommandError::wrong_arity(name));
    }
    let keys = arguments.iter_from(1).step_by(2);
    Ok(keys.zip(arguments.iter_from(2).step_by(2)).collect())
}

/// Writes all pairs so that no other client can see only a part of them.
fn write_all(context: &Context<'_>, pairs: &[(&[u8], &[u8])]) -> Result<()> {
    let packed: Vec<_> = pairs.iter().map(|(key, value)| (*key, Packed::new(*value))).collect();
    let writes: Vec<_> =
        packed.iter().map(|(key, value)| Write::put(*key, value.borrow())).collect();
    let keys = pairs.iter().map(|(key, _)| *key);
    context.settle(keys.clone(), context.keys.write_batch(&writes))?;
    context.report(keys);
    // Not looked up: whether each key is new. The notification treats all as existing keys.
    let wrote = Wrote::Value { is_new: false, new_deadline: false };
    pairs.iter().for_each(|(key, _)| context.notify(key, wrote));
    Ok(())
}

fn mset(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    write_all(context, &pairs(&arguments, "mset")?)?;
    ok(out)
}

fn msetnx(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let pairs = pairs(&arguments, "msetnx")?;
    let free = pairs.iter().all(|(key, _)| !context.keys.contains(key));
    if free {
        write_all(context, &pairs)?;
    }
    out.integer(i64::from(free));
    Ok(CommandOutcome::Done)
}

fn incrby(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let by = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    add(context, arguments.get(1), by, out)
}

fn decrby(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let by = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    let by = by.checked_neg().ok_or("ERR decrement would overflow")?;
    add(context, arguments.get(1), by, out)
}

fn add(context: &mut Context<'_>, key: &[u8], by: i64, out: &mut Replies) -> Result {
    let mut sum = Ok(0);
    context.modify(key, |found| {
        let current = found.map_or(&b"0"[..], |found| found.value);
        sum = number(current).ok_or(CommandError::NotAnInteger).and_then(|current| {
            let sum = current.checked_add(by);
            sum.ok_or_else(|| "ERR increment or decrement would overflow".into())
        });
        let expires_at = found.and_then(|found| found.expires_at);
        match sum {
            Ok(sum) => Change::Put(Put { value: Decimal::new(sum), expires_at }),
            Err(_) => Change::Keep,
        }
    })?;
    out.integer(sum?);
    Ok(CommandOutcome::Done)
}

fn incrbyfloat(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    use crate::keyspace::float::LongDouble;
    const NO_FLOAT: &str = "ERR value is not a valid float";
    let by = LongDouble::parse(arguments.get(2));
    let mut sum = Err("");
    context.modify(arguments.get(1), |found| {
        let current = found.map_or(Some(LongDouble::ZERO), |found| LongDouble::parse(found.value));
        sum = current.zip(by).ok_or(NO_FLOAT).and_then(|(current, by)| {
            let sum = current.add(by);
            sum.text().ok_or("ERR increment would produce NaN or Infinity")
        });
        let expires_at = found.and_then(|found| found.expires_at);
        match &sum {
            Ok(text) => Change::Put(Put { value: text.clone().into_bytes(), expires_at }),
            Err(_) => Change::Keep,
        }
    })?;
    out.bulk(sum?.as_bytes());
    Ok(CommandOutcome::Done)
}
