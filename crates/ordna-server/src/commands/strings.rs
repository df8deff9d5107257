//! Commands on values.

use std::borrow::Cow;

use ordna::{Change, OrderedIndex, value};

use super::{NOT_AN_INTEGER, Outcome, Result, SYNTAX, refused, wrong_arity};
use crate::connection::Session;
use crate::reply::Replies;
use crate::request::{Arguments, number};
use crate::state::Keyspace;

pub fn get(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if session.state.keys().get_with(arguments.get(1), |value| out.bulk(value)).is_none() {
        out.null();
    }
    Ok(Outcome::Done)
}

pub fn strlen(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let length = session.state.keys().get_with(arguments.get(1), <[u8]>::len);
    out.count(length.unwrap_or(0));
    Ok(Outcome::Done)
}

pub fn mget(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let keys: Vec<&[u8]> = arguments.iter_from(1).collect();
    let (start, most) = (out.bytes.len(), session.state.config.max_reply);
    out.array(keys.len());
    // A short request can ask for one large value many times over.
    let mut fits = true;
    session.state.keys().get_many_with(&keys, |_, value| {
        fits &= out.bytes.len() - start + value.map_or(0, <[u8]>::len) <= most;
        if fits {
            out.bulk_or_null(value);
        }
    });
    if !fits {
        out.bytes.truncate(start);
        return Err(format!("ERR the reply would exceed {most} bytes; ask for fewer keys"));
    }
    Ok(Outcome::Done)
}

/// When SET writes.
#[derive(PartialEq)]
enum Condition {
    Always,
    IfAbsent,
    IfPresent,
}

/// Writes under a condition; returns whether it did, and the old value if wanted.
fn set_if(
    keys: &Keyspace,
    key: &[u8],
    value: &[u8],
    condition: &Condition,
    want_old: bool,
) -> std::result::Result<(bool, Option<Vec<u8>>), String> {
    let (mut written, mut old) = (false, None);
    keys.modify(key, |current| {
        old = current.filter(|_| want_old).map(<[u8]>::to_vec);
        written = match condition {
            Condition::Always => true,
            Condition::IfAbsent => current.is_none(),
            Condition::IfPresent => current.is_some(),
        };
        if written { Change::Put(value) } else { Change::Keep }
    })
    .map_err(refused)?;
    Ok((written, old))
}

pub fn set(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let mut condition = Condition::Always;
    let mut want_old = false;
    for option in arguments.iter_from(3) {
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        match () {
            () if is("nx") && condition != Condition::IfPresent => condition = Condition::IfAbsent,
            () if is("xx") && condition != Condition::IfAbsent => condition = Condition::IfPresent,
            () if is("get") => want_old = true,
            () if ["ex", "px", "exat", "pxat", "keepttl"].into_iter().any(is) => {
                return Err("ERR keys do not expire in this version: EX, PX, EXAT, PXAT and KEEPTTL are not supported".to_owned());
            }
            () => return Err(SYNTAX.to_owned()),
        }
    }
    let (key, value) = (arguments.get(1), arguments.get(2));
    let (written, old) = set_if(&session.state.keys(), key, value, &condition, want_old)?;
    match (want_old, written) {
        (true, _) => out.bulk_or_null(old.as_deref()),
        (false, true) => out.simple("OK"),
        (false, false) => out.null(),
    }
    Ok(Outcome::Done)
}

pub fn setnx(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, value) = (arguments.get(1), arguments.get(2));
    let (written, _) = set_if(&session.state.keys(), key, value, &Condition::IfAbsent, false)?;
    out.integer(i64::from(written));
    Ok(Outcome::Done)
}

pub fn getset(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, value) = (arguments.get(1), arguments.get(2));
    let (_, old) = set_if(&session.state.keys(), key, value, &Condition::Always, true)?;
    out.bulk_or_null(old.as_deref());
    Ok(Outcome::Done)
}

pub fn getdel(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let old = session.state.keys().remove(arguments.get(1));
    out.bulk_or_null(old.as_deref());
    Ok(Outcome::Done)
}

type Pairs<'a> = Vec<(&'a [u8], &'a [u8])>;

/// The keys and values of MSET and MSETNX.
fn pairs<'a>(arguments: &Arguments<'a>, name: &str) -> std::result::Result<Pairs<'a>, String> {
    if arguments.len().is_multiple_of(2) {
        return Err(wrong_arity(name));
    }
    let keys = arguments.iter_from(1).step_by(2);
    Ok(keys.zip(arguments.iter_from(2).step_by(2)).collect())
}

pub fn mset(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let pairs = pairs(&arguments, "mset")?;
    session.state.keys_alone().insert_many(&pairs).map_err(refused)?;
    out.simple("OK");
    Ok(Outcome::Done)
}

pub fn msetnx(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let pairs = pairs(&arguments, "msetnx")?;
    let keys = session.state.keys_alone();
    let free = pairs.iter().all(|(key, _)| !keys.contains(key));
    if free {
        keys.insert_many(&pairs).map_err(refused)?;
    }
    out.integer(i64::from(free));
    Ok(Outcome::Done)
}

pub fn append(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (key, tail) = (arguments.get(1), arguments.get(2));
    let mut length = 0;
    session
        .state
        .keys()
        .modify(key, |current| {
            let longer = [current.unwrap_or_default(), tail].concat();
            length = longer.len();
            // One byte too long is refused by the index, with the key unchanged.
            Change::Put(longer)
        })
        .map_err(|error| match error {
            ordna::Error::ValueTooLong { .. } => {
                "ERR string exceeds maximum allowed size (proto-max-bulk-len)".to_owned()
            }
            other => refused(other),
        })?;
    debug_assert!(length <= value::MAX_LEN);
    out.count(length);
    Ok(Outcome::Done)
}

pub fn incr(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    add(session, arguments.get(1), 1, out)
}

pub fn decr(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    add(session, arguments.get(1), -1, out)
}

pub fn incrby(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let by = number(arguments.get(2)).ok_or(NOT_AN_INTEGER)?;
    add(session, arguments.get(1), by, out)
}

pub fn decrby(session: &mut Session, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let by = number(arguments.get(2)).ok_or(NOT_AN_INTEGER)?;
    let by = by.checked_neg().ok_or("ERR decrement would overflow")?;
    add(session, arguments.get(1), by, out)
}

fn add(session: &mut Session, key: &[u8], by: i64, out: &mut Replies) -> Result {
    let mut sum = Ok(0);
    session
        .state
        .keys()
        .modify(key, |current| {
            let current = number(current.unwrap_or(b"0")).ok_or(NOT_AN_INTEGER);
            sum = current.and_then(|current| {
                current.checked_add(by).ok_or("ERR increment or decrement would overflow")
            });
            match sum {
                Ok(sum) => Change::Put(Cow::<[u8]>::Owned(sum.to_string().into_bytes())),
                Err(_) => Change::Keep,
            }
        })
        .map_err(refused)?;
    out.integer(sum?);
    Ok(Outcome::Done)
}
