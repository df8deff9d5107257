//! `BITFIELD`: integers of any number of bits within a value.

use super::bits::{BAD_OFFSET, bit_offset};
use crate::execution::command::{Command, CommandOutcome, Context, READ, Result, UPDATE_SLOW};
use crate::state::command_spec::{Growth, KeyAccess, ONE_KEY};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

pub const COMMANDS: &[Command] = &[
    Command::new(
        "bitfield",
        -2,
        UPDATE_SLOW,
        ONE_KEY,
        "Reads and writes integers of any width within a value.",
        |context, arguments, out| bitfield(context, arguments, out, false),
    )
    .access_of(access)
    .grows(Growth::Declared(|arguments| {
        let steps = steps(arguments, false).unwrap_or_default();
        steps.iter().filter(FieldOperation::writes).map(FieldOperation::end).max().unwrap_or(0)
    })),
    Command::new(
        "bitfield_ro",
        -2,
        READ,
        ONE_KEY,
        "Reads integers of any width within a value.",
        |context, arguments, out| bitfield(context, arguments, out, true),
    ),
];

/// Returns the access that `BITFIELD` needs: without SET and INCRBY it only reads. Calls with a
/// syntax error count as writes, so that no write can pass as a read.
fn access(arguments: Arguments<'_>) -> KeyAccess {
    let mut at = 2;
    while at < arguments.len() {
        let operands = match arguments.get(at).to_ascii_lowercase().as_slice() {
            b"get" => 2,
            b"overflow" => 1,
            _ => return KeyAccess::READ_WRITE,
        };
        at += 1 + operands;
        if at > arguments.len() {
            return KeyAccess::READ_WRITE;
        }
    }
    KeyAccess::READ
}

/// The type of a field's integers, such as `i5` or `u8`.
#[derive(Clone, Copy)]
struct IntegerType {
    signed: bool,
    bits: u32,
}

impl IntegerType {
    fn parse(text: &[u8]) -> Option<Self> {
        let (sign, bits) = text.split_first()?;
        let bits = u32::try_from(number(bits)?).ok()?;
        match sign {
            b'i' if (1..=64).contains(&bits) => Some(Self { signed: true, bits }),
            b'u' if (1..=63).contains(&bits) => Some(Self { signed: false, bits }),
            _ => None,
        }
    }

    fn least(self) -> i128 {
        if self.signed { -(1 << (self.bits - 1)) } else { 0 }
    }

    fn most(self) -> i128 {
        if self.signed { (1 << (self.bits - 1)) - 1 } else { (1 << self.bits) - 1 }
    }

    /// Returns the integer of this type with the same lowest bits.
    fn wrap(self, value: i128) -> i128 {
        let value = value & ((1 << self.bits) - 1);
        if value > self.most() { value - (1 << self.bits) } else { value }
    }

    fn read(self, value: &Window<'_>, offset: usize) -> i128 {
        let bit = |at: usize| value.byte(at / 8) >> (7 - at % 8) & 1;
        let bits = offset..offset + self.bits as usize;
        self.wrap(bits.fold(0, |number, at| number << 1 | i128::from(bit(at))))
    }

    fn write(self, value: &mut Window<'_>, offset: usize, number: i128) {
        for place in 0..self.bits as usize {
            let at = offset + place;
            let bit = (number >> (self.bits as usize - 1 - place) & 1) as u8;
            let shift = 7 - at % 8;
            if let Some(byte) = value.changed.get_mut(at / 8 - value.begin) {
                *byte = *byte & !(1 << shift) | bit << shift;
            }
        }
    }
}

/// A value, with a copy of the part to which the command writes. After the end of both there are
/// zeros.
struct Window<'a> {
    value: &'a [u8],
    begin: usize,
    changed: Vec<u8>,
}

impl<'a> Window<'a> {
    /// Copies the bytes from `begin` to `end`.
    fn new(value: &'a [u8], begin: usize, end: usize) -> Self {
        let present = value.get(begin..end.min(value.len())).unwrap_or_default();
        let mut changed = Vec::with_capacity(end - begin);
        changed.extend_from_slice(present);
        changed.resize(end - begin, 0);
        Self { value, begin, changed }
    }

    fn byte(&self, at: usize) -> u8 {
        let changed = at.checked_sub(self.begin).and_then(|at| self.changed.get(at));
        changed.or_else(|| self.value.get(at)).copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy)]
enum Overflow {
    Wrap,
    Saturate,
    Fail,
}

enum FieldAction {
    Get,
    Set(i64),
    Add(i64),
}

struct FieldOperation {
    kind: IntegerType,
    offset: usize,
    action: FieldAction,
    overflow: Overflow,
}

impl FieldOperation {
    fn writes(self: &&Self) -> bool {
        !matches!(self.action, FieldAction::Get)
    }

    /// Returns the number of bytes up to its end.
    fn end(&self) -> usize {
        (self.offset + self.kind.bits as usize).div_ceil(8)
    }
}

fn steps(arguments: Arguments<'_>, read_only: bool) -> Result<Vec<FieldOperation>> {
    let mut steps = Vec::new();
    let mut overflow = Overflow::Wrap;
    let mut at = 2;
    while at < arguments.len() {
        let left = arguments.len() - at - 1;
        let name = arguments.get(at).to_ascii_lowercase();
        let (name, words) = match name.as_slice() {
            b"get" if left >= 2 => (b'g', 3),
            b"set" if left >= 3 => (b's', 4),
            b"incrby" if left >= 3 => (b'i', 4),
            b"overflow" if left >= 1 => {
                overflow = match arguments.get(at + 1).to_ascii_lowercase().as_slice() {
                    b"wrap" => Overflow::Wrap,
                    b"sat" => Overflow::Saturate,
                    b"fail" => Overflow::Fail,
                    _ => return Err("ERR Invalid OVERFLOW type specified".into()),
                };
                at += 2;
                continue;
            }
            _ => return Err(CommandError::Syntax),
        };
        let kind = IntegerType::parse(arguments.get(at + 1)).ok_or(
            "ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.",
        )?;
        let offset = match arguments.get(at + 2) {
            [b'#', index @ ..] => bit_offset(index, kind.bits as usize)?,
            offset => bit_offset(offset, 1)?,
        };
        if offset + kind.bits as usize > ordna::value::MAX_LEN * 8 {
            return Err(BAD_OFFSET.into());
        }
        let operand = || number(arguments.get(at + 3)).ok_or(CommandError::NotAnInteger);
        let action = match name {
            b'g' => FieldAction::Get,
            _ if read_only => {
                return Err("ERR BITFIELD_RO only supports the GET subcommand".into());
            }
            b's' => FieldAction::Set(operand()?),
            _ => FieldAction::Add(operand()?),
        };
        steps.push(FieldOperation { kind, offset, action, overflow });
        at += words;
    }
    Ok(steps)
}

/// Executes a step and returns its reply.
fn run(step: &FieldOperation, value: &mut Window<'_>) -> Option<i128> {
    let FieldOperation { kind, offset, .. } = *step;
    let old = kind.read(value, offset);
    let (new, reply) = match step.action {
        FieldAction::Get => return Some(old),
        // A negative number becomes a large number in an unsigned field.
        FieldAction::Set(new) if !kind.signed => (i128::from(new as u64), Some(old)),
        FieldAction::Set(new) => (i128::from(new), Some(old)),
        FieldAction::Add(by) => (old + i128::from(by), None),
    };
    let fits = (kind.least()..=kind.most()).contains(&new);
    let new = match step.overflow {
        _ if fits => new,
        Overflow::Wrap => kind.wrap(new),
        Overflow::Saturate => new.clamp(kind.least(), kind.most()),
        Overflow::Fail => return None,
    };
    kind.write(value, offset, new);
    Some(reply.unwrap_or(new))
}

fn bitfield(
    context: &mut Context<'_>,
    arguments: Arguments<'_>,
    out: &mut Replies,
    read_only: bool,
) -> Result {
    let steps = steps(arguments, read_only)?;
    let writes = steps.iter().filter(FieldOperation::writes);
    let begin = writes.clone().map(|step| step.offset / 8).min();
    let longest = writes.map(FieldOperation::end).max();
    let mut replies = Vec::new();
    match begin.zip(longest) {
        None => {
            let read = |value: &[u8]| {
                let value = Window::new(value, 0, 0);
                steps.iter().map(|step| Some(step.kind.read(&value, step.offset))).collect()
            };
            let found = context.string(arguments.get(1), read)?;
            replies = found.unwrap_or_else(|| read(&[]));
        }
        Some((begin, longest)) => {
            context.check_growth(arguments.get(1), longest)?;
            let mut execute = |string: &[u8]| {
                let mut value = Window::new(string, begin, longest);
                replies = steps.iter().map(|step| run(step, &mut value)).collect();
                value.changed
            };
            // As in Redis, the key counts as changed only if some bit changes.
            let is_kept = |string: &[u8]| {
                let changed = execute(string);
                string.get(begin..longest) == Some(changed.as_slice())
            };
            if context.string(arguments.get(1), is_kept)? != Some(true) {
                context.splice(arguments.get(1), |string| (begin, execute(string)))?;
            }
        }
    }
    out.array(replies.len());
    for reply in replies {
        match reply {
            Some(number) => out.integer(number as i64),
            None => out.null(),
        }
    }
    Ok(CommandOutcome::Done)
}
