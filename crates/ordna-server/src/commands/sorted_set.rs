//! Commands on one sorted set. See [`crate::keyspace::sorted_set`].

use ordna::Direction;

use super::elements::{ElementScan, end_scan, reply_random};
use super::keys::scan_cursor;
use crate::execution::command::{
    CHANGE, Command, CommandOutcome, Context, READ, READ_SLOW, Result, TAKE, UPDATE, WRITE,
};
use crate::execution::large_reads::too_large;
use crate::execution::prepared_edits::within_large;
use crate::keyspace::collections::Body;
use crate::keyspace::sample::{sample, sample_work};
use crate::keyspace::sorted_set::{self, SortedSet, score_of};
use crate::keyspace::value_kind::ValueKind;
use crate::state::blocked::Wanted;
use crate::state::command_spec::{CommandFlags, KeyAccess, NO_KEY, ONE_KEY};
use crate::state::events::Classes;
use crate::wire::double;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[
    Command::new("zadd", -4, WRITE, ONE_KEY, "Adds members with their scores, or changes their scores.", zadd),
    Command::new("zincrby", 4, UPDATE, ONE_KEY, "Increments the score of a member.", zincrby),
    Command::new("zrem", -3, CHANGE, ONE_KEY, "Removes members of a sorted set. Returns the number of removed members.", zrem),
    Command::new("zcard", 2, READ, ONE_KEY, "Returns the number of members.", zcard)
        .access(KeyAccess::METADATA),
    Command::new("zscore", 3, READ, ONE_KEY, "Returns the score of a member.", zscore),
    Command::new("zmscore", -3, READ, ONE_KEY, "Returns the scores of members.", zmscore),
    Command::new("zrank", -3, READ, ONE_KEY, "Returns the position of a member, counted from the lowest score.", zrank),
    Command::new(
        "zrevrank",
        -3,
        READ,
        ONE_KEY,
        "Returns the position of a member, counted from the highest score.",
        zrevrank,
    ),
    Command::new("zpopmin", -2, TAKE, ONE_KEY, "Removes and returns the members with the lowest scores.", zpopmin),
    Command::new("zpopmax", -2, TAKE, ONE_KEY, "Removes and returns the members with the highest scores.", zpopmax),
    Command::new(
        "zmpop",
        -4,
        TAKE_SLOW,
        NO_KEY,
        "Removes and returns the members with the lowest or highest scores of the first non-empty sorted set.",
        zmpop,
    )
    .key_count_at(1),
    Command::new("zrandmember", -2, READ_SLOW, ONE_KEY, "Returns random members.", zrandmember),
    Command::new(
        "zscan",
        -3,
        READ_SLOW,
        ONE_KEY,
        "Iterates over the members of a sorted set with a cursor.",
        zscan,
    ),
];

const TAKE_SLOW: CommandFlags =
    CommandFlags::WRITE.or(CommandFlags::RETURNS_OLD_VALUE).or(CommandFlags::MOVABLEKEYS);

impl Context<'_> {
    /// Calls `read` with the sorted set of a key. Returns `None` if the key is absent.
    ///
    /// # Errors
    /// The key holds a value of another type.
    pub fn sorted_set<R>(
        &self,
        key: &[u8],
        read: impl FnOnce(SortedSet<'_, '_>) -> R,
    ) -> Result<Option<R>> {
        self.collection(key, ValueKind::ZSet, |body| read(SortedSet(body)))
    }
}

pub const NOT_A_FLOAT: &str = "ERR value is not a valid float";

/// The options of ZADD.
#[derive(Default, Clone, Copy)]
struct AddOptions {
    only_new: bool,
    only_present: bool,
    only_greater: bool,
    only_less: bool,
    counts_changes: bool,
    increments: bool,
}

/// The effect of ZADD on a member.
#[derive(Clone, Copy, PartialEq)]
enum Added {
    Nothing,
    New(f64),
    Changed(f64),
    Same(f64),
}

fn add(body: &mut Body<'_>, options: AddOptions, score: f64, member: &[u8]) -> Result<Added> {
    let former = SortedSet(body).score(member);
    let added = options.decide(former, score)?;
    if let Some(score) = added.put() {
        sorted_set::set_score(body, member, former, score)?;
    }
    Ok(added)
}

impl Added {
    /// Returns the new score if the member gets one.
    fn put(self) -> Option<f64> {
        match self {
            Self::New(score) | Self::Changed(score) => Some(score),
            Self::Nothing | Self::Same(_) => None,
        }
    }
}

impl AddOptions {
    /// Decides what happens to a member whose present score is `former`.
    ///
    /// # Errors
    /// The sum of the scores is not a number.
    fn decide(self, former: Option<f64>, score: f64) -> Result<Added> {
        let Some(former) = former else {
            return Ok(if self.only_present { Added::Nothing } else { Added::New(score) });
        };
        if self.only_new {
            return Ok(Added::Nothing);
        }
        let score = if self.increments { former + score } else { score };
        if score.is_nan() {
            return Err("ERR resulting score is not a number (NaN)".into());
        }
        if self.only_greater && score <= former || self.only_less && score >= former {
            return Ok(Added::Nothing);
        }
        if score == former {
            return Ok(Added::Same(score));
        }
        Ok(Added::Changed(score))
    }
}

fn zadd(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (mut options, mut at) = (AddOptions::default(), 2);
    while at < arguments.len() {
        match arguments.get(at).to_ascii_lowercase().as_slice() {
            b"nx" => options.only_new = true,
            b"xx" => options.only_present = true,
            b"gt" => options.only_greater = true,
            b"lt" => options.only_less = true,
            b"ch" => options.counts_changes = true,
            b"incr" => options.increments = true,
            _ => break,
        }
        at += 1;
    }
    add_all(context, arguments, options, at, out)
}

fn zincrby(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    // Redis interprets words of ZADD's options here, too, and then reports a missing score.
    let is_option = |word: &&[u8]| arguments.get(2).eq_ignore_ascii_case(word);
    if [&b"nx"[..], b"xx", b"ch", b"incr", b"gt", b"lt"].iter().any(is_option) {
        return Err(CommandError::Syntax);
    }
    let options = AddOptions { increments: true, ..AddOptions::default() };
    add_all(context, arguments, options, 2, out)
}

/// Adds the scores and members from the argument `at` on.
fn add_all(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    options: AddOptions,
    at: usize,
    out: &mut Replies,
) -> Result {
    let count = arguments.len() - at;
    if count == 0 || !count.is_multiple_of(2) {
        return Err(CommandError::Syntax);
    }
    if options.only_new && options.only_present {
        return Err("ERR XX and NX options at the same time are not compatible".into());
    }
    let AddOptions { only_new, only_greater, only_less, .. } = options;
    if [only_new, only_greater, only_less].iter().filter(|only| **only).count() > 1 {
        return Err("ERR GT, LT, and/or NX options at the same time are not compatible".into());
    }
    if options.increments && count > 2 {
        return Err("ERR INCR option supports a single increment-element pair".into());
    }
    // Checked before the scores are parsed, because that takes long if there are many.
    context.check_work(count / 2)?;
    let scores = arguments.iter_from(at).step_by(2).map(double::parse);
    let scores = scores.collect::<Option<Vec<f64>>>().ok_or(NOT_A_FLOAT)?;
    let (mut new, mut changed, mut last) = (0, 0, Added::Nothing);
    let event = options.increments.then_some((Classes::SORTED_SET, "zincr"));
    let key = arguments.get(1);
    let is_done = match scores[..] {
        [score] => context.set_score(event, key, arguments.get(at + 1), |former| {
            last = options.decide(former, score)?;
            Ok(last.put())
        })?,
        _ => false,
    };
    if is_done {
        new = usize::from(matches!(last, Added::New(_)));
        changed = usize::from(matches!(last, Added::Changed(_)));
    } else {
        context.edit_much(event, key, ValueKind::ZSet, |body| {
            (new, changed) = (0, 0);
            for (score, member) in scores.iter().zip(arguments.iter_from(at + 1).step_by(2)) {
                last = add(body, options, *score, member)?;
                new += usize::from(matches!(last, Added::New(_)));
                changed += usize::from(matches!(last, Added::Changed(_)));
            }
            Ok(())
        })?;
    }
    match (options.increments, last) {
        (true, Added::Nothing) => out.null(),
        (true, Added::New(score) | Added::Changed(score) | Added::Same(score)) => {
            out.double(score);
        }
        (false, _) => out.count(if options.counts_changes { new + changed } else { new }),
    }
    Ok(CommandOutcome::Done)
}

fn zrem(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let most = context.most_work();
    let removed = context.modify_much(arguments.get(1), ValueKind::ZSet, |body| {
        within_large(most, body, arguments.len() - 2)?;
        let mut removed = 0;
        for member in arguments.iter_from(2) {
            if let Some(score) = SortedSet(body).score(member) {
                sorted_set::remove(body, member, score);
                removed += 1;
            }
        }
        Ok(removed)
    })?;
    out.count(removed);
    Ok(CommandOutcome::Done)
}

fn zcard(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    out.count(context.sorted_set(arguments.get(1), |set| set.len())?.unwrap_or(0));
    Ok(CommandOutcome::Done)
}

fn score_or_null(score: Option<f64>, out: &mut Replies) {
    match score {
        Some(score) => out.double(score),
        None => out.null(),
    }
}

fn zscore(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let score = context.sorted_set(arguments.get(1), |set| set.score(arguments.get(2)))?;
    score_or_null(score.flatten(), out);
    Ok(CommandOutcome::Done)
}

fn zmscore(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let members = || arguments.iter_from(2);
    let scores = context.sorted_set(arguments.get(1), |set| {
        members().map(|member| set.score(member)).collect::<Vec<_>>()
    })?;
    let scores = scores.unwrap_or_else(|| vec![None; members().len()]);
    out.array(scores.len());
    scores.into_iter().for_each(|score| score_or_null(score, out));
    Ok(CommandOutcome::Done)
}

/// Runs `ZRANK key member [WITHSCORE]` or `ZREVRANK`.
fn rank(
    context: &Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    (name, direction): (&'static str, Direction),
) -> Result {
    if arguments.len() > 4 {
        return Err(CommandError::wrong_arity(name));
    }
    let with_score = arguments.len() == 4;
    if with_score && !arguments.get(3).eq_ignore_ascii_case(b"withscore") {
        return Err(CommandError::Syntax);
    }
    let rank = |set: SortedSet<'_, '_>| set.rank(arguments.get(2), direction);
    match context.sorted_set(arguments.get(1), rank)?.flatten() {
        Some((rank, score)) if with_score => {
            out.array(2);
            out.count(rank);
            out.double(score);
        }
        Some((rank, _)) => out.count(rank),
        None if with_score => out.null_array(),
        None => out.null(),
    }
    Ok(CommandOutcome::Done)
}

fn zrank(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    rank(context, arguments, out, ("zrank", Direction::Ascending))
}

fn zrevrank(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    rank(context, arguments, out, ("zrevrank", Direction::Descending))
}

/// Writes a member and its score: as a nested pair in RESP3, as two elements in RESP2.
pub fn write_scored(member: &[u8], score: f64, out: &mut Replies) {
    if out.resp3 {
        out.array(2);
    }
    out.bulk(member);
    out.double(score);
}

fn pop(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    direction: Direction,
) -> Result {
    if arguments.len() > 3 {
        return Err(CommandError::Syntax);
    }
    let has_count = arguments.len() == 3;
    let count = if has_count { positive_count(arguments.get(2))? } else { 1 };
    let key = arguments.get(1);
    if context.keys.is_absent_again(key) {
        out.array(0);
        return Ok(CommandOutcome::Done);
    }
    let (mut was_there, most) = (false, context.state.settings.reply_limit());
    let work = context.most_work();
    let one = if has_count { None } else { context.pop_scored(key, direction)? };
    let popped = match one {
        Some(one) => vec![one],
        None => {
            let popped = context.modify_much(key, ValueKind::ZSet, |body| {
                was_there = body.len() > 0;
                within_large(work, body, count)?;
                sorted_set::pop(body, count, direction, most).ok_or_else(|| too_large(most))
            })?;
            if !was_there {
                context.keys.saw_absent(key);
            }
            popped
        }
    };
    if has_count && out.resp3 {
        out.array(popped.len());
        popped.iter().for_each(|(member, score)| write_scored(member, *score, out));
    } else {
        out.array(popped.len() * 2);
        for (member, score) in &popped {
            out.bulk(member);
            out.double(*score);
        }
    }
    Ok(CommandOutcome::Done)
}

/// Parses a number that must not be negative.
///
/// # Errors
/// The number is negative, or the text is not a number.
pub fn positive_count(text: &[u8]) -> Result<usize> {
    const NEGATIVE: &str = "ERR value is out of range, must be positive";
    let count = number(text).ok_or(NEGATIVE)?;
    Ok(usize::try_from(count).map_err(|_| NEGATIVE)?)
}

fn zpopmin(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    pop(context, arguments, out, Direction::Ascending)
}

fn zpopmax(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    pop(context, arguments, out, Direction::Descending)
}

/// Returns the keys after their number, which is at position `at`, and the position after them.
///
/// # Errors
/// The number is invalid, or there is no argument after the keys.
pub fn counted_keys<'a>(arguments: Arguments<'a>, at: usize) -> Result<(Vec<&'a [u8]>, usize)> {
    const NO_NUMBER: &str = "ERR numkeys should be greater than 0";
    let count = number(arguments.get(at)).filter(|count| *count > 0).ok_or(NO_NUMBER)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let end = count.checked_add(at + 1).filter(|end| *end < arguments.len());
    let end = end.ok_or(CommandError::Syntax)?;
    Ok((arguments.iter_from(at + 1).take(count).collect(), end))
}

/// Parses the option COUNT of ZMPOP and LMPOP, from position `at` on.
///
/// # Errors
/// There is another option, or the number is not positive.
pub fn mpop_count(arguments: Arguments<'_>, at: usize) -> Result<usize> {
    let mut count = None;
    let mut options = arguments.iter_from(at);
    while let Some(option) = options.next() {
        if count.is_some() || !option.eq_ignore_ascii_case(b"count") {
            return Err(CommandError::Syntax);
        }
        let value = number(options.next().ok_or(CommandError::Syntax)?);
        let value = value.filter(|value| *value > 0);
        count = Some(value.ok_or("ERR count should be greater than 0")?);
    }
    Ok(count.map_or(1, |count| usize::try_from(count).unwrap_or(usize::MAX)))
}

/// Parses the arguments of ZMPOP from the number of keys on, which is at position `at`: keys,
/// direction, count.
///
/// # Errors
/// One of the arguments is invalid.
pub fn zmpop_arguments(
    arguments: Arguments<'_>,
    at: usize,
) -> Result<(Vec<&[u8]>, Direction, usize)> {
    let (keys, at) = counted_keys(arguments, at)?;
    let direction = match arguments.get(at).to_ascii_lowercase().as_slice() {
        b"min" => Direction::Ascending,
        b"max" => Direction::Descending,
        _ => return Err(CommandError::Syntax),
    };
    Ok((keys, direction, mpop_count(arguments, at + 1)?))
}

/// `ZMPOP numkeys key … MIN | MAX [COUNT count]`
fn zmpop(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (keys, direction, count) = zmpop_arguments(arguments, 1)?;
    context.check_taken(&keys, ValueKind::ZSet, count)?;
    let wanted = Wanted::Members { direction, count: Some(count) };
    // Each key is a separate step; the first key that has members is used.
    for key in keys {
        if context.take(key, &wanted, out)? {
            return Ok(CommandOutcome::Done);
        }
    }
    out.null_array();
    Ok(CommandOutcome::Done)
}

fn zrandmember(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let most = context.state.settings.reply_limit();
    let draw = |count| {
        let found = context.sorted_set(arguments.get(1), |set| {
            context.check_work(sample_work(&set, count))?;
            Ok::<_, CommandError>(sample(&set, count, most))
        })?;
        found.transpose()
    };
    reply_random(arguments, out, most, b"withscores", draw, |(member, score), scores, out| {
        match scores {
            true => write_scored(member, score_of(score), out),
            false => out.bulk(member),
        }
    })
}

fn zscan(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let cursor = scan_cursor(arguments.get(2))?;
    let done: Option<Result<()>> = context.sorted_set(arguments.get(1), |set| {
        let options = ElementScan::read(arguments, Some(b"noscores"))?;
        let (next, found) = match set.0 {
            Body::Large(large) => large.scan_named(cursor, options.count),
            Body::Packed(_) => (0, crate::keyspace::sample::Sampled::all(&set)),
        };
        let is_packed = matches!(set.0, Body::Packed(packed) if !packed.is_converted());
        let mut found = found;
        options.filter(&mut found, |(member, _)| member)?;
        out.array(2);
        out.bulk(next.to_string().as_bytes());
        out.array(if options.no_values { found.len() } else { found.len() * 2 });
        for (member, score) in found {
            out.bulk(&member);
            if options.no_values {
                continue;
            }
            let score = score_of(&score);
            // Redis stores integers in a listpack as integers.
            let is_integer = is_packed && score.fract() == 0.0 && score.abs() < 9e18;
            match is_integer {
                true => out.bulk((score as i64).to_string().as_bytes()),
                false => out.bulk(double::text(score).as_bytes()),
            }
        }
        Ok(())
    })?;
    end_scan(done, out)
}
