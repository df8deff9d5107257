//! Commands that read or write parts of values.
//!
//! A write that extends a value takes time in proportion to the bytes written, amortized, because
//! the store reserves spare room after the value. `SETRANGE` within a value copies the value.

use ordna::value;

use crate::execution::command::{
    Command, CommandOutcome, Context, READ_SLOW, Result, WRITE, WRITE_SLOW,
};
use crate::state::command_spec::{Growth, ONE_KEY, TWO_KEYS};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[
    Command::new(
        "append",
        3,
        WRITE,
        ONE_KEY,
        "Appends to the value of a key. Creates the key if it does not exist.",
        append,
    ),
    Command::new(
        "getrange",
        4,
        READ_SLOW,
        ONE_KEY,
        "Returns the part of a value between two offsets.",
        getrange,
    ),
    Command::new(
        "substr",
        4,
        READ_SLOW,
        ONE_KEY,
        "Returns the part of a value between two offsets.",
        getrange,
    ),
    Command::new(
        "setrange",
        4,
        WRITE_SLOW,
        ONE_KEY,
        "Overwrites the part of a value at an offset. Fills a gap with zero bytes.",
        setrange,
    )
    .grows(Growth::Declared(|arguments| {
        let offset = number(arguments.get(2)).and_then(|offset| usize::try_from(offset).ok());
        offset.map_or(0, |offset| offset.min(value::MAX_LEN))
    })),
    Command::new(
        "lcs",
        -3,
        READ_SLOW,
        TWO_KEYS,
        "Returns the longest common subsequence of two values.",
        lcs,
    )
    .exclusive_if_several_keys(),
];

fn append(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, tail) = (arguments.get(1), arguments.get(2));
    // If the result is even one byte too long, the store refuses it, and the key is unchanged.
    out.count(context.splice(key, |string| (string.len(), tail))?);
    Ok(CommandOutcome::Done)
}

/// Returns the range of bytes from a first to a last position, of which negative ones count from
/// the end; `None` if the range is empty.
pub fn span(start: i64, end: i64, len: usize) -> Option<(usize, usize)> {
    if start < 0 && end < 0 && start > end {
        return None;
    }
    clamped_span(start, end, len)
}

/// Works like [`span`], except that a negative position before the beginning counts as 0.
pub fn clamped_span(start: i64, end: i64, len: usize) -> Option<(usize, usize)> {
    let len = i64::try_from(len).ok()?;
    let from_end = |at: i64| if at < 0 { at.saturating_add(len).max(0) } else { at };
    let (start, end) = (from_end(start), from_end(end).min(len - 1));
    let filled = start <= end && len > 0;
    filled.then(|| (usize::try_from(start).unwrap_or(0), usize::try_from(end).unwrap_or(0)))
}

fn getrange(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let start = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    let end = number(arguments.get(3)).ok_or(CommandError::NotAnInteger)?;
    let present = context.string(arguments.get(1), |value| {
        out.bulk(span(start, end, value.len()).map_or(&[], |(start, end)| &value[start..=end]));
    })?;
    if present.is_none() {
        out.bulk(b"");
    }
    Ok(CommandOutcome::Done)
}

fn setrange(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, piece) = (arguments.get(1), arguments.get(3));
    let offset = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    let offset = usize::try_from(offset).map_err(|_| "ERR offset is out of range")?;
    if piece.is_empty() {
        out.count(context.string(key, <[u8]>::len)?.unwrap_or(0));
        return Ok(CommandOutcome::Done);
    }
    if offset.checked_add(piece.len()).is_none_or(|end| end > value::MAX_LEN) {
        // As in Redis, the type is checked first.
        context.string(key, |_| ())?;
        return Err(CommandError::ValueTooLong);
    }
    context.check_growth(key, offset + piece.len())?;
    out.count(context.splice(key, |_| (offset, piece))?);
    Ok(CommandOutcome::Done)
}

/// Maximum number of cells in the table of LCS. This many take some tens of milliseconds.
const MOST_CELLS: usize = 16 << 20;

fn lcs(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let value = |at: usize| {
        let value = context.value(arguments.get(at)).map(Option::unwrap_or_default);
        value.map_err(|_| "ERR The specified keys must contain string values")
    };
    let (mut a, mut b) = (value(1)?, value(2)?);
    if a.is_empty() || b.is_empty() {
        // The values have nothing in common, so no table is needed.
        (a, b) = (Vec::new(), Vec::new());
    }
    let (mut only_len, mut index, mut with_len, mut shortest) = (false, false, false, 0);
    let mut options = arguments.iter_from(3);
    while let Some(option) = options.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"len" => only_len = true,
            b"idx" => index = true,
            b"withmatchlen" => with_len = true,
            b"minmatchlen" => {
                let length = number(options.next().ok_or(CommandError::Syntax)?)
                    .ok_or(CommandError::NotAnInteger)?;
                shortest = usize::try_from(length).unwrap_or(0);
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    if only_len && index {
        return Err("ERR If you want both the length and indexes, please just use IDX.".into());
    }
    if (a.len() + 1).saturating_mul(b.len() + 1) > MOST_CELLS {
        return Err(
            "ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len".into()
        );
    }
    // `lengths[i][j]` is the result for the first i bytes of a and the first j bytes of b.
    let width = b.len() + 1;
    let mut lengths = vec![0_u32; (a.len() + 1) * width];
    for (i, byte) in a.iter().enumerate() {
        for (j, other) in b.iter().enumerate() {
            let (above, here) = (i * width + j, (i + 1) * width + j + 1);
            lengths[here] = if byte == other {
                lengths[above] + 1
            } else {
                lengths[above + 1].max(lengths[here - 1])
            };
        }
    }
    let total = lengths[a.len() * width + b.len()] as usize;
    if only_len {
        out.count(total);
        return Ok(CommandOutcome::Done);
    }
    // The walk goes from the end to the beginning, as in Redis. Of two equally good steps it takes
    // the one in b.
    let (mut i, mut j) = (a.len(), b.len());
    let mut common = Vec::new();
    // For each run of common bytes, its positions in a and b, and its length.
    let mut runs: Vec<(usize, usize, usize)> = Vec::new();
    while i > 0 && j > 0 {
        if a[i - 1] == b[j - 1] {
            (i, j) = (i - 1, j - 1);
            common.push(a[i]);
            match runs.last_mut() {
                Some(run) if run.0 == i + 1 && run.1 == j + 1 => *run = (i, j, run.2 + 1),
                _ => runs.push((i, j, 1)),
            }
        } else if lengths[(i - 1) * width + j] > lengths[i * width + j - 1] {
            i -= 1;
        } else {
            j -= 1;
        }
    }
    if !index {
        common.reverse();
        out.bulk(&common);
        return Ok(CommandOutcome::Done);
    }
    runs.retain(|run| run.2 >= shortest);
    out.map(2);
    out.bulk(b"matches");
    out.array(runs.len());
    for (a, b, length) in runs {
        out.array(2 + usize::from(with_len));
        for start in [a, b] {
            out.array(2);
            out.count(start);
            out.count(start + length - 1);
        }
        if with_len {
            out.count(length);
        }
    }
    out.bulk(b"len");
    out.count(total);
    Ok(CommandOutcome::Done)
}
