//! `DUMP` and `RESTORE`: values in the format of Redis' RDB files.
//!
//! A payload is the type (0: string, 4: hash, 16: hash as a listpack), the value, the version of
//! the format (two bytes) and a CRC-64, all numbers little-endian. A string is a length and as many
//! bytes, or an integer of 1, 2 or 4 bytes, or text compressed by LZF. `RESTORE` reads such text;
//! `DUMP` never writes it.

use ordna::Put;
use ordna::checksum::crc64_redis;
use ordna::{Change, OrderedIndex, value};

use crate::execution::command::{
    Command, CommandOutcome, Context, READ_SLOW, Result, WRITE_SLOW, ok,
};
use crate::keyspace::hash::{Edit, MOST_BYTES};
use crate::keyspace::listpack;
use crate::keyspace::stored_value::{self, Packed};
use crate::state::command_spec::{CommandFlags, Growth, ONE_KEY};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

/// The version that Redis 7.0 writes, and the newest that it reads.
const VERSION: u16 = 10;
const STRING: u8 = 0;
const HASH: u8 = 4;
const HASH_LISTPACK: u8 = 16;
/// Fields and values of a hash that `RESTORE` reads at most. A record of so many has at least five bytes
/// for each, so more would be refused for its length; a short payload may expand to very many.
const MOST_TEXTS: usize = MOST_BYTES / 5;
/// Bytes of a listpack that `RESTORE` reads at most. One of a hash that fits a record is shorter.
const MOST_LISTPACK: usize = 2 * MOST_BYTES;

pub const COMMANDS: &[Command] = &[
    Command::new("dump", 2, READ_SLOW, ONE_KEY, "Returns a value in Redis' format.", dump),
    Command::new("restore", -4, WRITE_SLOW, ONE_KEY, "Sets a key to what DUMP returned.", restore)
        .with(CommandFlags::DANGEROUS)
        .grows(Growth::Declared(|arguments| declared(arguments.get(3)).min(value::MAX_LEN))),
];

/// A value, which is stored so, as a payload.
fn encode(stored: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    match (stored_value::hash(stored), stored_value::string(stored)) {
        (Some(hash), _) if hash.is_table() => {
            payload.push(HASH);
            put_length(&mut payload, hash.len());
            for (field, value) in hash.iter() {
                put_string(&mut payload, field);
                put_string(&mut payload, value);
            }
        }
        (Some(hash), _) => {
            payload.push(HASH_LISTPACK);
            let list = listpack::encode(hash.iter().flat_map(|(field, value)| [field, value]));
            put_length(&mut payload, list.len());
            payload.extend(list);
        }
        (None, string) => {
            payload.push(STRING);
            put_string(&mut payload, string.unwrap_or_default());
        }
    }
    payload.extend(VERSION.to_le_bytes());
    let crc = crc64_redis(&payload);
    payload.extend(crc.to_le_bytes());
    payload
}

fn put_length(payload: &mut Vec<u8>, len: usize) {
    match len {
        ..64 => payload.push(len as u8),
        64..16_384 => payload.extend([0x40 | (len >> 8) as u8, len as u8]),
        _ => {
            payload.push(0x80);
            payload.extend((len as u32).to_be_bytes());
        }
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

/// Takes `count` bytes off the front.
fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

/// A length, or the number of a special encoding.
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

/// Takes a string off the front, which expands to no more than `most` bytes.
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

/// Bytes of the string or listpack that a payload declares; 0 if it has another type.
fn declared(payload: &[u8]) -> usize {
    let Some((&(STRING | HASH_LISTPACK), mut rest)) = payload.split_first() else { return 0 };
    let len = match length(&mut rest) {
        // Compressed: its length, then that of the text.
        Some(Err(3)) => length(&mut rest).and_then(|_| length(&mut rest)),
        other => other,
    };
    len.and_then(std::result::Result::ok).unwrap_or(0)
}

/// The value of a payload whose sum is right, as it is stored.
fn decode(payload: &[u8]) -> Option<Vec<u8>> {
    let (kind, mut rest) = payload.split_first()?;
    let texts = match *kind {
        STRING => {
            let value = Packed::new(take_string(&mut rest, value::MAX_LEN)?);
            return rest.is_empty().then(|| value.into_bytes());
        }
        HASH => {
            let count = length(&mut rest)?.ok()?;
            // A text takes a byte at least.
            let count =
                Some(count).filter(|count| *count <= (rest.len() / 2).min(MOST_TEXTS / 2))?;
            // All texts together fit a hash, or it is refused below.
            let mut left = MOST_BYTES;
            let text = |_| {
                let text = take_string(&mut rest, left)?;
                left = left.checked_sub(text.len())?;
                Some(text)
            };
            (0..2 * count).map(text).collect::<Option<Vec<_>>>()?
        }
        HASH_LISTPACK => listpack::decode(&take_string(&mut rest, MOST_LISTPACK)?, MOST_TEXTS)?,
        _ => return None,
    };
    let mut edit = Edit::of(None);
    let fits = rest.is_empty() && !texts.is_empty() && texts.len().is_multiple_of(2);
    // A field that comes twice is damage.
    let whole = fits && texts.chunks_exact(2).all(|pair| edit.set(&pair[0], &pair[1]));
    whole.then(|| edit.finish()).filter(|record| record.len() <= MOST_BYTES)
}

fn dump(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let payload = context.keys.get_with(arguments.get(1), encode);
    out.bulk_or_null(payload.as_deref());
    Ok(CommandOutcome::Done)
}

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
    if !replace && context.keys.contains(key) {
        return Err(BUSY.into());
    }
    let time = number(arguments.get(2)).ok_or(CommandError::NotAnInteger)?;
    let time = u64::try_from(time).map_err(|_| "ERR Invalid TTL value, must be >= 0")?;
    let footer = payload.len().checked_sub(10);
    let body = footer.filter(|at| {
        let (version, crc) = payload[*at..].split_at(2);
        let sum = crc64_redis(&payload[..at + 2]).to_le_bytes();
        u16::from_le_bytes([version[0], version[1]]) <= VERSION && crc == sum
    });
    let body = body.ok_or("ERR DUMP payload version or checksum are wrong")?;
    context.check_growth(key, declared(&payload[..body]))?;
    let value = decode(&payload[..body]).ok_or("ERR Bad data format")?;
    let now = context.keys.now();
    let deadline = if absolute { time } else { now.saturating_add(time) };
    let expires_at = (time > 0).then_some(deadline);
    let mut busy = false;
    context.modify_stored(key, |found| {
        busy = found.is_some() && !replace;
        match expires_at {
            _ if busy => Change::Keep,
            // It is over already.
            Some(deadline) if deadline <= now => Change::Remove,
            _ => Change::Put(Put { value: value.as_slice(), expires_at }),
        }
    })?;
    if busy {
        return Err(BUSY.into());
    }
    ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dumped_value_is_restored() {
        for value in
            [&b""[..], b"0", b"-129", b"70000", b"4294967296", b"007", &[b'x'; 63], &[0; 70_000]]
        {
            let payload = encode(value);
            assert_eq!(decode(&payload[..payload.len() - 10]).as_deref(), Some(value));
        }
        // Redis' payload of forty a: a literal, and a copy of it.
        assert_eq!(decompress(&[1, b'a', b'a', 0xE0, 29, 0], 40), Some(vec![b'a'; 40]));
        assert_eq!(decompress(&[0xE0, 29, 0], 38), None, "nothing to copy from");
        assert_eq!(decode(&[STRING, 0x80, 0xFF, 0xFF, 0xFF, 0xFF]), None);
    }
}
