//! Commands on hashes.
//!
//! A hash is one record: reads of a field cost O(fields) up to 512 short fields and O(log fields)
//! beyond, writes O(bytes of the hash). See [`crate::keyspace::hash`].

use ordna::key::MAX_LEN;

use super::keys::{random, scan_cursor};
use crate::execution::command::{
    CHANGE, Command, CommandOutcome, Context, READ, READ_SLOW, Result, UPDATE, WRITE, ok,
};
use crate::keyspace::float::LongDouble;
use crate::keyspace::glob::Pattern;
use crate::keyspace::hash::{Edit, Hash};
use crate::state::command_spec::{KeyAccess, ONE_KEY};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[
    Command::new("hset", -4, WRITE, ONE_KEY, "Sets fields of a hash.", hset),
    Command::new("hmset", -4, WRITE, ONE_KEY, "Sets fields of a hash.", hmset),
    Command::new("hsetnx", 4, WRITE, ONE_KEY, "Sets a field that is absent.", hsetnx),
    Command::new("hget", 3, READ, ONE_KEY, "Returns the value of a field.", hget),
    Command::new("hmget", -3, READ, ONE_KEY, "Returns the values of several fields.", hmget),
    Command::new("hgetall", 2, READ_SLOW, ONE_KEY, "Returns all fields and values.", hgetall),
    Command::new("hkeys", 2, READ_SLOW, ONE_KEY, "Returns all fields.", hkeys),
    Command::new("hvals", 2, READ_SLOW, ONE_KEY, "Returns all values.", hvals),
    Command::new("hdel", -3, CHANGE, ONE_KEY, "Removes fields; returns how many there were.", hdel),
    Command::new("hexists", 3, READ, ONE_KEY, "Returns whether a field is there.", hexists)
        .access(KeyAccess::METADATA),
    Command::new("hlen", 2, READ, ONE_KEY, "Returns the number of fields.", hlen)
        .access(KeyAccess::METADATA),
    Command::new("hstrlen", 3, READ, ONE_KEY, "Returns the length of a value.", hstrlen)
        .access(KeyAccess::METADATA),
    Command::new("hincrby", 4, UPDATE, ONE_KEY, "Increments the integer of a field.", hincrby),
    Command::new(
        "hincrbyfloat",
        4,
        UPDATE,
        ONE_KEY,
        "Increments the number of a field.",
        hincrbyfloat,
    ),
    Command::new(
        "hscan",
        -3,
        READ_SLOW,
        ONE_KEY,
        "Scans the fields of a hash, a cursor at a time.",
        hscan,
    ),
    Command::new("hrandfield", -2, READ_SLOW, ONE_KEY, "Returns random fields.", hrandfield),
];

fn set_all(context: &Context<'_>, arguments: Arguments<'_>, name: &'static str) -> Result<usize> {
    if !arguments.len().is_multiple_of(2) {
        return Err(CommandError::wrong_arity(name));
    }
    let mut new = 0;
    context.modify_hash(arguments.get(1), |hash| {
        let mut edit = Edit::of(hash);
        let fields = arguments.iter_from(2).step_by(2);
        let pairs = fields.zip(arguments.iter_from(3).step_by(2));
        new = pairs.filter(|(field, value)| edit.set(field, value)).count();
        Some(edit.finish())
    })?;
    Ok(new)
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
    let mut is_new = false;
    context.modify_hash(arguments.get(1), |hash| {
        is_new = hash.is_none_or(|hash| hash.get(field).is_none());
        is_new.then(|| {
            let mut edit = Edit::of(hash);
            edit.set(field, value);
            edit.finish()
        })
    })?;
    out.integer(i64::from(is_new));
    Ok(CommandOutcome::Done)
}

fn hget(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let field = arguments.get(2);
    let found = context.hash(arguments.get(1), |hash| out.bulk_or_null(hash.get(field)))?;
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
    let mut fits = true;
    let found = context.hash(arguments.get(1), |hash| {
        let values = || arguments.iter_from(2).map(|field| hash.get(field));
        // A reply that would be refused is not built. Few are so long that they have to be measured.
        if fields.len().saturating_mul(hash.bytes()) > most {
            fits = values().map(|value| value.map_or(0, <[u8]>::len)).sum::<usize>() <= most;
        }
        if fits {
            out.array(fields.len());
            values().for_each(|value| out.bulk_or_null(value));
        }
    })?;
    if !fits {
        return Err(format!("ERR the reply would exceed {most} bytes; ask for fewer fields").into());
    }
    if found.is_none() {
        out.array(fields.len());
        fields.for_each(|_| out.null());
    }
    Ok(CommandOutcome::Done)
}

fn hgetall(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let found = context.hash(arguments.get(1), |hash| {
        out.map(hash.len());
        hash.iter().for_each(|(field, value)| {
            out.bulk(field);
            out.bulk(value);
        });
    })?;
    if found.is_none() {
        out.map(0);
    }
    Ok(CommandOutcome::Done)
}

/// Picks the field or the value of an entry.
type EntryPart = for<'h> fn((&'h [u8], &'h [u8])) -> &'h [u8];

/// Writes a part of each entry.
fn list(context: &Context<'_>, key: &[u8], out: &mut Replies, part: EntryPart) -> Result {
    let found = context.hash(key, |hash| {
        out.array(hash.len());
        hash.iter().for_each(|entry| out.bulk(part(entry)));
    })?;
    if found.is_none() {
        out.array(0);
    }
    Ok(CommandOutcome::Done)
}

fn hkeys(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    list(context, arguments.get(1), out, |(field, _)| field)
}

fn hvals(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    list(context, arguments.get(1), out, |(_, value)| value)
}

fn hdel(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let mut removed = 0;
    context.modify_hash(arguments.get(1), |hash| {
        let mut edit = Edit::of(Some(hash?));
        removed = arguments.iter_from(2).filter(|field| edit.remove(field)).count();
        (removed > 0).then(|| edit.finish())
    })?;
    out.count(removed);
    Ok(CommandOutcome::Done)
}

fn hexists(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let found = context.hash(arguments.get(1), |hash| hash.get(arguments.get(2)).is_some())?;
    out.integer(i64::from(found == Some(true)));
    Ok(CommandOutcome::Done)
}

fn hlen(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(context.hash(arguments.get(1), |hash| hash.len())?.unwrap_or(0));
    Ok(CommandOutcome::Done)
}

fn hstrlen(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let length = |hash: Hash<'_>| hash.get(arguments.get(2)).map_or(0, <[u8]>::len);
    out.count(context.hash(arguments.get(1), length)?.unwrap_or(0));
    Ok(CommandOutcome::Done)
}

/// Sets a field to what `change` makes of its value.
fn update(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    mut change: impl FnMut(Option<&[u8]>) -> Result<String>,
) -> Result<String> {
    let field = arguments.get(2);
    let mut done = Ok(String::new());
    context.modify_hash(arguments.get(1), |hash| {
        done = change(hash.and_then(|hash| hash.get(field)));
        let text = done.as_ref().ok()?;
        let mut edit = Edit::of(hash);
        edit.set(field, text.as_bytes());
        Some(edit.finish())
    })?;
    done
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

/// Work of matching a pattern in one call, in units of some nanoseconds: some tenths of a second.
/// Only fields far longer than keys reach it.
const MOST_WORK: usize = 1 << 26;

/// A list is returned whole, as in Redis; of a table about COUNT fields a call. A field that is
/// there from the first call to the last is returned once.
fn hscan(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let cursor = scan_cursor(arguments.get(2))?;
    let done = context.hash(arguments.get(1), |hash| {
        let (mut pattern, mut count) = (None, 10_usize);
        let mut options = arguments.iter_from(3);
        while let Some(option) = options.next() {
            let value = options.next().ok_or(CommandError::Syntax)?;
            match option.to_ascii_lowercase().as_slice() {
                b"match" => pattern = Some(value),
                b"count" => {
                    let wanted = number(value).ok_or(CommandError::NotAnInteger)?;
                    count = usize::try_from(wanted)
                        .ok()
                        .filter(|n| *n > 0)
                        .ok_or(CommandError::Syntax)?;
                }
                _ => return Err(CommandError::Syntax),
            }
        }
        let pattern = pattern.map(Pattern::new);
        let (next, mut found) =
            if hash.is_table() { hash.scan(cursor, count) } else { (0, hash.iter().collect()) };
        // Fields may be longer than any key.
        if let Some(pattern) = &pattern {
            let work: usize = found.iter().map(|(field, _)| pattern.work(field.len())).sum();
            if work > MOST_WORK
                || pattern.is_too_long() && found.iter().any(|(field, _)| field.len() > MAX_LEN)
            {
                return Err("ERR the pattern is too long for fields of this length".into());
            }
        }
        found.retain(|(field, _)| pattern.as_ref().is_none_or(|pattern| pattern.matches(field)));
        out.array(2);
        out.bulk(next.to_string().as_bytes());
        out.array(found.len() * 2);
        for (field, value) in found {
            out.bulk(field);
            out.bulk(value);
        }
        Ok(())
    })?;
    match done {
        Some(done) => done?,
        None => {
            out.array(2);
            out.bulk(b"0");
            out.array(0);
        }
    }
    Ok(CommandOutcome::Done)
}

/// Fields that HRANDFIELD draws when they may come again, at most: some tenths of a second, in which
/// the connection serves nobody else.
const MOST_DRAWN: usize = 1 << 20;

/// Random numbers from one seed (SplitMix64): a draw from the system for each would take a call.
struct Draws(u64);

impl Draws {
    fn new() -> Self {
        Self(random())
    }

    /// A number below `end`, or 0.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((u128::from(mixed ^ mixed >> 31) * end as u128) >> 64) as usize
    }
}

/// Numbers below `len`, each once, in random order: `count` of them.
fn choose(len: usize, count: usize) -> Vec<usize> {
    let (mut all, mut draws): (Vec<usize>, _) = ((0..len).collect(), Draws::new());
    for at in 0..count.min(len) {
        let other = at + draws.below(len - at);
        all.swap(at, other);
    }
    all.truncate(count);
    all
}

fn hrandfield(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let key = arguments.get(1);
    if arguments.len() == 2 {
        let found = context.hash(key, |hash| {
            let entry = hash.at(Draws::new().below(hash.len()));
            out.bulk_or_null(entry.map(|(field, _)| field));
        })?;
        if found.is_none() {
            out.null();
        }
        return Ok(CommandOutcome::Done);
    }
    let values = arguments.len() == 4 && arguments.get(3).eq_ignore_ascii_case(b"withvalues");
    let count = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    if count == i64::MIN {
        let most = i64::MAX;
        return Err(
            format!("ERR value is out of range, value must between -{most} and {most}").into()
        );
    }
    if arguments.len() > 3 && !values {
        return Err(CommandError::Syntax);
    }
    if values && count.unsigned_abs() > i64::MAX as u64 / 2 {
        return Err("ERR value is out of range".into());
    }
    let most = context.state.settings.reply_limit();
    let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    if count < 0 && wanted > MOST_DRAWN {
        return Err(format!("ERR '{count}' is out of range: at least -{MOST_DRAWN}").into());
    }
    let found = context.hash(key, |hash| {
        // A list is read once, to be indexed.
        let list: Vec<_> = if hash.is_table() { Vec::new() } else { hash.iter().collect() };
        let entry = |at: usize| match hash.is_table() {
            true => hash.at(at),
            false => list.get(at).copied(),
        };
        let len = if hash.is_table() { hash.len() } else { list.len() };
        // With a negative count a field may come again: they are drawn one by one.
        let chosen: Option<Vec<usize>> = match count {
            0.. if wanted >= len => Some((0..len).collect()),
            0.. => Some(choose(len, wanted)),
            _ => None,
        };
        let drawn = chosen.as_ref().map_or(if len == 0 { 0 } else { wanted }, Vec::len);
        // No reply to a field is shorter than this.
        if drawn > most / 6 {
            return false;
        }
        let (start, mut draws) = (out.bytes.len(), Draws::new());
        out.array(if values && !out.resp3 { drawn * 2 } else { drawn });
        for place in 0..drawn {
            let at = chosen.as_ref().map_or_else(|| draws.below(len), |chosen| chosen[place]);
            let (field, value) = entry(at).unwrap_or_default();
            if out.bytes.len() - start + field.len() + value.len() > most {
                out.bytes.truncate(start);
                return false;
            }
            if values && out.resp3 {
                out.array(2);
            }
            out.bulk(field);
            if values {
                out.bulk(value);
            }
        }
        true
    })?;
    match found {
        Some(true) => {}
        Some(false) => return Err(format!("ERR the reply would exceed {most} bytes").into()),
        None => out.array(0),
    }
    Ok(CommandOutcome::Done)
}
