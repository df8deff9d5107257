//! Commands on sets. See [`crate::keyspace::set`].

use std::collections::HashMap;
use std::ops::ControlFlow;

use super::elements::{ElementScan, Operation, end_scan, limit_option, reply_random};
use super::keys::scan_cursor;
use super::sorted_set::positive_count;
use super::sorted_set_algebra::count_common;
use crate::execution::command::{
    CHANGE, Command, CommandOutcome, Context, READ, READ_SLOW, Result, TAKE, WRITE, WRITE_SLOW,
};
use crate::execution::large_reads::{MOST_STORED, too_large};
use crate::execution::prepared_edits::{WALKED, within_large};
use crate::keyspace::collections::Body;
use crate::keyspace::members::Members;
use crate::keyspace::sample::{Sampled, sample, sample_work};
use crate::keyspace::set::{self, SetView};
use crate::keyspace::value_kind::ValueKind;
use crate::state::command_spec::{
    ALL_KEYS, CommandFlags, Growth, KeyAccess, NO_KEY, ONE_KEY, TWO_KEYS,
};
use crate::state::events::Classes;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[
    Command::new(
        "sadd",
        -3,
        WRITE,
        ONE_KEY,
        "Adds members to a set. Returns the number of new members.",
        sadd,
    ),
    Command::new(
        "srem",
        -3,
        CHANGE,
        ONE_KEY,
        "Removes members of a set. Returns the number of removed members.",
        srem,
    ),
    Command::new("scard", 2, READ, ONE_KEY, "Returns the number of members.", scard)
        .access(KeyAccess::METADATA),
    Command::new(
        "sismember",
        3,
        READ,
        ONE_KEY,
        "Returns whether a value is a member of a set.",
        sismember,
    )
    .access(KeyAccess::METADATA),
    Command::new(
        "smismember",
        -3,
        READ,
        ONE_KEY,
        "Returns for each value whether it is a member of a set.",
        smismember,
    ),
    Command::new("smembers", 2, READ_SLOW, ONE_KEY, "Returns all members.", smembers),
    Command::new("spop", -2, TAKE, ONE_KEY, "Removes and returns random members.", spop),
    Command::new("srandmember", -2, READ_SLOW, ONE_KEY, "Returns random members.", srandmember),
    Command::new("smove", 4, CHANGE, TWO_KEYS, "Moves a member from one set to another.", smove)
        .accesses(KeyAccess::READ_WRITE, KeyAccess::WRITE)
        .exclusive(),
    Command::new(
        "sscan",
        -3,
        READ_SLOW,
        ONE_KEY,
        "Iterates over the members of a set with a cursor.",
        sscan,
    ),
    Command::new(
        "sinter",
        -2,
        READ_SLOW,
        ALL_KEYS,
        "Returns the members that all sets have in common.",
        |c, a, o| reply(c, a, o, Operation::Intersection),
    )
    .exclusive_if_several_keys(),
    Command::new(
        "sunion",
        -2,
        READ_SLOW,
        ALL_KEYS,
        "Returns the members of at least one of the sets.",
        |c, a, o| reply(c, a, o, Operation::Union),
    )
    .exclusive_if_several_keys(),
    Command::new(
        "sdiff",
        -2,
        READ_SLOW,
        ALL_KEYS,
        "Returns the members of the first set that are in none of the other sets.",
        |c, a, o| reply(c, a, o, Operation::Difference),
    )
    .exclusive_if_several_keys(),
    Command::new(
        "sintercard",
        -3,
        READ_SLOW.or(CommandFlags::MOVABLEKEYS),
        NO_KEY,
        "Counts the members that all sets have in common.",
        sintercard,
    )
    .key_count_at(1)
    .exclusive(),
    store("sinterstore", "Stores the intersection of sets.", |c, a, o| {
        store_result(c, a, o, Operation::Intersection)
    }),
    store("sunionstore", "Stores the union of sets.", |c, a, o| {
        store_result(c, a, o, Operation::Union)
    }),
    store("sdiffstore", "Stores the difference of sets.", |c, a, o| {
        store_result(c, a, o, Operation::Difference)
    }),
];

const fn store(
    name: &'static str,
    summary: &'static str,
    execute: crate::execution::command::Execute,
) -> Command {
    Command::new(name, -3, WRITE_SLOW, ALL_KEYS, summary, execute)
        .accesses(KeyAccess::WRITE, KeyAccess::READ)
        .grows(Growth::Copies)
        .exclusive()
}

impl Context<'_> {
    /// Calls `read` with the set of a key. Returns `None` if the key is absent.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn set<R>(&self, key: &[u8], read: impl FnOnce(SetView<'_, '_>) -> R) -> Result<Option<R>> {
        self.collection(key, ValueKind::Set, |body| read(SetView(body)))
    }
}

fn sadd(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    context.check_work(arguments.len() - 2)?;
    if arguments.len() == 3 {
        let (key, member) = (arguments.get(1), arguments.get(2));
        if let Some(added) = context.put_element(key, ValueKind::Set, member, &[])? {
            out.count(usize::from(added));
            return Ok(CommandOutcome::Done);
        }
    }
    let added = context.modify_much(arguments.get(1), ValueKind::Set, |body| {
        let mut added = 0;
        for member in arguments.iter_from(2) {
            added += usize::from(set::add(body, member)?);
        }
        Ok(added)
    })?;
    out.count(added);
    Ok(CommandOutcome::Done)
}

fn srem(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if arguments.len() == 3 {
        let (key, member) = (arguments.get(1), arguments.get(2));
        if let Some(removed) = context.remove_element(key, ValueKind::Set, member)? {
            out.count(usize::from(removed));
            return Ok(CommandOutcome::Done);
        }
    }
    let most = context.most_work();
    let removed = context.modify_much(arguments.get(1), ValueKind::Set, |body| {
        within_large(most, body, arguments.len() - 2)?;
        Ok(arguments.iter_from(2).filter(|member| set::remove(body, member)).count())
    })?;
    out.count(removed);
    Ok(CommandOutcome::Done)
}

fn scard(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(context.set(arguments.get(1), |set| set.len())?.unwrap_or(0));
    Ok(CommandOutcome::Done)
}

fn sismember(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let found = context.set(arguments.get(1), |set| set.contains(arguments.get(2)))?;
    out.integer(i64::from(found == Some(true)));
    Ok(CommandOutcome::Done)
}

fn smismember(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let members = || arguments.iter_from(2);
    let found = context.set(arguments.get(1), |set| {
        members().map(|member| set.contains(member)).collect::<Vec<_>>()
    })?;
    let found = found.unwrap_or_else(|| vec![false; members().len()]);
    out.array(found.len());
    found.into_iter().for_each(|found| out.integer(i64::from(found)));
    Ok(CommandOutcome::Done)
}

fn smembers(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (most, start) = (context.state.settings.reply_limit(), out.bytes.len());
    let (mut counted, mut written) = (0, 0);
    let found = context.set(arguments.get(1), |set| {
        context.check_whole(set.0)?;
        counted = set.len();
        out.set(counted);
        set.visit(|member| {
            written += 1;
            out.bulk(member);
            let fits = out.bytes.len() - start <= most;
            if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        Ok::<_, CommandError>(())
    })?;
    if found.transpose()?.is_none() {
        out.set(0);
    }
    context.check_elements(arguments.get(1), [counted, written], out, start)?;
    Ok(CommandOutcome::Done)
}

fn spop(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if arguments.len() > 3 {
        return Err(CommandError::Syntax);
    }
    let has_count = arguments.len() == 3;
    let count = if has_count { positive_count(arguments.get(2))? } else { 1 };
    let key = arguments.get(1);
    if context.keys.is_absent_again(key) {
        match has_count {
            true => out.set(0),
            false => out.null(),
        }
        return Ok(CommandOutcome::Done);
    }
    if !has_count && let Some(member) = context.pop_member(key)? {
        out.bulk(&member);
        return Ok(CommandOutcome::Done);
    }
    let (mut was_there, most) = (false, context.state.settings.reply_limit());
    let work = context.most_work();
    let popped = context.modify_much(key, ValueKind::Set, |body| {
        was_there = body.len() > 0;
        let changes = count.min(body.len());
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        // Passing an element takes a small part of the time of a removal.
        within_large(work, body, changes.max(sample_work(&SetView(body), count) / WALKED))?;
        let popped = sample(&SetView(body), count, most);
        let popped = popped.ok_or_else(|| format!("ERR the reply would exceed {most} bytes"))?;
        popped.iter().for_each(|(member, _)| {
            set::remove(body, member);
        });
        Ok(popped)
    })?;
    if !was_there {
        context.keys.saw_absent(key);
    }
    if has_count {
        out.set(popped.len());
        popped.iter().for_each(|(member, _)| out.bulk(member));
    } else {
        out.bulk_or_null(popped.first().map(|(member, _)| member.as_slice()));
    }
    Ok(CommandOutcome::Done)
}

fn srandmember(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if arguments.len() > 3 {
        return Err(CommandError::Syntax);
    }
    let most = context.state.settings.reply_limit();
    let draw = |count| {
        let found = context.set(arguments.get(1), |set| {
            context.check_work(sample_work(&set, count))?;
            Ok::<_, CommandError>(sample(&set, count, most))
        })?;
        found.transpose()
    };
    reply_random(arguments, out, most, b"", draw, |(member, _), _, out| out.bulk(member))
}

/// `SMOVE source destination member`. The keyspace is locked exclusively.
fn smove(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (from, to, member) = (arguments.get(1), arguments.get(2), arguments.get(3));
    let is_there = context.set(from, |set| set.contains(member))?;
    let Some(is_there) = is_there else {
        out.integer(0);
        return Ok(CommandOutcome::Done);
    };
    context.set(to, |_| ())?;
    if is_there && from != to {
        context.modify_both(
            ValueKind::Set,
            ((Classes::SET, "sadd"), to),
            |body| set::add(body, member).map(drop),
            ((Classes::SET, "srem"), from),
            |body| {
                set::remove(body, member);
                Ok(())
            },
        )?;
    }
    out.integer(i64::from(is_there));
    Ok(CommandOutcome::Done)
}

fn sscan(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let cursor = scan_cursor(arguments.get(2))?;
    let done: Option<Result<()>> = context.set(arguments.get(1), |set| {
        let options = ElementScan::read(arguments, None)?;
        let (next, mut found) = match set.0 {
            Body::Large(large) => large.scan_named(cursor, options.count),
            Body::Packed(_) => (0, set.all()),
        };
        options.filter(&mut found, |(member, _)| member)?;
        out.array(2);
        out.bulk(next.to_string().as_bytes());
        out.array(found.len());
        found.iter().for_each(|(member, _)| out.bulk(member));
        Ok(())
    })?;
    end_scan(done, out)
}

/// Returns the members of a union, intersection or difference without duplicates. `most` is the
/// maximum size in bytes.
fn combine(
    context: &Context<'_>,
    keys: &[&[u8]],
    operation: Operation,
    most: usize,
) -> Result<Members> {
    let mut sizes = HashMap::with_capacity(keys.len());
    for key in keys {
        sizes.insert(*key, context.set(key, |set| set.len())?.unwrap_or(0));
    }
    // A set that is named twice has no further effect.
    let mut keys = keys.to_vec();
    let first = keys.first().copied().unwrap_or_default();
    let is_single = keys.len() == 1;
    match operation {
        Operation::Difference => {
            let mut rest = keys.split_off(1);
            rest.sort_unstable();
            rest.dedup();
            keys.append(&mut rest);
        }
        _ => {
            keys.sort_unstable_by_key(|key| (sizes[key], *key));
            keys.dedup();
        }
    }
    let size = |key: &[u8]| sizes.get(key).copied().unwrap_or(0);
    let begin = size(if operation == Operation::Difference { first } else { keys[0] });
    // If one set is much smaller, its members are looked up in the larger one.
    let work = |key: &&[u8]| match operation {
        Operation::Union => size(key),
        _ => size(key).min(begin.saturating_mul(set::MERGED)),
    };
    context.check_work(begin + keys.iter().skip(1).map(work).sum::<usize>())?;
    context.check_bytes(&keys)?;
    let members = |key: &[u8]| -> Result<_> {
        let found = context.set(key, |set| set.members(most))?;
        found.unwrap_or_else(|| Some(Members::default())).ok_or_else(|| too_large(most))
    };
    if operation == Operation::Union {
        let (mut all, mut bytes, mut of_merged) = (Members::default(), 0, 0);
        for key in &keys {
            let more = members(key)?;
            bytes += more.bytes();
            all.append(more);
            if bytes > most && bytes > 2 * of_merged {
                all.sort();
                of_merged = all.bytes();
                bytes = of_merged;
                if bytes > most {
                    return Err(too_large(most));
                }
            }
        }
        if !is_single {
            all.sort();
        }
        return Ok(all);
    }
    let wanted = operation == Operation::Intersection;
    let mut found = members(keys[0])?;
    for key in &keys[1..] {
        if found.is_empty() {
            break;
        }
        let kept = context.set(key, |set| set.retain(&mut found, wanted))?;
        if kept.is_none() && wanted {
            found = Members::default();
        }
    }
    Ok(found)
}

fn reply(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    operation: Operation,
) -> Result {
    let keys: Vec<&[u8]> = arguments.iter_from(1).collect();
    let (start, most) = (out.bytes.len(), context.state.settings.reply_limit());
    let found = combine(context, &keys, operation, most)?;
    out.set(found.len());
    found.iter().for_each(|member| out.bulk(member));
    context.check_reply(out, start)?;
    Ok(CommandOutcome::Done)
}

fn store_result(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    operation: Operation,
) -> Result {
    let keys: Vec<&[u8]> = arguments.iter_from(2).collect();
    let found = combine(context, &keys, operation, MOST_STORED)?;
    let key = arguments.get(1);
    match found.len() {
        0 => context.put_nothing(key)?,
        _ => {
            let members: Vec<Vec<u8>> = found.iter().map(<[u8]>::to_vec).collect();
            let value = context.keys.build_set(&members)?;
            drop(members);
            context.put_value(key, &value, None)?;
        }
    }
    out.count(found.len());
    Ok(CommandOutcome::Done)
}

/// `SINTERCARD numkeys key … [LIMIT limit]`
fn sintercard(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    const NO_NUMBER: &str = "ERR numkeys should be greater than 0";
    let count = number(arguments.get(1)).filter(|count| *count > 0).ok_or(NO_NUMBER)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    if count > arguments.len() - 2 {
        return Err("ERR Number of keys can't be greater than number of args".into());
    }
    let limit = limit_option(arguments, 2 + count)?;
    let keys: Vec<&[u8]> = arguments.iter_from(2).take(count).collect();
    for key in &keys {
        context.set(key, |_| ())?;
    }
    // Merging is faster if all of them are counted.
    let found = match limit {
        usize::MAX => combine(context, &keys, Operation::Intersection, MOST_STORED)?.len(),
        limit => count_common(context, keys, limit)?,
    };
    out.count(found);
    Ok(CommandOutcome::Done)
}
