//! Commands on keys.

use std::ops::Bound;
use std::sync::Arc;

use ordna::key::MAX_LEN;
use ordna::{Change, Direction, Write};

use super::connection::check_database;
use super::ordered::keys_with;
use crate::execution::command::{
    CHANGE, Command, CommandOutcome, Context, READ, READ_ALL, READ_SLOW, REMOVE, Result,
    SERVER_INFO, WRITE_SLOW, help, ok,
};
use crate::execution::long_scan::{LongScan, ReplyForm, ScanPurpose};
use crate::keyspace::glob::{self, Pattern};
use crate::keyspace::sample::random;
use crate::keyspace::scan_cursors::Recalled;
use crate::keyspace::stored_value;
use crate::keyspace::value_kind::ValueKind;
use crate::state::command_spec::{
    ALL_KEYS, CommandFlags, Growth, KeyAccess, KeyPositions, NO_KEY, ONE_KEY, TWO_KEYS,
};
use crate::state::events::{Classes, Wrote};
use crate::state::settings::Preference;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

const SECOND: KeyPositions = (2, 2, 1);
const FLUSH: CommandFlags =
    CommandFlags::WRITE.or(CommandFlags::DANGEROUS).or(CommandFlags::EVERY_KEY);
const LIST: CommandFlags =
    CommandFlags::READONLY.or(CommandFlags::DANGEROUS).or(CommandFlags::EVERY_KEY);

pub const COMMANDS: &[Command] = &[
    Command::new("dbsize", 1, READ, NO_KEY, "Returns the number of keys.", dbsize),
    Command::new(
        "del",
        -2,
        REMOVE,
        ALL_KEYS,
        "Removes keys. Returns the number of removed keys.",
        del,
    )
    .exclusive_if_several_keys(),
    Command::new(
        "unlink",
        -2,
        CHANGE,
        ALL_KEYS,
        "Removes keys. Returns the number of removed keys.",
        del,
    )
    .exclusive_if_several_keys(),
    Command::new("exists", -2, READ, ALL_KEYS, "Counts the keys that exist.", exists)
        .access(KeyAccess::METADATA)
        .exclusive_if_several_keys(),
    Command::new("touch", -2, READ, ALL_KEYS, "Counts the keys that exist.", exists)
        .access(KeyAccess::METADATA)
        .exclusive_if_several_keys(),
    Command::new(
        "type",
        2,
        READ,
        ONE_KEY,
        "Returns the type of the value of a key, or none.",
        type_of,
    )
    .access(KeyAccess::METADATA),
    Command::new("flushall", -1, FLUSH, NO_KEY, "Removes all keys.", flush).exclusive(),
    Command::new("flushdb", -1, FLUSH, NO_KEY, "Removes all keys.", flush).exclusive(),
    Command::new("keys", 2, LIST, NO_KEY, "Returns the keys that match a pattern, in order.", keys)
        .range(|arguments| Some(span_of(arguments.get(1)))),
    Command::new("scan", -2, READ_ALL, NO_KEY, "Iterates over the keys with a cursor.", scan)
        .range(|arguments| scan_pattern(arguments).map(span_of)),
    Command::new("randomkey", 1, READ_ALL, NO_KEY, "Returns a random key.", randomkey),
    Command::new("rename", 3, REMOVE, TWO_KEYS, "Renames a key.", rename)
        .accesses(KeyAccess::READ_WRITE, KeyAccess::WRITE)
        .exclusive(),
    Command::new(
        "renamenx",
        3,
        CHANGE,
        TWO_KEYS,
        "Renames a key if the new name does not exist.",
        renamenx,
    )
    .accesses(KeyAccess::READ_WRITE, KeyAccess::WRITE)
    .exclusive(),
    Command::new(
        "copy",
        -3,
        WRITE_SLOW,
        TWO_KEYS,
        "Copies the value of a key to another key.",
        copy,
    )
    .accesses(KeyAccess::READ, KeyAccess::WRITE)
    .grows(Growth::Copies)
    .exclusive(),
    Command::container("object", "Describes a value: ENCODING, FREQ, …", OBJECT),
];

fn dbsize(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(context.keys.approximate_len());
    Ok(CommandOutcome::Done)
}

fn del(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let keys: Vec<&[u8]> = arguments.iter_from(1).collect();
    if let [key] = keys.as_slice() {
        out.count(usize::from(context.remove(key)?));
        return Ok(CommandOutcome::Done);
    }
    // The keyspace is locked exclusively, and for snapshots the batch is one step.
    let mut present: Vec<&[u8]> = Vec::with_capacity(keys.len());
    context.keys.get_many_with(&keys, |at, value| {
        present.extend(value.and_then(|_| keys.get(at)).copied());
    });
    present.sort_unstable();
    present.dedup();
    let writes: Vec<_> = present.iter().map(|key| Write::Remove(*key)).collect();
    context.settle(present.iter().copied(), context.keys.write_batch(&writes))?;
    out.count(present.len());
    context.report(present.iter().copied());
    present.iter().for_each(|key| context.notify(key, Wrote::Removal));
    Ok(CommandOutcome::Done)
}

fn exists(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let keys: Vec<&[u8]> = arguments.iter_from(1).collect();
    let mut present = 0;
    match context.keys.snapshot() {
        Some(snapshot) => {
            present = keys.iter().filter(|key| snapshot.get_with(key, |_| ()).is_some()).count();
        }
        None => {
            context.check_work(keys.len())?;
            context.keys.get_many_with(&keys, |_, value| present += usize::from(value.is_some()));
        }
    }
    out.count(present);
    Ok(CommandOutcome::Done)
}

fn type_of(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let kind = context.keys.get_with(arguments.get(1), ValueKind::of);
    out.simple(kind.map_or("none", ValueKind::name));
    Ok(CommandOutcome::Done)
}

fn flush(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let fits = match arguments.len() {
        1 => true,
        2 => ["sync", "async"]
            .iter()
            .any(|way| arguments.get(1).eq_ignore_ascii_case(way.as_bytes())),
        _ => false,
    };
    if !fits {
        return Err(CommandError::Syntax);
    }
    let freeing = context.state.flush(&mut context.keys)?.release();
    out.simple("OK");
    Ok(freeing.map_or(CommandOutcome::Done, CommandOutcome::Freeing))
}

fn keys(_: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    let (lower, upper) = span_of(arguments.get(1));
    let pattern = Arc::new(Pattern::new(arguments.get(1)));
    Ok(CommandOutcome::LongScan(Box::new(LongScan::new(
        lower,
        upper,
        ScanPurpose::Matching { pattern: Some(pattern), kind: None },
    ))))
}

/// Returns bounds that contain all matches of a pattern: those of its literal prefix.
fn span_of(pattern: &[u8]) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let prefix = glob::literal_prefix(pattern);
    // No key is longer.
    keys_with(&prefix[..prefix.len().min(MAX_LEN)])
}

/// Returns the last pattern of a call of `SCAN`, or `None` if there is none or the options are
/// invalid.
fn scan_pattern<'a>(arguments: Arguments<'a>) -> Option<&'a [u8]> {
    let (mut at, mut pattern) = (2, None);
    while at < arguments.len() {
        let option = arguments.get(at);
        if option.eq_ignore_ascii_case(b"stable") {
            at += 1;
            continue;
        }
        if at + 1 == arguments.len() {
            return None;
        }
        if option.eq_ignore_ascii_case(b"match") {
            pattern = Some(arguments.get(at + 1));
        } else if ![&b"count"[..], b"type"].iter().any(|known| option.eq_ignore_ascii_case(known)) {
            return None;
        }
        at += 2;
    }
    pattern
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type] [STABLE]`: returns keys in order and
/// examines `count` keys in each call, in the state that the first call found. If the lease of that
/// state has ended, the scan continues after the same key in the present state. After a flush the
/// scan is at its end. With STABLE, both are errors.
fn scan(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    const MOST: usize = 10_000;
    let cursor = scan_cursor(arguments.get(1))?;
    let (mut pattern, mut count, mut kind, mut stable) = (None, 10, None, false);
    let mut at = 2;
    while at < arguments.len() {
        let option = arguments.get(at);
        if option.eq_ignore_ascii_case(b"stable") {
            stable = true;
            at += 1;
            continue;
        }
        if at + 1 == arguments.len() {
            return Err(CommandError::Syntax);
        }
        let value = arguments.get(at + 1);
        if option.eq_ignore_ascii_case(b"match") {
            pattern = Some(value);
        } else if option.eq_ignore_ascii_case(b"count") {
            count = number(value).ok_or(CommandError::NotAnInteger)?;
            if count < 1 {
                return Err(CommandError::Syntax);
            }
        } else if option.eq_ignore_ascii_case(b"type") {
            let is = |kind: &ValueKind| value.eq_ignore_ascii_case(kind.name().as_bytes());
            kind = Some(ValueKind::ALL.into_iter().find(is));
        } else {
            return Err(CommandError::Syntax);
        }
        at += 2;
    }
    let (lower, upper) = pattern.map_or((Bound::Unbounded, Bound::Unbounded), span_of);
    // No key has an unknown type.
    let pattern = (kind != Some(None)).then(|| Arc::new(Pattern::new(pattern.unwrap_or(b"*"))));
    let purpose = ScanPurpose::Matching { pattern, kind: kind.flatten() };
    let mut scan = LongScan::new(lower, upper, purpose);
    scan.limit = usize::try_from(count).unwrap_or(MOST).min(MOST);
    let client = context.session.client.id;
    scan.form = ReplyForm::ScanCursor { client, position: None };
    if cursor != 0 {
        match context.state.cursors.recall(cursor) {
            Recalled::Position(_, None) | Recalled::Flushed if stable => {
                return Err(format!(
                    "ERR the state that cursor {cursor} reads no longer exists; without STABLE the cursor continues in the current state"
                ).into());
            }
            Recalled::Position(position, snapshot) => {
                scan.lower = Bound::Excluded(position.key.clone());
                scan.snapshot = snapshot;
                scan.form = ReplyForm::ScanCursor { client, position: Some(position) };
            }
            Recalled::Flushed => {
                out.array(2);
                out.bulk(b"0");
                out.array(0);
                return Ok(CommandOutcome::Done);
            }
            Recalled::Unknown => {
                return Err("ERR this cursor is no longer known; start again with SCAN 0".into());
            }
        }
    }
    Ok(CommandOutcome::LongScan(Box::new(scan)))
}

/// Parses the cursor of SCAN or HSCAN like C's `strtoul`: an empty text is 0, a negative number
/// wraps around, and a zero byte ends the text.
///
/// # Errors
/// The text is not a number, or too large.
pub fn scan_cursor(text: &[u8]) -> Result<u64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let is_number = digits.iter().all(u8::is_ascii_digit) && !digits.is_empty();
    let cursor = match is_number {
        true => std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u64>().ok()),
        false => text.is_empty().then_some(0),
    };
    let cursor = cursor.ok_or("ERR invalid cursor")?;
    Ok(if is_negative { cursor.wrapping_neg() } else { cursor })
}

/// Every key may be returned. Keys of parts with few entries are a little more likely.
fn randomkey(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    /// Number of parts from which one is chosen, and maximum number of entries passed in it.
    const PARTS: usize = 64;
    const PASSED: u64 = 1024;
    let points = context.keys.partition_points(PARTS);
    let part = random() as usize % (points.len() + 1);
    let lower = part.checked_sub(1).and_then(|at| points.get(at));
    let upper = points.get(part);
    let lower = lower.map_or(Bound::Unbounded, |key| Bound::Included(key.as_slice()));
    let upper = upper.map_or(Bound::Unbounded, |key| Bound::Excluded(key.as_slice()));
    // Reservoir sampling: each entry replaces the chosen one with decreasing probability.
    let (mut chosen, mut met) = (None, 0);
    context.keys.visit(lower, upper, Direction::Ascending, |key, _| {
        met += 1;
        if random().is_multiple_of(met) {
            chosen = Some(key.to_vec());
        }
        if met < PASSED {
            std::ops::ControlFlow::Continue(())
        } else {
            std::ops::ControlFlow::Break(())
        }
    });
    let chosen = chosen.or_else(|| context.keys.first().map(|(key, _)| key));
    out.bulk_or_null(chosen.as_deref());
    Ok(CommandOutcome::Done)
}

/// Returns the stored form of a key's value, and its deadline.
pub fn entry(context: &Context<'_>, key: &[u8]) -> Result<Option<(Vec<u8>, Option<u64>)>> {
    let mut entry = None;
    context.modify_stored::<&[u8]>(key, |found| {
        entry = found.map(|found| (found.value.to_vec(), found.expires_at));
        Change::Keep
    })?;
    Ok(entry)
}

/// Moves a value to another key as one step for all clients. Returns whether it did.
fn move_to(context: &Context<'_>, from: &[u8], to: &[u8], only_new: bool) -> Result<bool> {
    let (value, expires_at) = entry(context, from)?.ok_or(CommandError::NoSuchKey)?;
    if only_new && context.keys.contains(to) {
        return Ok(false);
    }
    if from != to {
        context.settle([from, to], context.keys.rename(from, to, &value, expires_at))?;
        context.report([from, to]);
        context.state.notify(Classes::NEW, "new", to);
        context.state.notify(Classes::GENERIC, "rename_from", from);
        context.state.notify(Classes::GENERIC, "rename_to", to);
    }
    Ok(true)
}

fn rename(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    move_to(context, arguments.get(1), arguments.get(2), false)?;
    ok(out)
}

fn renamenx(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let done = move_to(context, arguments.get(1), arguments.get(2), true)?;
    out.integer(i64::from(done));
    Ok(CommandOutcome::Done)
}

fn copy(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (from, to) = (arguments.get(1), arguments.get(2));
    let mut replace = false;
    let mut options = arguments.iter_from(3);
    while let Some(option) = options.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"replace" => replace = true,
            b"db" => check_database(options.next().ok_or(CommandError::Syntax)?)?,
            _ => return Err(CommandError::Syntax),
        }
    }
    if from == to {
        return Err("ERR source and destination objects are the same".into());
    }
    let found = match context.keys.snapshot() {
        Some(snapshot) => snapshot.get_entry(from),
        None => entry(context, from)?,
    };
    let found = found.filter(|_| replace || context.stored(to, |_| ()).is_none());
    let is_found = found.is_some();
    if let Some((value, expires_at)) = found {
        context.check_copy(from, &value)?;
        let copy = context.keys.copy_of(value, context.keys.snapshot());
        context.put_value(to, &copy, expires_at)?;
    }
    out.integer(i64::from(is_found));
    Ok(CommandOutcome::Done)
}

const OBJECT: &[Command] = &[
    Command::sub("object|encoding", 3, READ_SLOW, |context, arguments, out| {
            /// Length up to which Redis stores values next to their header.
            const EMBEDDED: usize = 44;
            let encoding = context.keys.get_with(arguments.get(2), |value| {
                if let Some(encoding) = stored_value::encoding_of_collection(value) {
                    return encoding;
                }
                match stored_value::string(value).unwrap_or(value) {
                    value if value.len() <= 20 && number(value).is_some() => "int",
                    value if value.len() <= EMBEDDED => "embstr",
                    _ => "raw",
                }
            });
            out.bulk_or_null(encoding.map(str::as_bytes));
            Ok(CommandOutcome::Done)
        }).keys(SECOND).access(KeyAccess::METADATA),
    Command::sub("object|refcount", 3, READ_SLOW, |context, arguments, out| {
            if context.keys.contains(arguments.get(2)) {
                out.integer(1);
            } else {
                out.null();
            }
            Ok(CommandOutcome::Done)
        }).keys(SECOND).access(KeyAccess::METADATA),
    Command::sub("object|idletime", 3, READ_SLOW, |context, arguments, out| {
            let key = arguments.get(2);
            if !context.keys.contains(key) {
                out.null();
                return Ok(CommandOutcome::Done);
            }
            match context.state.settings.policy().preference() {
                Preference::Recency => {
                    out.count(context.state.access.idle_minutes(key) * 60);
                    Ok(CommandOutcome::Done)
                }
                Preference::Frequency => Err("ERR An LFU maxmemory policy is selected, idle time not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.".into()),
                _ => Err("ERR idle time is tracked under the policies allkeys-lru and volatile-lru".into()),
            }
        }).keys(SECOND).access(KeyAccess::METADATA),
    Command::sub("object|freq", 3, READ_SLOW, |context, arguments, out| {
            let frequency = context.state.settings.policy().preference() == Preference::Frequency;
            if frequency && context.keys.contains(arguments.get(2)) {
                let decay = context.state.settings.lfu_decay_time.size() as u64;
                let frequency = context.state.access.frequency(arguments.get(2), decay);
                out.integer(i64::from(frequency));
                return Ok(CommandOutcome::Done);
            }
            if context.keys.contains(arguments.get(2)) {
                return Err("ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note that when switching between policies at runtime LRU and LFU data will take some time to adjust.".into());
            }
            out.null();
            Ok(CommandOutcome::Done)
        }).keys(SECOND).access(KeyAccess::METADATA),
    Command::sub("object|help", 2, SERVER_INFO, |_, _, out| {
            help(
                out,
                "OBJECT",
                &[
                    "ENCODING <key>",
                    "    Return the encoding that Redis would choose.",
                    "FREQ <key>",
                    "    Return how often the key is used, under a policy of LFU.",
                    "IDLETIME <key>",
                    "    Return the seconds since the last use, in whole minutes, under a policy of LRU.",
                    "REFCOUNT <key>",
                    "    Return 1.",
                ],
            )
        }).also_in(&["keyspace"]),
];
