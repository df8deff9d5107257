//! Commands that take elements of lists and sorted sets and may wait for them, see
//! [`crate::execution::blocking`].

use ordna::Direction;

use super::list::{TAKE_SLOW, end_of, lmpop_arguments};
use super::sorted_set::zmpop_arguments;
use crate::execution::command::{Command, Context, Result};
use crate::keyspace::list::End;
use crate::state::blocked::Wanted;
use crate::state::command_spec::{CommandFlags, KeyAccess, KeyPositions, NO_KEY, TWO_KEYS};
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

/// Flags of commands that wait for elements.
const WAIT: CommandFlags = TAKE_SLOW.or(CommandFlags::BLOCKING).or(CommandFlags::NOSCRIPT);
/// Flags of such commands with an argument that gives the number of keys.
const WAIT_MOVABLE: CommandFlags =
    TAKE_SLOW.or(CommandFlags::BLOCKING).or(CommandFlags::MOVABLEKEYS);
/// All arguments but the last one, which is the time limit.
const KEYS_BEFORE_TIMEOUT: KeyPositions = (1, -2, 1);

pub const OF_LISTS: &[Command] = &[
    Command::new(
        "blpop",
        -3,
        WAIT,
        KEYS_BEFORE_TIMEOUT,
        "Removes and returns the first element of the first non-empty list. Waits while all are empty.",
        |c, a, o| pop_value(c, a, o, End::Front),
    ),
    Command::new(
        "brpop",
        -3,
        WAIT,
        KEYS_BEFORE_TIMEOUT,
        "Removes and returns the last element of the first non-empty list. Waits while all are empty.",
        |c, a, o| pop_value(c, a, o, End::Back),
    ),
    Command::new(
        "blmove",
        6,
        WAIT.or(CommandFlags::DENYOOM),
        TWO_KEYS,
        "Moves an element from one end of a list to an end of another list. Waits while the list is empty.",
        |c, a, o| {
            let (from, to) = (end_of(a.get(3))?, end_of(a.get(4))?);
            move_value(c, a, o, from, to)
        },
    )
    .accesses(KeyAccess::READ_WRITE, KeyAccess::WRITE)
    .exclusive(),
    Command::new(
        "brpoplpush",
        4,
        WAIT.or(CommandFlags::DENYOOM),
        TWO_KEYS,
        "Moves the last element of a list to the front of another list. Waits while the list is empty.",
        |c, a, o| move_value(c, a, o, End::Back, End::Front),
    )
    .accesses(KeyAccess::READ_WRITE, KeyAccess::WRITE)
    .exclusive(),
    Command::new(
        "blmpop",
        -5,
        WAIT_MOVABLE,
        NO_KEY,
        "Removes and returns elements of the first non-empty list. Waits while all are empty.",
        |c, a, o| {
            let (keys, end, count) = lmpop_arguments(a, 2)?;
            c.take_or_wait(&keys, Wanted::Values { end, count: Some(count) }, a.get(1), a, o)
        },
    )
    .key_count_at(2),
];

pub const OF_SORTED_SETS: &[Command] = &[
    Command::new(
        "bzpopmin",
        -3,
        WAIT.or(CommandFlags::FAST),
        KEYS_BEFORE_TIMEOUT,
        "Removes and returns the member with the lowest score of the first non-empty sorted set. Waits while all are empty.",
        |c, a, o| pop_member(c, a, o, Direction::Ascending),
    ),
    Command::new(
        "bzpopmax",
        -3,
        WAIT.or(CommandFlags::FAST),
        KEYS_BEFORE_TIMEOUT,
        "Removes and returns the member with the highest score of the first non-empty sorted set. Waits while all are empty.",
        |c, a, o| pop_member(c, a, o, Direction::Descending),
    ),
    Command::new(
        "bzmpop",
        -5,
        WAIT_MOVABLE,
        NO_KEY,
        "Removes and returns the members with the lowest or highest scores of the first non-empty sorted set. Waits while all are empty.",
        |c, a, o| {
            let (keys, direction, count) = zmpop_arguments(a, 2)?;
            let wanted = Wanted::Members { direction, count: Some(count) };
            c.take_or_wait(&keys, wanted, a.get(1), a, o)
        },
    )
    .key_count_at(2),
];

/// Returns the keys and the last argument of a call with at least one key.
fn keys_before_timeout(arguments: Arguments<'_>) -> (Vec<&[u8]>, &[u8]) {
    let last = arguments.len().saturating_sub(1);
    (arguments.iter_from(1).take(last.saturating_sub(1)).collect(), arguments.get(last))
}

/// `BLPOP key … timeout`
fn pop_value(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    end: End,
) -> Result {
    let (keys, timeout) = keys_before_timeout(arguments);
    context.take_or_wait(&keys, Wanted::Values { end, count: None }, timeout, arguments, out)
}

/// Moves a value or waits for one. The keyspace is locked exclusively.
fn move_value(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    from: End,
    to: End,
) -> Result {
    let wanted = Wanted::Move { from, to, destination: arguments.get(2).to_vec() };
    let timeout = arguments.get(arguments.len() - 1);
    context.take_or_wait(&[arguments.get(1)], wanted, timeout, arguments, out)
}

/// `BZPOPMIN key … timeout`
fn pop_member(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    direction: Direction,
) -> Result {
    let (keys, timeout) = keys_before_timeout(arguments);
    context.take_or_wait(&keys, Wanted::Members { direction, count: None }, timeout, arguments, out)
}
