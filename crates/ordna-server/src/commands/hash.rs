//! Commands on hashes.
//!
//! A small hash is one record, so a read or write of a field costs O(bytes of the record). Each
//! field of a larger hash is a separate entry: O(log n). See [`crate::keyspace::collections`].

use std::ops::ControlFlow;

use super::elements::{ElementScan, end_scan, reply_random};
use super::keys::scan_cursor;
use crate::execution::command::{
    CHANGE, Command, CommandOutcome, Context, READ, READ_SLOW, Result, UPDATE, WRITE, ok,
};
use crate::execution::prepared_edits::within;
use crate::keyspace::edits::hash::{HashChange, HashView};
use crate::keyspace::float::LongDouble;
use crate::keyspace::sample::{Sampled, sample, sample_work};
use crate::keyspace::value_kind::ValueKind;
use crate::state::command_spec::{KeyAccess, ONE_KEY};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[
    Command::new("hset", -4, WRITE, ONE_KEY, "Sets the values of fields.", hset),
    Command::new("hmset", -4, WRITE, ONE_KEY, "Sets the values of fields.", hmset),
    Command::new(
        "hsetnx",
        4,
        WRITE,
        ONE_KEY,
        "Sets the value of a field if the field does not exist.",
        hsetnx,
    ),
    Command::new("hget", 3, READ, ONE_KEY, "Returns the value of a field.", hget),
    Command::new("hmget", -3, READ, ONE_KEY, "Returns the values of several fields.", hmget),
    Command::new("hgetall", 2, READ_SLOW, ONE_KEY, "Returns all fields and values.", hgetall),
    Command::new("hkeys", 2, READ_SLOW, ONE_KEY, "Returns all fields.", hkeys),
    Command::new("hvals", 2, READ_SLOW, ONE_KEY, "Returns all values.", hvals),
    Command::new(
        "hdel",
        -3,
        CHANGE,
        ONE_KEY,
        "Removes fields of a hash. Returns the number of removed fields.",
        hdel,
    ),
    Command::new("hexists", 3, READ, ONE_KEY, "Returns whether a field exists.", hexists)
        .access(KeyAccess::METADATA),
    Command::new("hlen", 2, READ, ONE_KEY, "Returns the number of fields.", hlen)
        .access(KeyAccess::METADATA),
    Command::new(
        "hstrlen",
        3,
        READ,
        ONE_KEY,
        "Returns the length of the value of a field.",
        hstrlen,
    )
    .access(KeyAccess::METADATA),
    Command::new(
        "hincrby",
        4,
        UPDATE,
        ONE_KEY,
        "Increments the integer value of a field by a number.",
        hincrby,
    ),
    Command::new(
        "hincrbyfloat",
        4,
        UPDATE,
        ONE_KEY,
        "Increments the value of a field by a floating-point number.",
        hincrbyfloat,
    ),
    Command::new(
        "hscan",
        -3,
        READ_SLOW,
        ONE_KEY,
        "Iterates over the fields of a hash with a cursor.",
        hscan,
    ),
    Command::new("hrandfield", -2, READ_SLOW, ONE_KEY, "Returns random fields.", hrandfield),
];

fn set_all(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    name: &'static str,
) -> Result<usize> {
    if !arguments.len().is_multiple_of(2) {
        return Err(CommandError::wrong_arity(name));
    }
    context.check_work(arguments.len() / 2)?;
    if arguments.len() == 4 {
        let [key, field, value] = [1, 2, 3].map(|at| arguments.get(at));
        if let Some(is_new) = context.put_element(key, ValueKind::Hash, field, value)? {
            return Ok(usize::from(is_new));
        }
    }
    context.modify_much_of_hash(arguments.get(1), |hash| {
        let fields = arguments.iter_from(2).step_by(2);
        let mut new = 0;
        for (field, value) in fields.zip(arguments.iter_from(3).step_by(2)) {
            new += usize::from(hash.set(field, value)?);
        }
        Ok(new)
    })
}

fn hset(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(set_all(context, arguments, "hset")?);
    Ok(CommandOutcome::Done)
}

fn hmset(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    set_all(context, arguments, "hmset")?;
    ok(out)
}

fn hsetnx(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (field, value) = (arguments.get(2), arguments.get(3));
    let is_new = context.modify_hash(arguments.get(1), |hash| {
        let is_new = hash.get_with(field, |_| ()).is_none();
        if is_new {
            hash.set(field, value)?;
        }
        Ok(is_new)
    })?;
    out.integer(i64::from(is_new));
    Ok(CommandOutcome::Done)
}

fn hget(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let field = arguments.get(2);
    let found = context.hash(arguments.get(1), |hash| {
        if hash.get_with(field, |value| out.bulk(value)).is_none() {
            out.null();
        }
    })?;
    match found {
        Some(()) => context.state.hits.add(1),
        None => {
            context.state.misses.add(1);
            out.null();
        }
    }
    Ok(CommandOutcome::Done)
}

fn hmget(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let fields = arguments.iter_from(2);
    let most = context.state.settings.reply_limit();
    /// Size in bytes of a reply that is built before it is known whether all of it fits.
    const UNMEASURED: usize = 1 << 20;
    let (mut fits, mut is_measured, start) = (true, false, out.bytes.len());
    let found = context.hash(arguments.get(1), |hash| {
        out.array(fields.len());
        let length = |field: &[u8]| hash.get_with(field, <[u8]>::len).unwrap_or(0);
        for field in arguments.iter_from(2) {
            if out.bytes.len() - start > UNMEASURED && !is_measured {
                is_measured = true;
                fits = arguments.iter_from(2).map(length).sum::<usize>() <= most;
            }
            if !fits {
                break;
            }
            if hash.get_with(field, |value| out.bulk(value)).is_none() {
                out.null();
            }
        }
        fits = fits && out.bytes.len() - start <= most.saturating_mul(2);
    })?;
    if !fits {
        out.bytes.truncate(start);
    }
    if !fits {
        return Err(format!("ERR the reply would exceed {most} bytes; ask for fewer fields").into());
    }
    if found.is_none() {
        out.array(fields.len());
        fields.for_each(|_| out.null());
    }
    Ok(CommandOutcome::Done)
}

/// Writes the parts of a hash that `write` selects, preceded by their number.
fn list(
    context: &Context<'_>,
    key: &[u8],
    out: &mut Replies,
    length: fn(&mut Replies, usize),
    write: fn(&mut Replies, &[u8], &[u8]),
) -> Result {
    let (most, start) = (context.state.settings.reply_limit(), out.bytes.len());
    let (mut counted, mut written) = (0, 0);
    let found = context.hash(key, |hash| {
        context.check_whole_hash(hash)?;
        counted = hash.len();
        length(out, counted);
        hash.visit(&mut |field, value| {
            written += 1;
            write(out, field, value);
            let fits = out.bytes.len() - start <= most;
            if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        Ok::<_, CommandError>(())
    })?;
    if found.transpose()?.is_none() {
        length(out, 0);
    }
    context.check_elements(key, [counted, written], out, start)?;
    Ok(CommandOutcome::Done)
}

fn hgetall(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    list(context, arguments.get(1), out, Replies::map, |out, field, value| {
        out.bulk(field);
        out.bulk(value);
    })
}

fn hkeys(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    list(context, arguments.get(1), out, Replies::array, |out, field, _| out.bulk(field))
}

fn hvals(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    list(context, arguments.get(1), out, Replies::array, |out, _, value| out.bulk(value))
}

fn hdel(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if arguments.len() == 3 {
        let (key, field) = (arguments.get(1), arguments.get(2));
        if let Some(removed) = context.remove_element(key, ValueKind::Hash, field)? {
            out.count(usize::from(removed));
            return Ok(CommandOutcome::Done);
        }
    }
    let most = context.most_work();
    let removed = context.modify_much_of_hash(arguments.get(1), |hash| {
        if let HashChange::Large(large) = hash {
            within(most, large.head.len().min(arguments.len() - 2))?;
        }
        Ok(arguments.iter_from(2).filter(|field| hash.remove(field)).count())
    })?;
    out.count(removed);
    Ok(CommandOutcome::Done)
}

fn hexists(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let is_there = |hash: &HashView<'_>| hash.get_with(arguments.get(2), |_| ()).is_some();
    let found = context.hash(arguments.get(1), is_there)?;
    out.integer(i64::from(found == Some(true)));
    Ok(CommandOutcome::Done)
}

fn hlen(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(context.hash(arguments.get(1), |hash| hash.len())?.unwrap_or(0));
    Ok(CommandOutcome::Done)
}

fn hstrlen(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let length = |hash: &HashView<'_>| hash.get_with(arguments.get(2), <[u8]>::len).unwrap_or(0);
    out.count(context.hash(arguments.get(1), length)?.unwrap_or(0));
    Ok(CommandOutcome::Done)
}

/// Sets a field to the result of `change` for its value.
fn update(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    mut change: impl FnMut(Option<&[u8]>) -> Result<String>,
) -> Result<String> {
    let field = arguments.get(2);
    context.modify_hash(arguments.get(1), |hash| {
        let former = hash.get_with(field, <[u8]>::to_vec);
        let text = change(former.as_deref())?;
        hash.set_keeping_deadline(field, text.as_bytes())?;
        Ok(text)
    })
}

fn hincrby(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let by = number(arguments.get(3)).ok_or(CommandError::NotAnInteger)?;
    let mut sum = 0;
    update(context, arguments, |value| {
        let current = number(value.unwrap_or(b"0")).ok_or("ERR hash value is not an integer")?;
        sum = current.checked_add(by).ok_or("ERR increment or decrement would overflow")?;
        Ok(sum.to_string())
    })?;
    out.integer(sum);
    Ok(CommandOutcome::Done)
}

fn hincrbyfloat(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let by = LongDouble::parse(arguments.get(3)).ok_or("ERR value is not a valid float")?;
    by.text().ok_or("ERR value is NaN or Infinity")?;
    let sum = update(context, arguments, |value| {
        let current = value.map_or(Some(LongDouble::ZERO), LongDouble::parse);
        let current = current.ok_or("ERR hash value is not a float")?;
        Ok(current.add(by).text().ok_or("ERR increment would produce NaN or Infinity")?)
    })?;
    out.bulk(sum.as_bytes());
    Ok(CommandOutcome::Done)
}

/// As in Redis, a list is returned as a whole; of a table, each call returns about COUNT fields. A
/// field that is present from the first call to the last is returned once.
fn hscan(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let cursor = scan_cursor(arguments.get(2))?;
    let done: Option<Result<()>> = context.hash(arguments.get(1), |hash| {
        let options = ElementScan::read(arguments, Some(b"novalues"))?;
        let (next, mut found) = hash.scan(cursor, options.count);
        options.filter(&mut found, |(field, _)| field)?;
        out.array(2);
        out.bulk(next.to_string().as_bytes());
        out.array(if options.no_values { found.len() } else { found.len() * 2 });
        for (field, value) in found {
            out.bulk(&field);
            if !options.no_values {
                out.bulk(&value);
            }
        }
        Ok(())
    })?;
    end_scan(done, out)
}

fn hrandfield(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let most = context.state.settings.reply_limit();
    let draw = |count| {
        let found = context.hash(arguments.get(1), |hash| {
            context.check_work(sample_work(hash, count))?;
            Ok::<_, CommandError>(sample(hash, count, most))
        })?;
        found.transpose()
    };
    reply_random(arguments, out, most, b"withvalues", draw, |(field, value), values, out| {
        if values && out.resp3 {
            out.array(2);
        }
        out.bulk(field);
        if values {
            out.bulk(value);
        }
    })
}
