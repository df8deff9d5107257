//! Commands on the bits of values. Bit 0 is the highest of the first byte.

use std::borrow::Borrow;

use ordna::Put;
use ordna::{Change, value};

use super::substrings::{clamped_span, span};
use crate::execution::command::{
    Command, CommandOutcome, Context, READ, READ_SLOW, Result, UPDATE_SLOW, WRITE_SLOW,
};
use crate::keyspace::stored_value::{self, Packed};
use crate::state::command_spec::{Growth, KeyAccess, KeyPositions, ONE_KEY};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

/// The target and the sources of BITOP.
const FROM_SECOND: KeyPositions = (2, -1, 1);

pub const COMMANDS: &[Command] = &[
    Command::new(
        "setbit",
        4,
        UPDATE_SLOW,
        ONE_KEY,
        "Sets the bit at an offset and returns its old value.",
        setbit,
    )
    .grows(Growth::Declared(|arguments| bit_offset(arguments.get(2), 1).unwrap_or(0) / 8)),
    Command::new("getbit", 3, READ, ONE_KEY, "Returns the bit at an offset.", getbit),
    Command::new(
        "bitcount",
        -2,
        READ_SLOW,
        ONE_KEY,
        "Counts the bits of a value that are 1.",
        bitcount,
    ),
    Command::new(
        "bitpos",
        -3,
        READ_SLOW,
        ONE_KEY,
        "Returns the position of the first bit that is 0 or 1.",
        bitpos,
    ),
    Command::new(
        "bitop",
        -4,
        WRITE_SLOW,
        FROM_SECOND,
        "Combines values bitwise by AND, OR, XOR or NOT, and stores the result.",
        bitop,
    )
    .accesses(KeyAccess::WRITE, KeyAccess::READ)
    .grows(Growth::Copies)
    .exclusive_if_several_keys(),
];

pub const BAD_OFFSET: &str = "ERR bit offset is not an integer or out of range";

/// Returns a position of a bit within the longest value.
pub fn bit_offset(text: &[u8], scale: usize) -> Result<usize> {
    let offset = number(text).and_then(|offset| usize::try_from(offset).ok());
    let offset = offset.and_then(|offset| offset.checked_mul(scale));
    offset.filter(|offset| offset / 8 < value::MAX_LEN).ok_or_else(|| BAD_OFFSET.into())
}

fn setbit(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let offset = bit_offset(arguments.get(2), 1)?;
    let bit = match number(arguments.get(3)) {
        Some(bit @ 0..=1) => bit as u8,
        _ => return Err("ERR bit is not an integer or out of range".into()),
    };
    let (at, shift) = (offset / 8, 7 - offset % 8);
    let is_set = |string: &[u8]| string.get(at).is_some_and(|byte| byte >> shift & 1 == bit);
    if context.string(arguments.get(1), is_set)? == Some(true) {
        // As in Redis, setting a bit to its present value does not count as a change of the key.
        out.integer(i64::from(bit));
        return Ok(CommandOutcome::Done);
    }
    context.check_growth(arguments.get(1), at + 1)?;
    let mut old = 0;
    context.splice(arguments.get(1), |string| {
        let byte = string.get(at).copied().unwrap_or(0);
        old = byte >> shift & 1;
        (at, [byte & !(1 << shift) | bit << shift])
    })?;
    out.integer(i64::from(old));
    Ok(CommandOutcome::Done)
}

fn getbit(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let offset = bit_offset(arguments.get(2), 1)?;
    let bit = context.string(arguments.get(1), |value| {
        value.get(offset / 8).map_or(0, |byte| byte >> (7 - offset % 8) & 1)
    })?;
    out.integer(i64::from(bit.unwrap_or(0)));
    Ok(CommandOutcome::Done)
}

/// Returns whether positions count bits (`BIT`) rather than bytes (`BYTE`).
fn unit(argument: Option<&[u8]>) -> Result<bool> {
    match argument {
        None => Ok(false),
        Some(unit) if unit.eq_ignore_ascii_case(b"byte") => Ok(false),
        Some(unit) if unit.eq_ignore_ascii_case(b"bit") => Ok(true),
        Some(_) => Err(CommandError::Syntax),
    }
}

/// Returns bits `first` to `last` of a byte; the other bits are zeros.
fn masked(byte: u8, first: usize, last: usize) -> u8 {
    byte & (0xFF >> first) & (0xFF_u16 << (7 - last)) as u8
}

/// Returns the bytes between two bits of a value, each with its first and last bit.
fn bytes_of(start: usize, end: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let bits = move |byte: usize| {
        let first = if byte == start / 8 { start % 8 } else { 0 };
        let last = if byte == end / 8 { end % 8 } else { 7 };
        (byte, first, last)
    };
    (start / 8..=end / 8).map(bits)
}

/// Returns the range of bits between a first and a last position in bytes or bits.
fn bit_span(
    span: fn(i64, i64, usize) -> Option<(usize, usize)>,
    (start, end): (i64, i64),
    bits: bool,
    len: usize,
) -> Option<(usize, usize)> {
    if bits {
        return span(start, end, len * 8);
    }
    span(start, end, len).map(|(start, end)| (start * 8, end * 8 + 7))
}

fn bitcount(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let asked = || match arguments.len() {
        2 => Ok((0, -1, false)),
        4 | 5 => {
            let start = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
            let end = number(arguments.get(3)).ok_or(CommandError::NotAnInteger)?;
            // As in Redis, the unit is not parsed if the range is empty.
            let is_empty = start < 0 && end < 0 && start > end;
            let unit = match arguments.len() {
                5 if !is_empty => unit(Some(arguments.get(4)))?,
                _ => false,
            };
            Ok((start, end, unit))
        }
        _ => Err(CommandError::Syntax),
    };
    let count = context.string(arguments.get(1), |value| {
        // As in Redis, the options are not parsed if the key is absent.
        let (start, end, bits) = asked()?;
        let Some((start, end)) = bit_span(span, (start, end), bits, value.len()) else {
            return Ok(0);
        };
        let ones = |(at, first, last): (usize, usize, usize)| {
            masked(value[at], first, last).count_ones() as usize
        };
        Ok::<usize, CommandError>(bytes_of(start, end).map(ones).sum())
    })?;
    out.count(count.transpose()?.unwrap_or(0));
    Ok(CommandOutcome::Done)
}

fn bitpos(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let bit = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    if bit != 0 && bit != 1 {
        return Err("ERR The bit argument must be 1 or 0.".into());
    }
    let position = |at: usize| number(arguments.get(at)).ok_or(CommandError::NotAnInteger);
    let asked = || match arguments.len() {
        3 => Ok((0, None, false)),
        4 => Ok((position(3)?, None, false)),
        5 | 6 => {
            let start = position(3)?;
            let bits = unit((arguments.len() == 6).then(|| arguments.get(5)))?;
            Ok((start, Some(position(4)?), bits))
        }
        _ => Err(CommandError::Syntax),
    };
    let found = context.string(arguments.get(1), |value| {
        // As in Redis, the options are not parsed if the key is absent.
        let (start, end, bits) = asked()?;
        let asked = (start, end.unwrap_or(-1));
        let Some((first, last)) = bit_span(clamped_span, asked, bits, value.len()) else {
            return Ok(None);
        };
        let wanted = |byte: u8| if bit == 1 { byte } else { !byte };
        let hit = |(at, first, last): (usize, usize, usize)| {
            let byte = masked(wanted(value[at]), first, last);
            (byte != 0).then(|| at * 8 + byte.leading_zeros() as usize)
        };
        let found = bytes_of(first, last).find_map(hit);
        // Without an end, the value counts as followed by zeros.
        let behind = (bit == 0 && end.is_none()).then_some(value.len() * 8);
        Ok::<_, CommandError>(found.or(behind))
    })?;
    out.integer(match found.transpose()? {
        // Every bit of an absent key is 0.
        None => -bit,
        Some(None) => -1,
        Some(Some(at)) => at as i64,
    });
    Ok(CommandOutcome::Done)
}

/// The operations of BITOP. NOT has one source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Combination {
    And,
    Or,
    Xor,
    Not,
}

/// Combines the beginning of a result with a source that is not longer, eight bytes at a time.
fn fold(result: &mut [u8], source: &[u8], combine: impl Fn(u64, u64) -> u64) {
    const WORD: usize = size_of::<u64>();
    let (words, rest) = result[..source.len()].as_chunks_mut::<WORD>();
    let (others, others_rest) = source.as_chunks::<WORD>();
    for (word, other) in words.iter_mut().zip(others) {
        *word = combine(u64::from_ne_bytes(*word), u64::from_ne_bytes(*other)).to_ne_bytes();
    }
    let byte = |a: u8, b: u8| combine(u64::from(a), u64::from(b)) as u8;
    rest.iter_mut().zip(others_rest).for_each(|(a, b)| *a = byte(*a, *b));
}

fn bitop(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let combination = match arguments.get(1).to_ascii_lowercase().as_slice() {
        b"and" => Combination::And,
        b"or" => Combination::Or,
        b"xor" => Combination::Xor,
        b"not" if arguments.len() == 4 => Combination::Not,
        b"not" => {
            return Err("ERR BITOP NOT must be called with a single source key.".into());
        }
        _ => return Err(CommandError::Syntax),
    };
    // Finds the longest source, and checks that all are strings, before memory is allocated.
    let (mut len, mut bytes) = (0, 0);
    for key in arguments.iter_from(3) {
        let of_key = stored_string(context, key, <[u8]>::len)?.unwrap_or(0);
        (len, bytes) = (len.max(of_key), bytes + of_key);
    }
    // An element of a collection takes as much time as some hundred bytes.
    context.check_work(bytes >> 10)?;
    context.check_growth(arguments.get(2), len)?;
    // The sources are combined in place, one after the other.
    let mut result = vec![0; len];
    for (at, key) in arguments.iter_from(3).enumerate() {
        let mut fold = |source: &[u8]| match (at, combination) {
            (0, _) => result[..source.len()].copy_from_slice(source),
            (_, Combination::And) => {
                fold(&mut result, source, |a, b| a & b);
                result[source.len()..].fill(0);
            }
            (_, Combination::Or) => fold(&mut result, source, |a, b| a | b),
            (_, Combination::Xor | Combination::Not) => fold(&mut result, source, |a, b| a ^ b),
        };
        if stored_string(context, key, &mut fold)?.is_none() {
            context.note_miss(key, true);
            fold(&[]);
        }
    }
    if combination == Combination::Not {
        result.iter_mut().for_each(|byte| *byte = !*byte);
    }
    let result = Packed::new(result);
    context.commit(|context| match len {
        0 => context.remove(arguments.get(2)).map(drop),
        _ => {
            context.modify_stored(arguments.get(2), |_| Change::Put(Put::forever(result.borrow())))
        }
    })?;
    out.count(len);
    Ok(CommandOutcome::Done)
}

/// Calls `read` with the string of a key, in the state that the command reads.
fn stored_string<R>(
    context: &Context<'_>,
    key: &[u8],
    read: impl FnOnce(&[u8]) -> R,
) -> Result<Option<R>> {
    match context.stored(key, |stored| stored_value::string(stored).map(read)) {
        Some(None) => Err(CommandError::WrongType),
        found => Ok(found.flatten()),
    }
}
