//! Commands on values.

use ordna::Put;
use ordna::{Change, OrderedIndex, value};

use super::expiry::Scale;
use super::transactions::write_all;
use super::{Context, NOT_AN_INTEGER, Outcome, Result, SYNTAX, refused, wrong_arity};
use crate::reply::Replies;
use crate::request::{Arguments, number};

pub fn get(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if context.keys.get_with(arguments.get(1), |value| out.bulk(value)).is_none() {
        out.null();
    }
    Ok(Outcome::Done)
}

pub fn strlen(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let length = context.keys.get_with(arguments.get(1), <[u8]>::len);
    out.count(length.unwrap_or(0));
    Ok(Outcome::Done)
}

pub fn mget(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let keys: Vec<&[u8]> = arguments.iter_from(1).collect();
    let (start, most) = (out.bytes.len(), context.state.config.max_reply);
    out.array(keys.len());
    // A short request can ask for one large value many times over.
    let mut fits = true;
    context.keys.get_many_with(&keys, |_, value| {
        fits &= out.bytes.len() - start + value.map_or(0, <[u8]>::len) <= most;
        if fits {
            out.bulk_or_null(value);
        }
    });
    if !fits {
        out.bytes.truncate(start);
        return Err(format!("ERR the reply would exceed {most} bytes; ask for fewer keys"));
    }
    Ok(Outcome::Done)
}

/// When SET writes.
#[derive(PartialEq)]
enum Condition {
    Always,
    IfAbsent,
    IfPresent,
}

/// What becomes of a key's expiry when it is set.
#[derive(PartialEq)]
enum Expiry {
    None,
    Keep,
    At(u64),
}

/// Writes under a condition; returns whether it did, and the old value if wanted.
fn set_if(
    context: &Context<'_>,
    key: &[u8],
    value: &[u8],
    condition: &Condition,
    expiry: &Expiry,
    want_old: bool,
) -> std::result::Result<(bool, Option<Vec<u8>>), String> {
    let (mut written, mut old) = (false, None);
    let change = context.keys.modify_entry(key, |found| {
        old = found.filter(|_| want_old).map(|found| found.value.to_vec());
        written = match condition {
            Condition::Always => true,
            Condition::IfAbsent => found.is_none(),
            Condition::IfPresent => found.is_some(),
        };
        let expires_at = match expiry {
            Expiry::None => None,
            Expiry::Keep => found.and_then(|found| found.expires_at),
            Expiry::At(deadline) => Some(*deadline),
        };
        if written { Change::Put(Put { value, expires_at }) } else { Change::Keep }
    });
    change.map_err(refused)?;
    if written {
        context.report([key]);
    }
    Ok((written, old))
}

pub fn set(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let mut condition = Condition::Always;
    let mut want_old = false;
    let mut keep = false;
    let mut expires = None;
    let mut options = arguments.iter_from(3);
    while let Some(option) = options.next() {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        // As in Redis, the same option may be said again: the last time counts.
        let fits = |scale: &Scale| !keep && expires.is_none_or(|(said, _)| said == *scale);
        match Scale::of_option(option).filter(fits) {
            Some(scale) => expires = Some((scale, options.next().ok_or(SYNTAX)?)),
            None if is("nx") && condition != Condition::IfPresent => {
                condition = Condition::IfAbsent;
            }
            None if is("xx") && condition != Condition::IfAbsent => {
                condition = Condition::IfPresent;
            }
            None if is("get") => want_old = true,
            None if is("keepttl") && expires.is_none() => keep = true,
            None => return Err(SYNTAX.to_owned()),
        }
    }
    let expiry = match expires {
        Some((scale, count)) => Expiry::At(scale.deadline(count, context.keys.now(), "set")?),
        None if keep => Expiry::Keep,
        None => Expiry::None,
    };
    let (key, value) = (arguments.get(1), arguments.get(2));
    let (written, old) = set_if(context, key, value, &condition, &expiry, want_old)?;
    match (want_old, written) {
        (true, _) => out.bulk_or_null(old.as_deref()),
        (false, true) => out.simple("OK"),
        (false, false) => out.null(),
    }
    Ok(Outcome::Done)
}

fn set_for(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    scale: Scale,
    command: &str,
) -> Result {
    let deadline = scale.deadline(arguments.get(2), context.keys.now(), command)?;
    let (key, value) = (arguments.get(1), arguments.get(3));
    context.keys.insert_until(key, value, deadline).map_err(refused)?;
    context.report([key]);
    out.simple("OK");
    Ok(Outcome::Done)
}

pub fn setex(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    set_for(context, arguments, out, Scale::SECONDS, "setex")
}

pub fn psetex(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    set_for(context, arguments, out, Scale::MILLISECONDS, "psetex")
}

pub fn setnx(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, value) = (arguments.get(1), arguments.get(2));
    let (written, _) = set_if(context, key, value, &Condition::IfAbsent, &Expiry::None, false)?;
    out.integer(i64::from(written));
    Ok(Outcome::Done)
}

pub fn getset(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, value) = (arguments.get(1), arguments.get(2));
    let (_, old) = set_if(context, key, value, &Condition::Always, &Expiry::None, true)?;
    out.bulk_or_null(old.as_deref());
    Ok(Outcome::Done)
}

pub fn getdel(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let old = context.keys.remove(arguments.get(1));
    out.bulk_or_null(old.as_deref());
    Ok(Outcome::Done)
}

type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// The keys and values of MSET and MSETNX.
fn pairs<'a>(arguments: &Arguments<'a>, name: &str) -> std::result::Result<Pairs<'a>, String> {
    if arguments.len().is_multiple_of(2) {
        return Err(wrong_arity(name));
    }
    let keys = arguments.iter_from(1).step_by(2);
    Ok(keys.zip(arguments.iter_from(2).step_by(2)).collect())
}

pub fn mset(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let pairs = pairs(&arguments, "mset")?;
    write_all(context, &pairs)?;
    out.simple("OK");
    Ok(Outcome::Done)
}

pub fn msetnx(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let pairs = pairs(&arguments, "msetnx")?;
    let free = pairs.iter().all(|(key, _)| !context.keys.contains(key));
    if free {
        write_all(context, &pairs)?;
    }
    out.integer(i64::from(free));
    Ok(Outcome::Done)
}

pub fn append(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, tail) = (arguments.get(1), arguments.get(2));
    let mut length = 0;
    context
        .keys
        .modify_entry(key, |found| {
            let longer = [found.map_or(&[][..], |found| found.value), tail].concat();
            length = longer.len();
            // One byte too long is refused by the store, with the key unchanged.
            Change::Put(Put { value: longer, expires_at: found.and_then(|found| found.expires_at) })
        })
        .map_err(|error| match error {
            ordna::Error::ValueTooLong { .. } => {
                "ERR string exceeds maximum allowed size (proto-max-bulk-len)".to_owned()
            }
            other => refused(other),
        })?;
    debug_assert!(length <= value::MAX_LEN);
    context.report([key]);
    out.count(length);
    Ok(Outcome::Done)
}

pub fn incr(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    add(context, arguments.get(1), 1, out)
}

pub fn decr(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    add(context, arguments.get(1), -1, out)
}

pub fn incrby(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let by = number(arguments.get(2)).ok_or(NOT_AN_INTEGER)?;
    add(context, arguments.get(1), by, out)
}

pub fn decrby(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let by = number(arguments.get(2)).ok_or(NOT_AN_INTEGER)?;
    let by = by.checked_neg().ok_or("ERR decrement would overflow")?;
    add(context, arguments.get(1), by, out)
}

fn add(context: &mut Context<'_>, key: &[u8], by: i64, out: &mut Replies) -> Result {
    let mut sum = Ok(0);
    context
        .keys
        .modify_entry(key, |found| {
            let current = found.map_or(&b"0"[..], |found| found.value);
            sum = number(current).ok_or(NOT_AN_INTEGER).and_then(|current| {
                current.checked_add(by).ok_or("ERR increment or decrement would overflow")
            });
            let expires_at = found.and_then(|found| found.expires_at);
            match sum {
                Ok(sum) => Change::Put(Put { value: sum.to_string().into_bytes(), expires_at }),
                Err(_) => Change::Keep,
            }
        })
        .map_err(refused)?;
    let sum = sum?;
    context.report([key]);
    out.integer(sum);
    Ok(Outcome::Done)
}
