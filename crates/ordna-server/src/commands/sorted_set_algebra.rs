//! Unions, intersections and differences of sorted sets.

use std::collections::HashMap;
use std::ops::ControlFlow;

use ordna::Direction;

use super::elements::{Operation, limit_option};
use super::sorted_set::write_scored;
use super::sorted_set_ranges::store_sorted_set;
use crate::execution::command::{Command, CommandOutcome, Context, READ_SLOW, Result, WRITE_SLOW};
use crate::execution::large_reads::{MOST_STORED, too_large};
use crate::keyspace::members::Members;
use crate::keyspace::sorted_set::{EntryBounds, Scored, ordered};
use crate::keyspace::value_kind::ValueKind;
use crate::state::command_spec::{CommandFlags, Growth, KeyAccess, NO_KEY, ONE_KEY};
use crate::wire::double;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

const READ_KEYS: CommandFlags = READ_SLOW.or(CommandFlags::MOVABLEKEYS);
const STORE_KEYS: CommandFlags = WRITE_SLOW.or(CommandFlags::MOVABLEKEYS);

const fn store(
    name: &'static str,
    summary: &'static str,
    execute: crate::execution::command::Execute,
) -> Command {
    Command::new(name, -4, STORE_KEYS, ONE_KEY, summary, execute)
        .key_count_at(2)
        .accesses(KeyAccess::WRITE, KeyAccess::READ)
        .grows(Growth::Copies)
        .exclusive()
}

const fn read(
    name: &'static str,
    summary: &'static str,
    execute: crate::execution::command::Execute,
) -> Command {
    Command::new(name, -3, READ_KEYS, NO_KEY, summary, execute).key_count_at(1).exclusive()
}

pub const COMMANDS: &[Command] = &[
    read(
        "zunion",
        "Returns the members of at least one of the sorted sets.",
        |context, arguments, out| reply(context, arguments, out, Operation::Union),
    ),
    read(
        "zinter",
        "Returns the members that all sorted sets have in common.",
        |context, arguments, out| reply(context, arguments, out, Operation::Intersection),
    ),
    read(
        "zdiff",
        "Returns the members of the first sorted set that are in none of the other sorted sets.",
        |context, arguments, out| reply(context, arguments, out, Operation::Difference),
    ),
    read("zintercard", "Counts the members that all sorted sets have in common.", zintercard),
    store("zunionstore", "Stores the union of sorted sets.", |context, arguments, out| {
        store_result(context, arguments, out, Operation::Union)
    }),
    store("zinterstore", "Stores the intersection of sorted sets.", |context, arguments, out| {
        store_result(context, arguments, out, Operation::Intersection)
    }),
    store("zdiffstore", "Stores the difference of sorted sets.", |context, arguments, out| {
        store_result(context, arguments, out, Operation::Difference)
    }),
];

/// Maximum number of members of repeated keys in a call. They are read again for each repetition,
/// so this many take some seconds.
const MOST_AGAIN: usize = 1 << 24;
/// Approximate size of an entry of a result, in addition to the member.
const ENTRY_BYTES: usize = size_of::<Scored>();

/// How to combine the scores that a member has in several sets.
#[derive(Debug, Clone, Copy)]
enum Aggregate {
    Sum,
    Min,
    Max,
}

impl Aggregate {
    fn of(self, a: f64, b: f64) -> f64 {
        match self {
            // The sum of infinities with opposite signs is 0, as in Redis.
            Self::Sum if (a + b).is_nan() => 0.0,
            Self::Sum => a + b,
            Self::Min => a.min(b),
            Self::Max => a.max(b),
        }
    }
}

/// The keys and options of a call.
struct Call<'a> {
    keys: Vec<&'a [u8]>,
    weights: Vec<f64>,
    aggregate: Aggregate,
    with_scores: bool,
}

/// Returns the keys after their number, which is at position `at`, and the position after them.
fn keys<'a>(arguments: Arguments<'a>, at: usize) -> Result<(Vec<&'a [u8]>, usize)> {
    let count = number(arguments.get(at)).ok_or(CommandError::NotAnInteger)?;
    if count < 1 {
        let name = String::from_utf8_lossy(arguments.get(0)).to_ascii_lowercase();
        return Err(format!("ERR at least 1 input key is needed for '{name}' command").into());
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let end = count.checked_add(at + 1).filter(|end| *end <= arguments.len());
    let end = end.ok_or(CommandError::Syntax)?;
    Ok((arguments.iter_from(at + 1).take(count).collect(), end))
}

impl<'a> Call<'a> {
    /// Parses the keys after their number, which is at position `at`, and the options.
    fn read(
        context: &Context<'_>,
        arguments: Arguments<'a>,
        at: usize,
        operation: Operation,
        stores: bool,
    ) -> Result<Self> {
        let (keys, end) = keys(arguments, at)?;
        // As in Redis, a wrong type is reported before an invalid option.
        for key in &keys {
            check_type(context, key)?;
        }
        let weights = vec![1.0; keys.len()];
        let mut call = Self { keys, weights, aggregate: Aggregate::Sum, with_scores: false };
        let mut options = arguments.iter_from(end);
        while let Some(option) = options.next() {
            let is_combined = operation != Operation::Difference;
            match option.to_ascii_lowercase().as_slice() {
                b"weights" if is_combined && options.len() >= call.keys.len() => {
                    for weight in &mut call.weights {
                        let text = options.next().unwrap_or_default();
                        *weight = double::parse(text).ok_or("ERR weight value is not a float")?;
                    }
                }
                b"aggregate" if is_combined && options.len() >= 1 => {
                    let name = options.next().unwrap_or_default().to_ascii_lowercase();
                    call.aggregate = match name.as_slice() {
                        b"sum" => Aggregate::Sum,
                        b"min" => Aggregate::Min,
                        b"max" => Aggregate::Max,
                        _ => return Err(CommandError::Syntax),
                    };
                }
                b"withscores" if !stores => call.with_scores = true,
                _ => return Err(CommandError::Syntax),
            }
        }
        Ok(call)
    }

    /// Returns the members of the result with their scores, sorted.
    fn result(
        &self,
        context: &Context<'_>,
        operation: Operation,
        most: usize,
    ) -> Result<Vec<Scored>> {
        self.check_work(context)?;
        let mut result: HashMap<Vec<u8>, f64> = HashMap::new();
        let mut left = most;
        for (at, (key, weight)) in self.keys.iter().zip(&self.weights).enumerate() {
            if at > 0 && result.is_empty() && operation != Operation::Union {
                break;
            }
            let of_key = weighted(context, key, *weight, left)?;
            if operation == Operation::Union && at > 0 {
                let new = of_key.iter().filter(|(member, _)| !result.contains_key(member));
                let bytes: usize = new.map(|(member, _)| member.len() + ENTRY_BYTES).sum();
                left = left.checked_sub(bytes).ok_or_else(|| too_large(most))?;
            }
            match (operation, at) {
                (_, 0) => result = of_key.into_iter().collect(),
                (Operation::Union, _) => {
                    for (member, score) in of_key {
                        let aggregate = |found: &mut f64| *found = self.aggregate.of(*found, score);
                        result.entry(member).and_modify(aggregate).or_insert(score);
                    }
                }
                (Operation::Intersection, _) => {
                    let mut both = HashMap::new();
                    for (member, score) in of_key {
                        if let Some((member, found)) = result.remove_entry(&member) {
                            both.insert(member, self.aggregate.of(found, score));
                        }
                    }
                    result = both;
                }
                (Operation::Difference, _) => {
                    for (member, _) in of_key {
                        result.remove(&member);
                    }
                }
            }
        }
        let mut result: Vec<Scored> = result.into_iter().collect();
        result.sort_by(|(a, of_a), (b, of_b)| ordered(*of_a).cmp(&ordered(*of_b)).then(a.cmp(b)));
        Ok(result)
    }
}

impl Call<'_> {
    /// Returns an error if the call would read too much, or must be repeated on a snapshot.
    fn check_work(&self, context: &Context<'_>) -> Result<()> {
        let (mut met, mut all, mut again) = (HashMap::new(), 0_usize, 0_usize);
        for key in &self.keys {
            if let Some(size) = met.get(key) {
                again = again.saturating_add(*size);
                continue;
            }
            let size = size_of_key(context, key)?;
            met.insert(key, size);
            all = all.saturating_add(size);
        }
        if again > MOST_AGAIN {
            return Err(format!(
                "ERR keys that are named again have {again} members; at most {MOST_AGAIN}"
            )
            .into());
        }
        context.check_work(all.saturating_add(again))?;
        let keys: Vec<&[u8]> = met.into_keys().copied().collect();
        context.check_bytes(&keys)
    }
}

/// Returns an error if a key exists and holds neither a set nor a sorted set.
fn check_type(context: &Context<'_>, key: &[u8]) -> Result<()> {
    match context.stored(key, ValueKind::of) {
        None | Some(ValueKind::ZSet | ValueKind::Set) => Ok(()),
        Some(_) => Err(CommandError::WrongType),
    }
}

/// Returns the members of a set or sorted set with their weighted scores, at most `most` bytes of
/// them. The members of a set have the score 1.
fn weighted(context: &Context<'_>, key: &[u8], weight: f64, most: usize) -> Result<Vec<Scored>> {
    let (mut found, mut left) = (Vec::new(), Some(most));
    let weigh = |score: f64| {
        let score = score * weight;
        if score.is_nan() { 0.0 } else { score }
    };
    let mut add = |member: &[u8], score: f64| {
        left = left.and_then(|left| left.checked_sub(member.len() + size_of::<Scored>()));
        if left.is_none() {
            return ControlFlow::Break(());
        }
        found.push((member.to_vec(), weigh(score)));
        ControlFlow::Continue(())
    };
    if context.stored(key, ValueKind::of) == Some(ValueKind::Set) {
        context.set(key, |set| set.visit(|member| add(member, 1.0)))?;
    } else {
        context.sorted_set(key, |set| {
            set.visit(&EntryBounds::ALL, Direction::Ascending, &mut add);
        })?;
    }
    match left {
        Some(_) => Ok(found),
        None => Err(too_large(most)),
    }
}

fn reply(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    operation: Operation,
) -> Result {
    let call = Call::read(context, arguments, 1, operation, false)?;
    let (start, most) = (out.bytes.len(), context.state.settings.reply_limit());
    let result = call.result(context, operation, most)?;
    out.array(if call.with_scores && !out.resp3 { result.len() * 2 } else { result.len() });
    for (member, score) in result {
        match call.with_scores {
            true => write_scored(&member, score, out),
            false => out.bulk(&member),
        }
    }
    context.check_reply(out, start)?;
    Ok(CommandOutcome::Done)
}

fn store_result(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    operation: Operation,
) -> Result {
    let call = Call::read(context, arguments, 2, operation, true)?;
    let result = call.result(context, operation, MOST_STORED)?;
    store_sorted_set(context, arguments.get(1), result, out)
}

/// `ZINTERCARD numkeys key … [LIMIT limit]`
fn zintercard(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (keys, end) = keys(arguments, 1)?;
    for key in &keys {
        check_type(context, key)?;
    }
    let limit = limit_option(arguments, end)?;
    out.count(count_common(context, keys, limit)?);
    Ok(CommandOutcome::Done)
}

/// Returns the number of members that all of these sets and sorted sets share, at most `limit`. The
/// members of the smallest one are looked up in the others, one block at a time, so only one block
/// is in memory.
pub fn count_common(context: &Context<'_>, keys: Vec<&[u8]>, limit: usize) -> Result<usize> {
    let mut keys = keys;
    keys.sort_unstable();
    keys.dedup();
    let sized = keys.into_iter().map(|key| Ok((size_of_key(context, key)?, key)));
    let mut sized = sized.collect::<Result<Vec<(usize, &[u8])>>>()?;
    sized.sort_unstable();
    let Some((&(size, smallest), others)) = sized.split_first() else { return Ok(0) };
    if size == 0 || others.is_empty() {
        return Ok(size.min(limit));
    }
    context.check_work(size.saturating_mul(others.len()))?;
    context.check_bytes(&[smallest])?;
    let (mut block, mut bytes, mut found) = (Members::default(), 0, 0);
    let mut count = |block: &mut Members| -> Result<ControlFlow<()>> {
        for (_, key) in others {
            retain_members(context, key, block)?;
        }
        found += std::mem::take(block).len();
        Ok(if found >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    let mut counted = Ok(ControlFlow::Continue(()));
    visit_members(context, smallest, &mut |member| {
        block.push(member);
        bytes += member.len();
        if block.len() < BLOCK && bytes < BLOCK_BYTES {
            return ControlFlow::Continue(());
        }
        bytes = 0;
        counted = count(&mut block);
        if matches!(counted, Ok(ControlFlow::Continue(()))) {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    if counted?.is_continue() {
        let _ = count(&mut block)?;
    }
    Ok(found.min(limit))
}

/// Maximum number of members that are looked up at once, and the approximate number of their bytes.
const BLOCK: usize = 256;
const BLOCK_BYTES: usize = 1 << 18;

/// Returns the number of members of a set or sorted set; 0 if the key does not exist.
fn size_of_key(context: &Context<'_>, key: &[u8]) -> Result<usize> {
    let size = match context.stored(key, ValueKind::of) {
        Some(ValueKind::Set) => context.set(key, |set| set.len())?,
        Some(_) => context.sorted_set(key, |set| set.len())?,
        None => None,
    };
    Ok(size.unwrap_or(0))
}

/// Calls `visit` for each member of a set or sorted set until it breaks.
fn visit_members(
    context: &Context<'_>,
    key: &[u8],
    visit: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
) -> Result<()> {
    if context.stored(key, ValueKind::of) == Some(ValueKind::Set) {
        context.set(key, |set| set.visit(visit))?;
    } else {
        context.sorted_set(key, |set| {
            set.visit(&EntryBounds::ALL, Direction::Ascending, |member, _| visit(member));
        })?;
    }
    Ok(())
}

/// Removes the members that a set or sorted set does not have.
fn retain_members(context: &Context<'_>, key: &[u8], members: &mut Members) -> Result<()> {
    let kept = if context.stored(key, ValueKind::of) == Some(ValueKind::Set) {
        context.set(key, |set| members.retain(|member| set.contains(member)))?
    } else {
        context.sorted_set(key, |set| members.retain(|member| set.score(member).is_some()))?
    };
    if kept.is_none() {
        *members = Members::default();
    }
    Ok(())
}
