//! `DUMP` and `RESTORE`: values in the format of Redis' RDB files.
//!
//! A payload consists of the type (see the constants below), the value, the version of the format
//! (two bytes) and a CRC-64; all numbers are little-endian. A string is a length and that many
//! bytes, or an integer of 1, 2 or 4 bytes, or text compressed with LZF. `RESTORE` reads such text;
//! `DUMP` never writes it.

use std::collections::HashSet;
use std::ops::ControlFlow;

use ordna::checksum::crc64_redis;
use ordna::{Change, Direction, Put, value};

use crate::commands::hash_expiry::LATEST;
use crate::execution::command::{
    Command, CommandOutcome, Context, READ_SLOW, Result, WRITE_SLOW, ok,
};
use crate::keyspace::collections::Body;
use crate::keyspace::collections::head::NEVER;
use crate::keyspace::edits::build::NewValue;
use crate::keyspace::edits::hash::HashView;
use crate::keyspace::expiring_hash::{self, DeadlineMap};
use crate::keyspace::listpack;
use crate::keyspace::sample::Sampled;
use crate::keyspace::sorted_set::{EntryBounds, Scored};
use crate::keyspace::stored_value::{self, Packed};
use crate::keyspace::value_kind::ValueKind;
use crate::state::command_spec::{CommandFlags, Growth, ONE_KEY};
use crate::wire::double;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

/// The version that Redis 7.0 writes, and the newest that it can read.
const VERSION: u16 = 10;
const STRING: u8 = 0;
const HASH: u8 = 4;
const HASH_LISTPACK: u8 = 16;
const LIST: u8 = 1;
const LIST_QUICKLIST: u8 = 18;
const SET: u8 = 2;
const SET_INTSET: u8 = 11;
/// The version of Redis 7.4, the first with hashes with fields that expire.
const VERSION_OF_DEADLINES: u16 = 12;
/// A hash with fields that expire: the first deadline and the number of fields; then for each field
/// the milliseconds from that deadline to its own plus 1 (0 if it does not expire), the field and
/// the value.
const HASH_DEADLINES: u8 = 24;
/// The same as a listpack of field, value and deadline (0 if it does not expire).
const HASH_LISTPACK_DEADLINES: u8 = 25;
/// A sorted set with scores of eight bytes.
const ZSET: u8 = 5;
const ZSET_LISTPACK: u8 = 17;
/// The kinds of nodes of a quicklist: a single value, or a listpack.
const NODE_PLAIN: usize = 1;
const NODE_PACKED: usize = 2;
/// Size in bytes of a node that `DUMP` writes, unless a single value is longer: Redis' default.
const NODE_BYTES: usize = 8 << 10;
/// Maximum number of strings of a collection that `RESTORE` reads: a second of work without other
/// commands.
const MOST_TEXTS: usize = 1 << 21;
/// Maximum total size in bytes of the strings of a collection that `RESTORE` reads, because a short
/// payload may expand to many.
const MOST_EXPANDED: usize = 256 << 20;
/// Maximum size in bytes of a listpack that `RESTORE` reads. Redis writes none that is longer than
/// some KiB.
const MOST_LISTPACK: usize = 32 << 20;

pub const COMMANDS: &[Command] = &[
    Command::new(
        "dump",
        2,
        READ_SLOW,
        ONE_KEY,
        "Returns the value of a key in the serialization format of Redis.",
        dump,
    ),
    Command::new(
        "restore",
        -4,
        WRITE_SLOW,
        ONE_KEY,
        "Sets a key to a value that DUMP has returned.",
        restore,
    )
    .with(CommandFlags::DANGEROUS)
    .grows(Growth::Declared(|arguments| declared(arguments.get(3)).min(value::MAX_LEN))),
];

/// A value in the form of a payload.
#[derive(Debug, PartialEq)]
enum Dumped {
    String(Vec<u8>),
    /// The fields, each followed by its value.
    Hash {
        texts: Vec<Vec<u8>>,
        is_list: bool,
        deadlines: DeadlineMap,
    },
    List(Vec<Vec<u8>>),
    Set(Vec<Vec<u8>>),
    SortedSet {
        members: Vec<Scored>,
        is_list: bool,
    },
}

/// Encodes a value as a payload.
fn encode(value: &Dumped) -> Vec<u8> {
    let (mut payload, mut version) = (Vec::new(), VERSION);
    match value {
        Dumped::Hash { texts, deadlines, .. } if !deadlines.is_empty() => {
            version = VERSION_OF_DEADLINES;
            payload.push(HASH_DEADLINES);
            let first = expiring_hash::soonest(deadlines);
            payload.extend(first.to_le_bytes());
            put_length(&mut payload, texts.len() / 2);
            for pair in texts.chunks_exact(2) {
                let after = deadlines.get(&pair[0]).map_or(0, |deadline| deadline - first + 1);
                put_length(&mut payload, usize::try_from(after).unwrap_or(usize::MAX));
                pair.iter().for_each(|text| put_string(&mut payload, text));
            }
        }
        Dumped::Hash { texts, is_list: false, .. } => {
            payload.push(HASH);
            put_length(&mut payload, texts.len() / 2);
            texts.iter().for_each(|text| put_string(&mut payload, text));
        }
        Dumped::Hash { texts, is_list: true, .. } => {
            payload.push(HASH_LISTPACK);
            let list = listpack::encode(texts.iter().map(Vec::as_slice));
            put_length(&mut payload, list.len());
            payload.extend(list);
        }
        Dumped::String(text) => {
            payload.push(STRING);
            put_string(&mut payload, text);
        }
        Dumped::List(values) => {
            payload.push(LIST_QUICKLIST);
            let mut nodes: Vec<&[Vec<u8>]> = Vec::new();
            let mut rest = values.as_slice();
            while !rest.is_empty() {
                let mut bytes = 0;
                let fits = rest.iter().take_while(|value| {
                    bytes += value.len() + 11;
                    bytes <= NODE_BYTES
                });
                let (node, left) = rest.split_at(fits.count().max(1));
                nodes.push(node);
                rest = left;
            }
            put_length(&mut payload, nodes.len());
            for node in nodes {
                put_length(&mut payload, NODE_PACKED);
                let list = listpack::encode(node.iter().map(Vec::as_slice));
                put_length(&mut payload, list.len());
                payload.extend(list);
            }
        }
        Dumped::Set(members) => {
            payload.push(SET);
            put_length(&mut payload, members.len());
            members.iter().for_each(|member| put_string(&mut payload, member));
        }
        Dumped::SortedSet { members, is_list: true } => {
            payload.push(ZSET_LISTPACK);
            let texts: Vec<Vec<u8>> = members
                .iter()
                .flat_map(|(member, score)| [member.clone(), score_text(*score).into_bytes()])
                .collect();
            let list = listpack::encode(texts.iter().map(Vec::as_slice));
            put_length(&mut payload, list.len());
            payload.extend(list);
        }
        Dumped::SortedSet { members, is_list: false } => {
            payload.push(ZSET);
            put_length(&mut payload, members.len());
            for (member, score) in members {
                put_string(&mut payload, member);
                payload.extend(score.to_le_bytes());
            }
        }
    }
    payload.extend(version.to_le_bytes());
    let crc = crc64_redis(&payload);
    payload.extend(crc.to_le_bytes());
    payload
}

/// Formats a score for a listpack of Redis: as an integer if it is one.
fn score_text(score: f64) -> String {
    match score.fract() == 0.0 && score.abs() < 9e18 {
        true => (score as i64).to_string(),
        false => double::text(score),
    }
}

fn put_length(payload: &mut Vec<u8>, len: usize) {
    match len {
        ..64 => payload.push(len as u8),
        64..16_384 => payload.extend([0x40 | (len >> 8) as u8, len as u8]),
        _ => match u32::try_from(len) {
            Ok(len) => {
                payload.push(0x80);
                payload.extend(len.to_be_bytes());
            }
            Err(_) => {
                payload.push(0x81);
                payload.extend((len as u64).to_be_bytes());
            }
        },
    }
}

fn put_string(payload: &mut Vec<u8>, value: &[u8]) {
    let small = number(value).filter(|_| value.len() <= 11);
    match small.and_then(|n| i32::try_from(n).ok()) {
        Some(n) => {
            if let Ok(n) = i8::try_from(n) {
                payload.extend([0xC0, n as u8]);
            } else if let Ok(n) = i16::try_from(n) {
                payload.push(0xC1);
                payload.extend(n.to_le_bytes());
            } else {
                payload.push(0xC2);
                payload.extend(n.to_le_bytes());
            }
        }
        None => {
            put_length(payload, value.len());
            payload.extend(value);
        }
    }
}

/// Removes `count` bytes from the front and returns them.
fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

/// Returns a length, or the number of a special encoding.
fn length(rest: &mut &[u8]) -> Option<std::result::Result<usize, u8>> {
    let first = take(rest, 1)?[0];
    let wide: u64 = match first >> 6 {
        0 => u64::from(first),
        1 => u64::from(first & 0x3F) << 8 | u64::from(take(rest, 1)?[0]),
        3 => return Some(Err(first & 0x3F)),
        _ if first == 0x80 => u32::from_be_bytes(take(rest, 4)?.try_into().ok()?).into(),
        _ if first == 0x81 => u64::from_be_bytes(take(rest, 8)?.try_into().ok()?),
        _ => return None,
    };
    usize::try_from(wide).ok().map(Ok)
}

/// Decompresses LZF: runs of literal bytes, and copies of earlier output.
fn decompress(packed: &[u8], len: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut rest = packed;
    while let Some(control) = take(&mut rest, 1) {
        let control = usize::from(control[0]);
        if control < 32 {
            out.extend_from_slice(take(&mut rest, control + 1)?);
        } else {
            let mut count = control >> 5;
            if count == 7 {
                count += usize::from(take(&mut rest, 1)?[0]);
            }
            let back = (control & 0x1F) << 8 | usize::from(take(&mut rest, 1)?[0]);
            let from = out.len().checked_sub(back + 1)?;
            for at in from..from + count + 2 {
                out.push(out[at]);
            }
        }
        if out.len() > len {
            return None;
        }
    }
    (out.len() == len).then_some(out)
}

/// Removes a string of at most `most` expanded bytes from the front and returns it.
fn take_string(rest: &mut &[u8], most: usize) -> Option<Vec<u8>> {
    Some(match length(rest)? {
        Ok(len) => take(rest, len)?.to_vec(),
        Err(0) => i8::from_le_bytes(take(rest, 1)?.try_into().ok()?).to_string().into(),
        Err(1) => i16::from_le_bytes(take(rest, 2)?.try_into().ok()?).to_string().into(),
        Err(2) => i32::from_le_bytes(take(rest, 4)?.try_into().ok()?).to_string().into(),
        Err(3) => {
            let packed = length(rest)?.ok()?;
            let len = length(rest)?.ok().filter(|len| *len <= most)?;
            decompress(take(rest, packed)?, len)?
        }
        Err(_) => return None,
    })
}

/// Skips a string. Returns the number of bytes that it declares.
fn skip_string(rest: &mut &[u8]) -> Option<usize> {
    let (stored, declared) = match length(rest)? {
        Ok(len) => (len, len),
        Err(number @ 0..=2) => (1_usize << number, 0),
        // Compressed text: its length, then that of the expanded text.
        Err(3) => (length(rest)?.ok()?, length(rest)?.ok()?),
        Err(_) => return None,
    };
    take(rest, stored).map(|_| declared)
}

/// Returns the total size of all strings that a payload declares, without expanding them.
/// O(strings).
fn declared(payload: &[u8]) -> usize {
    let Some((kind, mut rest)) = payload.split_first() else { return 0 };
    // Bytes before the items, and for each item: whether a number precedes it, its number of
    // strings, and the bytes after them.
    let (before, is_numbered, strings, after) = match *kind {
        STRING | HASH_LISTPACK | ZSET_LISTPACK | SET_INTSET => {
            return skip_string(&mut rest).unwrap_or(0);
        }
        HASH_LISTPACK_DEADLINES => {
            rest = rest.get(8..).unwrap_or_default();
            return skip_string(&mut rest).unwrap_or(0);
        }
        LIST | SET => (0, false, 1, 0),
        LIST_QUICKLIST => (0, true, 1, 0),
        HASH => (0, false, 2, 0),
        HASH_DEADLINES => (8, true, 2, 0),
        ZSET => (0, false, 1, 8),
        _ => return 0,
    };
    let item = |rest: &mut &[u8]| {
        if is_numbered {
            length(rest)?.ok()?;
        }
        let mut bytes = 0_usize;
        for _ in 0..strings {
            bytes = bytes.saturating_add(skip_string(rest)?);
        }
        take(rest, after).map(|_| bytes)
    };
    let count = take(&mut rest, before).and_then(|_| length(&mut rest)?.ok()).unwrap_or(0);
    let mut bytes = 0_usize;
    for _ in 0..count {
        // Invalid data that follows is rejected when it is decoded.
        let Some(more) = item(&mut rest) else { break };
        bytes = bytes.saturating_add(more);
    }
    bytes.min(MOST_EXPANDED)
}

/// Decodes the value of a payload whose checksum is right.
fn decode(payload: &[u8]) -> Option<Dumped> {
    let (kind, mut rest) = payload.split_first()?;
    let value = match *kind {
        STRING => Dumped::String(take_string(&mut rest, value::MAX_LEN)?),
        HASH => {
            let texts = take_strings(&mut rest, 2)?;
            Dumped::Hash { texts, is_list: false, deadlines: DeadlineMap::new() }
        }
        HASH_LISTPACK => {
            let texts = listpack::decode(&take_string(&mut rest, MOST_LISTPACK)?, MOST_TEXTS)?;
            Dumped::Hash { texts, is_list: true, deadlines: DeadlineMap::new() }
        }
        HASH_DEADLINES => {
            let first = u64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?);
            let count = length(&mut rest)?.ok()?;
            let count = Some(count).filter(|count| *count <= (rest.len() / 3).min(MOST_TEXTS))?;
            let (mut texts, mut deadlines) = (Vec::with_capacity(2 * count), DeadlineMap::new());
            let mut left = MOST_EXPANDED;
            for _ in 0..count {
                let after = length(&mut rest)?.ok()? as u64;
                for _ in 0..2 {
                    let text = take_string(&mut rest, left)?;
                    left = left.checked_sub(text.len())?;
                    texts.push(text);
                }
                if let Some(after) = after.checked_sub(1) {
                    let deadline = first.checked_add(after).filter(|at| *at <= LATEST)?;
                    deadlines.insert(texts[texts.len() - 2].clone(), deadline);
                }
            }
            Dumped::Hash { texts, is_list: false, deadlines }
        }
        HASH_LISTPACK_DEADLINES => {
            take(&mut rest, 8)?;
            let list = listpack::decode(&take_string(&mut rest, MOST_LISTPACK)?, MOST_TEXTS)?;
            let (mut texts, mut deadlines) = (Vec::new(), DeadlineMap::new());
            for field in list.chunks(3) {
                let [name, value, deadline] = field else { return None };
                texts.extend([name.clone(), value.clone()]);
                let deadline = u64::try_from(number(deadline)?).ok()?;
                if deadline > LATEST {
                    return None;
                }
                if deadline > 0 {
                    deadlines.insert(name.clone(), deadline);
                }
            }
            Dumped::Hash { texts, is_list: true, deadlines }
        }
        LIST => Dumped::List(take_strings(&mut rest, 1)?),
        LIST_QUICKLIST => {
            let nodes = length(&mut rest)?.ok()?;
            let (mut values, mut left) = (Vec::new(), MOST_EXPANDED);
            for _ in 0..nodes {
                let container = length(&mut rest)?.ok()?;
                let node = take_string(&mut rest, left)?;
                left = left.checked_sub(node.len())?;
                match container {
                    NODE_PLAIN => {
                        MOST_TEXTS.checked_sub(values.len() + 1)?;
                        values.push(node);
                    }
                    NODE_PACKED => {
                        let most = MOST_TEXTS.checked_sub(values.len())?;
                        values.append(&mut listpack::decode(&node, most)?);
                    }
                    _ => return None,
                }
            }
            Dumped::List(values)
        }
        SET => Dumped::Set(take_strings(&mut rest, 1)?),
        SET_INTSET => Dumped::Set(integers(&take_string(&mut rest, MOST_LISTPACK)?)?),
        ZSET => {
            let count = length(&mut rest)?.ok()?;
            let count = Some(count).filter(|count| *count <= (rest.len() / 9).min(MOST_TEXTS))?;
            let (mut members, mut left) = (Vec::with_capacity(count), MOST_EXPANDED);
            for _ in 0..count {
                let member = take_string(&mut rest, left)?;
                left = left.checked_sub(member.len())?;
                let score = f64::from_le_bytes(take(&mut rest, 8)?.try_into().ok()?);
                members.push((member, score));
            }
            Dumped::SortedSet { members, is_list: false }
        }
        ZSET_LISTPACK => {
            let texts = listpack::decode(&take_string(&mut rest, MOST_LISTPACK)?, MOST_TEXTS)?;
            let pair = |pair: &[Vec<u8>]| {
                let [member, score] = pair else { return None };
                Some((member.clone(), double::parse(score)?))
            };
            let members = texts.chunks(2).map(pair).collect::<Option<Vec<_>>>()?;
            Dumped::SortedSet { members, is_list: true }
        }
        _ => return None,
    };
    rest.is_empty().then_some(value)
}

/// Removes a number, and that many groups of strings, from the front.
fn take_strings(rest: &mut &[u8], group: usize) -> Option<Vec<Vec<u8>>> {
    let count = length(rest)?.ok()?;
    // A string takes at least one byte.
    let count = Some(count).filter(|count| *count <= (rest.len() / group).min(MOST_TEXTS))?;
    let mut left = MOST_EXPANDED;
    let text = |_| {
        let text = take_string(rest, left)?;
        left = left.checked_sub(text.len())?;
        Some(text)
    };
    (0..group * count).map(text).collect()
}

/// Returns the members of an intset: bytes of a number, count, and the numbers in ascending order.
fn integers(bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (header, body) = bytes.split_at_checked(8)?;
    let word = |at: usize| Some(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let (width, count) = (word(0)? as usize, word(4)? as usize);
    if ![2, 4, 8].contains(&width) || Some(body.len()) != count.checked_mul(width) {
        return None;
    }
    let integer = |bytes: &[u8]| {
        let fill = if bytes[width - 1] & 0x80 == 0 { 0 } else { 0xFF };
        let mut wide = [fill; 8];
        wide[..width].copy_from_slice(bytes);
        i64::from_le_bytes(wide).to_string().into_bytes()
    };
    Some(body.chunks_exact(width).map(integer).collect())
}

/// Returns whether no name occurs twice.
fn are_unique<'a>(names: impl Iterator<Item = &'a [u8]>) -> bool {
    let mut met = HashSet::new();
    names.into_iter().all(|name| met.insert(name))
}

/// Returns the stored form of a value, or `None` if it cannot be a value.
fn new_value(context: &Context<'_>, value: Dumped) -> Option<NewValue> {
    match value {
        Dumped::String(text) => Some(NewValue::Record(Packed::new(text).into_bytes())),
        Dumped::Hash { texts, deadlines, .. } => {
            let fits = !texts.is_empty() && texts.len().is_multiple_of(2);
            // A field that occurs twice means damage.
            if fits { context.keys.build_hash(&texts, &deadlines) } else { None }
        }
        Dumped::List(values) if !values.is_empty() => context.keys.build_list(&values).ok(),
        Dumped::Set(members) if !members.is_empty() => {
            let fits = are_unique(members.iter().map(Vec::as_slice));
            if fits { context.keys.build_set(&members).ok() } else { None }
        }
        Dumped::SortedSet { members, .. } if !members.is_empty() => {
            let fits = are_unique(members.iter().map(|(member, _)| member.as_slice()))
                && members.iter().all(|(_, score)| !score.is_nan());
            if fits { context.keys.build_sorted_set(&members).ok() } else { None }
        }
        Dumped::List(_) | Dumped::Set(_) | Dumped::SortedSet { .. } => None,
    }
}

/// Texts that are copied up to a limit.
struct Texts {
    texts: Vec<Vec<u8>>,
    left: Option<usize>,
}

impl Texts {
    fn new(most: usize) -> Self {
        Self { texts: Vec::new(), left: Some(most) }
    }

    fn push(&mut self, text: &[u8]) -> ControlFlow<()> {
        let bytes = text.len() + size_of::<Vec<u8>>();
        self.left = self.left.and_then(|left| left.checked_sub(bytes));
        if self.left.is_none() {
            return ControlFlow::Break(());
        }
        self.texts.push(text.to_vec());
        ControlFlow::Continue(())
    }

    /// Returns the texts, or `None` if they exceed the limit.
    fn finish(self) -> Option<Vec<Vec<u8>>> {
        self.left.map(|_| self.texts)
    }
}

fn dump(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, most) = (arguments.get(1), context.state.settings.reply_limit());
    let large = || CommandError::from(format!("ERR the reply would exceed {most} bytes"));
    // The key may get another type in between.
    let value = loop {
        let string = |stored: &[u8]| {
            (ValueKind::of(stored), stored_value::string(stored).map(<[u8]>::to_vec))
        };
        let hash = |hash: &HashView<'_>| -> Result<Dumped> {
            context.check_whole_hash(hash)?;
            let mut texts = Texts::new(most);
            hash.visit(&mut |field, value| {
                texts.push(field)?;
                texts.push(value)
            });
            let texts = texts.finish().ok_or_else(large)?;
            let is_list = matches!(hash, HashView::Record(hash, _) if !hash.is_table());
            let fields = texts.iter().step_by(2).take(if hash.expires() { usize::MAX } else { 0 });
            let deadlines = fields.filter_map(|field| {
                let deadline = hash.deadline(field).filter(|deadline| *deadline != NEVER)?;
                Some((field.clone(), deadline))
            });
            Ok(Dumped::Hash { is_list, deadlines: deadlines.collect(), texts })
        };
        let found: Result<Option<Result<Dumped>>> = match context.stored(key, string) {
            None => break None,
            Some((_, Some(text))) => Ok(Some(Ok(Dumped::String(text)))),
            Some((ValueKind::Hash, None)) => context.hash(key, hash),
            Some((ValueKind::List, None)) => context.list(key, |list| {
                context.check_whole(list.0)?;
                let mut texts = Texts::new(most);
                list.visit(0, list.len(), Direction::Ascending, |value| texts.push(value));
                Ok(Dumped::List(texts.finish().ok_or_else(large)?))
            }),
            Some((ValueKind::Set, None)) => context.set(key, |set| {
                context.check_whole(set.0)?;
                let members = set.members(most).ok_or_else(large)?;
                Ok(Dumped::Set(members.iter().map(<[u8]>::to_vec).collect()))
            }),
            Some(_) => context.sorted_set(key, |set| {
                context.check_whole(set.0)?;
                let (mut members, mut texts) = (Vec::new(), Texts::new(most));
                set.visit(&EntryBounds::ALL, Direction::Ascending, |member, score| {
                    members.push(score);
                    texts.push(member)
                });
                let texts = texts.finish().ok_or_else(large)?;
                let members = texts.into_iter().zip(members).collect();
                let is_list = matches!(set.0, Body::Packed(packed) if !packed.is_converted());
                Ok(Dumped::SortedSet { members, is_list })
            }),
        };
        match found.and_then(Option::transpose) {
            Ok(Some(found)) => break Some(found),
            Ok(None) => break None,
            Err(CommandError::WrongType) => {}
            Err(error) => return Err(error),
        }
    };
    let payload = value.as_ref().map(encode);
    out.bulk_or_null(payload.as_deref());
    Ok(CommandOutcome::Done)
}

/// Number of payload bytes that count as one element when the work is estimated.
const ELEMENT: usize = 8;

fn restore(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, payload) = (arguments.get(1), arguments.get(3));
    let (mut replace, mut absolute) = (false, false);
    let (mut has_idle_time, mut has_frequency) = (false, false);
    let mut options = arguments.iter_from(4);
    while let Some(option) = options.next() {
        match option.to_ascii_lowercase().as_slice() {
            b"replace" => replace = true,
            b"absttl" => absolute = true,
            b"idletime" if !has_frequency => {
                has_idle_time = true;
                let time = number(options.next().ok_or(CommandError::Syntax)?)
                    .ok_or(CommandError::NotAnInteger)?;
                if time < 0 {
                    return Err("ERR Invalid IDLETIME value, must be >= 0".into());
                }
            }
            b"freq" if !has_idle_time => {
                has_frequency = true;
                let frequency = number(options.next().ok_or(CommandError::Syntax)?)
                    .ok_or(CommandError::NotAnInteger)?;
                if !(0..=255).contains(&frequency) {
                    return Err("ERR Invalid FREQ value, must be >= 0 and <= 255".into());
                }
            }
            _ => return Err(CommandError::Syntax),
        }
    }
    const BUSY: &str = "BUSYKEY Target key name already exists.";
    if !replace && context.stored(key, |_| ()).is_some() {
        return Err(BUSY.into());
    }
    let time = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    let time = u64::try_from(time).map_err(|_| "ERR Invalid TTL value, must be >= 0")?;
    let footer = payload.len().checked_sub(10);
    // Checked before the checksum is computed.
    if let Some(end) = footer {
        let declared = declared(&payload[..end]);
        context.check_growth(key, declared)?;
        let bytes = declared.max(end);
        context.check_work(if payload[0] == STRING { bytes >> 10 } else { end / ELEMENT })?;
    }
    let body = footer.filter(|at| {
        let (version, crc) = payload[*at..].split_at(2);
        let sum = crc64_redis(&payload[..at + 2]).to_le_bytes();
        let newest = match payload[0] {
            HASH_DEADLINES | HASH_LISTPACK_DEADLINES => VERSION_OF_DEADLINES,
            _ => VERSION,
        };
        u16::from_le_bytes([version[0], version[1]]) <= newest && crc == sum
    });
    let body = body.ok_or("ERR DUMP payload version or checksum are wrong")?;
    let value = decode(&payload[..body]).and_then(|value| new_value(context, value));
    let value = value.ok_or("ERR Bad data format")?;
    let now = context.keys.now();
    let deadline = if absolute { time } else { now.saturating_add(time) };
    let expires_at = (time > 0).then_some(deadline);
    let staged = context.stage(&value)?;
    let is_stored = context.commit(|context| {
        let mut busy = false;
        match &value {
            // The deadline has already passed.
            _ if expires_at.is_some_and(|deadline| deadline <= now) => {
                context.modify_stored::<&[u8]>(key, |found| {
                    busy = found.is_some() && !replace;
                    if busy { Change::Keep } else { Change::Remove }
                })?;
            }
            NewValue::Record(value) => context.modify_stored(key, |found| {
                busy = found.is_some() && !replace;
                match busy {
                    true => Change::Keep,
                    false => Change::Put(Put { value: value.as_slice(), expires_at }),
                }
            })?,
            // The command is executed again while no other command runs.
            NewValue::Large(_) => context.put_new(key, &value, staged.as_ref(), expires_at)?,
        }
        Ok(!busy)
    })?;
    if !is_stored {
        return Err(BUSY.into());
    }
    ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_tells_the_bytes_of_its_strings() {
        let texts = || vec![vec![b'x'; 300], b"-12".to_vec(), vec![b'y'; 20_000], b"z".to_vec()];
        let hash = |deadlines| Dumped::Hash { texts: texts(), is_list: false, deadlines };
        let members = texts().into_iter().map(|text| (text, 1.5)).collect();
        for value in [
            hash(DeadlineMap::new()),
            hash(DeadlineMap::from_iter([(vec![b'x'; 300], 1_000_000)])),
            Dumped::List(texts()),
            Dumped::Set(texts()),
            Dumped::SortedSet { members, is_list: false },
        ] {
            let payload = encode(&value);
            let bytes = declared(&payload[..payload.len() - 10]);
            assert!((20_301..20_400).contains(&bytes), "{bytes}");
        }
        // Two compressed texts of forty bytes, and one of which the end is missing.
        let packed = [0xC3, 6, 40, 1, b'a', b'a', 0xE0, 29, 0];
        let payload = [&[LIST, 3][..], &packed, &packed, &packed[..4]].concat();
        assert_eq!(declared(&payload), 80);
    }

    #[test]
    fn a_dumped_value_is_restored() {
        for value in
            [&b""[..], b"0", b"-129", b"70000", b"4294967296", b"007", &[b'x'; 63], &[0; 70_000]]
        {
            let payload = encode(&Dumped::String(value.to_vec()));
            let value = Dumped::String(value.to_vec());
            assert_eq!(decode(&payload[..payload.len() - 10]), Some(value));
        }
        // Redis' payload of forty a: a literal, and a copy of it.
        assert_eq!(decompress(&[1, b'a', b'a', 0xE0, 29, 0], 40), Some(vec![b'a'; 40]));
        assert_eq!(decompress(&[0xE0, 29, 0], 38), None, "nothing to copy from");
        assert_eq!(decode(&[STRING, 0x80, 0xFF, 0xFF, 0xFF, 0xFF]), None);
    }
}
