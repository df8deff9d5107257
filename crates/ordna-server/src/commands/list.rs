//! Commands on lists. See [`crate::keyspace::list`]; those that wait are in `blocking.rs`.

use std::ops::ControlFlow;

use ordna::Direction;

use super::sorted_set::{counted_keys, mpop_count, positive_count};
use super::sorted_set_ranges::positions;
use crate::execution::command::{
    Command, CommandOutcome, Context, READ, READ_SLOW, REMOVE, Result, TAKE, UPDATE_SLOW, WRITE,
    WRITE_SLOW, ok,
};
use crate::execution::large_reads::too_large;
use crate::execution::prepared_edits::{WALKED, within_large};
use crate::keyspace::collections::Body;
use crate::keyspace::list::{self, End, ListView};
use crate::keyspace::value_kind::ValueKind;
use crate::state::blocked::Wanted;
use crate::state::command_spec::{CommandFlags, KeyAccess, NO_KEY, ONE_KEY, TWO_KEYS};
use crate::state::events::Wrote;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[
    Command::new(
        "lpush",
        -3,
        WRITE,
        ONE_KEY,
        "Inserts elements at the front of a list.",
        |c, a, o| push(c, a, o, End::Front, false),
    ),
    Command::new("rpush", -3, WRITE, ONE_KEY, "Appends elements to a list.", |c, a, o| {
        push(c, a, o, End::Back, false)
    }),
    Command::new(
        "lpushx",
        -3,
        WRITE,
        ONE_KEY,
        "Inserts elements at the front of a list if the list exists.",
        |c, a, o| push(c, a, o, End::Front, true),
    ),
    Command::new(
        "rpushx",
        -3,
        WRITE,
        ONE_KEY,
        "Appends elements to a list if the list exists.",
        |c, a, o| push(c, a, o, End::Back, true),
    ),
    Command::new(
        "lpop",
        -2,
        TAKE,
        ONE_KEY,
        "Removes and returns elements at the front of a list.",
        |c, a, o| pop(c, a, o, End::Front),
    ),
    Command::new(
        "rpop",
        -2,
        TAKE,
        ONE_KEY,
        "Removes and returns elements at the back of a list.",
        |c, a, o| pop(c, a, o, End::Back),
    ),
    Command::new("llen", 2, READ, ONE_KEY, "Returns the number of elements.", llen)
        .access(KeyAccess::METADATA),
    Command::new("lindex", 3, READ_SLOW, ONE_KEY, "Returns the element at an index.", lindex),
    Command::new(
        "lrange",
        4,
        READ_SLOW,
        ONE_KEY,
        "Returns the elements between two indices.",
        lrange,
    ),
    Command::new("lset", 4, WRITE_SLOW, ONE_KEY, "Sets the element at an index.", lset),
    Command::new("lrem", 4, REMOVE, ONE_KEY, "Removes elements that have a value.", lrem),
    Command::new(
        "ltrim",
        4,
        REMOVE,
        ONE_KEY,
        "Removes all elements except those between two indices.",
        ltrim,
    ),
    Command::new(
        "linsert",
        5,
        WRITE_SLOW,
        ONE_KEY,
        "Inserts an element before or after another element.",
        linsert,
    ),
    Command::new(
        "lpos",
        -3,
        READ_SLOW,
        ONE_KEY,
        "Returns the indices of the elements that have a value.",
        lpos,
    ),
    Command::new(
        "lmove",
        5,
        UPDATE_SLOW,
        TWO_KEYS,
        "Moves an element from one end of a list to an end of another list.",
        lmove,
    )
    .accesses(KeyAccess::READ_WRITE, KeyAccess::WRITE)
    .exclusive(),
    Command::new(
        "rpoplpush",
        3,
        UPDATE_SLOW,
        TWO_KEYS,
        "Moves the last element of a list to the front of another list.",
        |c, a, o| move_value(c, a, o, End::Back, End::Front),
    )
    .accesses(KeyAccess::READ_WRITE, KeyAccess::WRITE)
    .exclusive(),
    Command::new(
        "lmpop",
        -4,
        TAKE_SLOW.or(CommandFlags::MOVABLEKEYS),
        NO_KEY,
        "Removes and returns elements of the first non-empty list.",
        lmpop,
    )
    .key_count_at(1),
];

/// Flags of commands that remove elements and return them, in more than constant time.
pub const TAKE_SLOW: CommandFlags = CommandFlags::WRITE.or(CommandFlags::RETURNS_OLD_VALUE);

impl Context<'_> {
    /// Calls `read` with the list of a key. Returns `None` if the key is absent.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn list<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(ListView<'_, '_>) -> R,
    ) -> Result<Option<R>> {
        self.collection(key, ValueKind::List, |body| read(ListView(body)))
    }

    fn modify_list<R>(
        &self,
        key: &[u8],
        change: impl FnMut(&mut Body<'_>) -> Result<R>,
    ) -> Result<R> {
        self.modify_collection(key, ValueKind::List, change)
    }
}

fn push(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    end: End,
    only_present: bool,
) -> Result {
    if arguments.len() == 3
        && let Some(len) = context.push_at_end(arguments.get(1), arguments.get(2), end)?
    {
        out.count(len);
        return Ok(CommandOutcome::Done);
    }
    context.check_work(arguments.len() - 2)?;
    let len = context.modify_much(arguments.get(1), ValueKind::List, |body| {
        if !only_present || body.len() > 0 {
            arguments.iter_from(2).for_each(|value| list::push(body, value, end));
        }
        Ok(body.len())
    })?;
    out.count(len);
    Ok(CommandOutcome::Done)
}

fn pop(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies, end: End) -> Result {
    if arguments.len() > 3 {
        let name = String::from_utf8_lossy(arguments.get(0)).to_ascii_lowercase();
        return Err(CommandError::wrong_arity(name));
    }
    let (key, has_count) = (arguments.get(1), arguments.len() == 3);
    let count = if has_count { positive_count(arguments.get(2))? } else { 1 };
    if context.keys.is_absent_again(key) {
        match has_count {
            true => out.null_array(),
            false => out.null(),
        }
        return Ok(CommandOutcome::Done);
    }
    if !has_count && let Some(value) = context.pop_at_end(key, end)? {
        out.bulk(&value);
        return Ok(CommandOutcome::Done);
    }
    let (mut was_there, start) = (false, out.bytes.len());
    let (most, work) = (context.state.settings.reply_limit(), context.most_work());
    let popped = context.modify_much(key, ValueKind::List, |body| {
        within_large(work, body, count)?;
        was_there = body.len() > 0;
        list::pop_some(body, end, count, most).ok_or_else(|| too_large(most))
    })?;
    if !was_there {
        context.keys.saw_absent(key);
    }
    match (has_count, was_there) {
        (true, true) => {
            out.array(popped.len());
            popped.iter().for_each(|value| out.bulk(value));
        }
        (true, false) => out.null_array(),
        (false, _) => out.bulk_or_null(popped.first().map(Vec::as_slice)),
    }
    debug_assert!(out.bytes.len() > start);
    Ok(CommandOutcome::Done)
}

fn llen(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(context.list(arguments.get(1), |list| list.len())?.unwrap_or(0));
    Ok(CommandOutcome::Done)
}

/// Converts an index that counts from the end if it is negative to an index from the front.
fn index_of(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(i64::try_from(len).ok()?)? } else { index };
    usize::try_from(index).ok().filter(|index| *index < len)
}

fn lindex(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let index = number(arguments.get(2));
    // As in Redis, the key is checked first.
    let value = context.list(arguments.get(1), |list| {
        let index = index.ok_or(CommandError::NotAnInteger)?;
        Ok::<_, CommandError>(index_of(index, list.len()).and_then(|index| list.get(index)))
    })?;
    out.bulk_or_null(value.transpose()?.flatten().as_deref());
    Ok(CommandOutcome::Done)
}

/// Returns the two indices of LRANGE and LTRIM.
fn ends(arguments: Arguments<'_>) -> Result<(i64, i64)> {
    let index = |at| number(arguments.get(at)).ok_or(CommandError::NotAnInteger);
    Ok((index(2)?, index(3)?))
}

fn lrange(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (start, end) = ends(arguments)?;
    let (most, begin, mut fits) = (context.state.settings.reply_limit(), out.bytes.len(), true);
    let (mut counted, mut written) = (0, 0);
    let found = context.list(arguments.get(1), |list| {
        let (start, count) = positions(start, end, list.len());
        context.check_work(count)?;
        counted = count;
        out.array(count);
        list.visit(start, count, Direction::Ascending, |value| {
            written += 1;
            out.bulk(value);
            fits = out.bytes.len() - begin <= most;
            if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        Ok::<_, CommandError>(())
    })?;
    if found.transpose()?.is_none() {
        out.array(0);
    }
    context.check_elements(arguments.get(1), [counted, written], out, begin)?;
    Ok(CommandOutcome::Done)
}

fn lset(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    context.modify_list(arguments.get(1), |body| {
        let len = body.len();
        if len == 0 {
            return Err(CommandError::NoSuchKey);
        }
        let index = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
        let index = index_of(index, len).ok_or("ERR index out of range")?;
        list::set(body, index, arguments.get(3));
        Ok(())
    })?;
    ok(out)
}

/// `LREM key count value`: removes the first occurrences, the last ones if the count is negative,
/// or all.
fn lrem(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let count = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    let most = match count {
        0 => usize::MAX,
        _ => usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX),
    };
    let direction = if count < 0 { Direction::Descending } else { Direction::Ascending };
    let work = context.most_work();
    let removed = context.modify_much(arguments.get(1), ValueKind::List, |body| {
        let (mut found, len) = (Vec::new(), body.len());
        within_large(work, body, len / WALKED)?;
        let mut at = 0;
        ListView(body).visit(0, len, direction, |value| {
            if value == arguments.get(3) {
                found.push(if count < 0 { len - 1 - at } else { at });
            }
            at += 1;
            if found.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        found.sort_unstable();
        list::remove_all(body, &found);
        Ok(found.len())
    })?;
    out.count(removed);
    Ok(CommandOutcome::Done)
}

fn ltrim(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, (start, end)) = (arguments.get(1), ends(arguments)?);
    let most = context.most_work();
    let keeps_all = context.modify_much(key, ValueKind::List, |body| {
        let len = body.len();
        let (start, count) = positions(start, end, len);
        if count < len {
            // Most nodes hold several values.
            within_large(most, body, (len - count) / 4)?;
            list::trim(body, start, count);
        }
        Ok(len > 0 && count == len)
    })?;
    if keeps_all {
        // As in Redis, this counts as a change for WATCH and for subscribers.
        context.report([key]);
        context.notify(key, Wrote::Value { is_new: false, new_deadline: false });
    }
    ok(out)
}

/// `LINSERT key BEFORE | AFTER pivot value`
fn linsert(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let after = match arguments.get(2).to_ascii_lowercase().as_slice() {
        b"before" => 0,
        b"after" => 1,
        _ => return Err(CommandError::Syntax),
    };
    let (pivot, value) = (arguments.get(3), arguments.get(4));
    let most = context.most_work();
    let len = context.modify_much(arguments.get(1), ValueKind::List, |body| {
        let (mut at, mut place, len) = (0, None, body.len());
        within_large(most, body, len / WALKED)?;
        if len == 0 {
            return Ok(0);
        }
        ListView(body).visit(0, len, Direction::Ascending, |found| {
            if found == pivot {
                place = Some(at);
                return ControlFlow::Break(());
            }
            at += 1;
            ControlFlow::Continue(())
        });
        let Some(place) = place else { return Ok(-1) };
        list::insert(body, place + after, value);
        Ok(i64::try_from(body.len()).unwrap_or(i64::MAX))
    })?;
    out.integer(len);
    Ok(CommandOutcome::Done)
}

/// `LPOS key value [RANK rank] [COUNT count] [MAXLEN length]`
fn lpos(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (mut rank, mut count, mut most) = (1_i64, None, 0_i64);
    let mut options = arguments.iter_from(3);
    while let Some(option) = options.next() {
        let option = option.to_ascii_lowercase();
        let value = options.next().ok_or(CommandError::Syntax)?;
        match option.as_slice() {
            b"rank" => {
                rank = number(value).ok_or(CommandError::NotAnInteger)?;
                if rank == i64::MIN {
                    // Redis 7.0 treats it as the first match from the end.
                    rank = -1;
                }
                if rank == 0 {
                    return Err("ERR RANK can't be zero: use 1 to start from the first match, 2 from the second ... or use negative to start from the end of the list".into());
                }
            }
            b"count" => {
                count = Some(
                    number(value)
                        .filter(|count| *count >= 0)
                        .ok_or("ERR COUNT can't be negative")?,
                );
            }
            b"maxlen" => {
                most = number(value)
                    .filter(|most| *most >= 0)
                    .ok_or("ERR MAXLEN can't be negative")?;
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    let wanted = match count {
        None => 1,
        Some(0) => usize::MAX,
        Some(count) => usize::try_from(count).unwrap_or(usize::MAX),
    };
    let looked_at =
        if most == 0 { usize::MAX } else { usize::try_from(most).unwrap_or(usize::MAX) };
    let direction = if rank < 0 { Direction::Descending } else { Direction::Ascending };
    let found = context.list(arguments.get(1), |list| {
        let (mut passed, mut at, mut found, len) = (1, 0, Vec::new(), list.len());
        // Most calls find the value early, but this is not known in advance.
        context.check_work(if wanted == 1 {
            len.min(looked_at) / 16
        } else {
            len.min(looked_at)
        })?;
        list.visit(0, len, direction, |value| {
            if at == looked_at {
                return ControlFlow::Break(());
            }
            if value == arguments.get(2) {
                if passed >= rank.unsigned_abs() {
                    found.push(if rank < 0 { len - 1 - at } else { at });
                }
                passed += 1;
            }
            at += 1;
            if found.len() == wanted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        Ok::<_, CommandError>(found)
    })?;
    let found = found.transpose()?.unwrap_or_default();
    if count.is_some() {
        out.array(found.len());
        found.iter().for_each(|at| out.count(*at));
    } else {
        match found.first() {
            Some(at) => out.count(*at),
            None => out.null(),
        }
    }
    Ok(CommandOutcome::Done)
}

pub fn end_of(text: &[u8]) -> Result<End> {
    match text.to_ascii_lowercase().as_slice() {
        b"left" => Ok(End::Front),
        b"right" => Ok(End::Back),
        _ => Err(CommandError::Syntax),
    }
}

fn lmove(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (from, to) = (end_of(arguments.get(3))?, end_of(arguments.get(4))?);
    move_value(context, arguments, out, from, to)
}

/// Moves a value. The keyspace is locked exclusively.
fn move_value(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    from: End,
    to: End,
) -> Result {
    let value = context.move_value(arguments.get(1), arguments.get(2), from, to)?;
    out.bulk_or_null(value.as_deref());
    Ok(CommandOutcome::Done)
}

/// Parses the arguments of LMPOP from the number of keys, which is at this position: keys, end,
/// count.
///
/// # Errors
/// One of them is invalid.
pub fn lmpop_arguments(arguments: Arguments<'_>, at: usize) -> Result<(Vec<&[u8]>, End, usize)> {
    let (keys, at) = counted_keys(arguments, at)?;
    Ok((keys, end_of(arguments.get(at))?, mpop_count(arguments, at + 1)?))
}

/// `LMPOP numkeys key … LEFT | RIGHT [COUNT count]`
fn lmpop(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (keys, end, count) = lmpop_arguments(arguments, 1)?;
    context.check_taken(&keys, ValueKind::List, count)?;
    let wanted = Wanted::Values { end, count: Some(count) };
    // Each key is a separate step; the first one with values decides.
    for key in keys {
        if context.take(key, &wanted, out)? {
            return Ok(CommandOutcome::Done);
        }
    }
    out.null_array();
    Ok(CommandOutcome::Done)
}
