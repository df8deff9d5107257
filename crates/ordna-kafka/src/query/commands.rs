//! `ORDNA.INDEX` and `ORDNA.NODE` on an index node.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ordna::tuple::{Number, Value};
use ordna_server::{Answer as Reply, parse_query};

use super::cursor::Cursor;
use super::group_queries::{GroupQueries, GroupQuery, GroupResult, QueryError};
use super::owner::{AnswerSlot, MOST_AT_ONCE, answer};
use super::wire::Request;

/// Options that take an argument, which may itself look like an option.
const WITH_ARGUMENT: [&str; 8] =
    ["eq", "from", "to", "prefix", "at", "timeout", "distinct", "limit"];

fn told(error: QueryError) -> String {
    let code = match &error {
        QueryError::Missing { .. } | QueryError::NoTable | QueryError::NoEnds(_) => "MISSING",
        QueryError::Busy(_) => "BUSY",
        QueryError::Index(_) | QueryError::Refused(_) => "ERR",
    };
    format!("{code} {error}")
}

fn bulk(text: impl Into<String>) -> Reply {
    Reply::Bulk(text.into().into_bytes())
}

/// Returns a value as a reply; nil if it is missing, null or of a type that a reply cannot show.
fn shown(value: &Value) -> Reply {
    match value {
        Value::String(text) => bulk(text),
        Value::Bytes(bytes) => Reply::Bulk(bytes.clone()),
        Value::Number(Number::Int(number)) => bulk(number.to_string()),
        Value::Number(number) => bulk(number.to_f64().to_string()),
        Value::Bool(value) => bulk(value.to_string()),
        _ => Reply::Null,
    }
}

impl GroupQueries {
    /// Executes `ORDNA.INDEX SCAN`, `COUNT` or `LIST`, or `ORDNA.NODE ASK`. The name of the command
    /// is the first argument. Returns `None` for other commands.
    ///
    /// # Errors
    /// The text of the error reply, which begins with its code.
    pub fn execute(&self, arguments: &[&[u8]]) -> Option<Result<Reply, String>> {
        let word = |at: usize| arguments.get(at).map(|word| word.to_ascii_lowercase());
        let (command, sub) = (word(0)?, word(1)?);
        let rest = &arguments[2..];
        match (&command[..], &sub[..]) {
            (b"ordna.index", b"scan") => Some(self.asked(rest, false)),
            (b"ordna.index", b"count") => Some(self.asked(rest, true)),
            (b"ordna.index", b"list") => {
                let names = self.local.indexes().iter().map(|definition| bulk(&definition.name));
                Some(Ok(Reply::Array(names.collect())))
            }
            (b"ordna.node", b"ask") => Some(self.answer(rest)),
            _ => None,
        }
    }

    /// Answers a question of another node.
    fn answer(&self, arguments: &[&[u8]]) -> Result<Reply, String> {
        let [bytes] = arguments else {
            return Err("ERR ORDNA.NODE ASK takes one argument".to_owned());
        };
        let request = Request::decode(bytes).map_err(|garbled| format!("ERR {garbled}"))?;
        let place = AnswerSlot::take(&self.answering, MOST_AT_ONCE);
        let _place = place.ok_or_else(|| format!("BUSY {MOST_AT_ONCE} questions are answered"))?;
        self.counters.answered.fetch_add(1, Ordering::Relaxed);
        Ok(Reply::Bulk(answer(&*self.local, &request).encode()))
    }

    /// Runs a query with the arguments `name …`: the options of `ORDNA.INDEX SCAN` or `COUNT` of a
    /// single server, `PARTIAL`, and `MAXAGE milliseconds`.
    fn asked(&self, arguments: &[&[u8]], counts: bool) -> Result<Reply, String> {
        let (name, arguments) =
            arguments.split_first().ok_or("ERR the name of the index is missing")?;
        let name = str::from_utf8(name).map_err(|_| "ERR the name of the index is not UTF-8")?;
        let definition = self.definition(name).map_err(|error| told(error.into()))?;
        let mut ask = GroupQuery { index: name.to_owned(), ..GroupQuery::default() };
        let (mut others, mut rest) = (Vec::new(), arguments.iter().copied());
        while let Some(word) = rest.next() {
            let is = |option: &str| word.eq_ignore_ascii_case(option.as_bytes());
            let text = |argument: Option<&[u8]>, option: &str| {
                let text = argument.and_then(|bytes| Some(str::from_utf8(bytes).ok()?.to_owned()));
                text.ok_or_else(|| format!("ERR {option} lacks an argument"))
            };
            if is("partial") {
                ask.partial = true;
            } else if is("maxage") {
                let millis = text(rest.next(), "MAXAGE")?;
                let millis = millis.parse().map_err(|_| format!("ERR MAXAGE: {millis:.40?}"))?;
                ask.max_age = Some(Duration::from_millis(millis));
            } else if is("cursor") && !counts {
                let cursor = text(rest.next(), "CURSOR")?;
                if cursor != "0" {
                    let cursor = cursor.parse::<Cursor>();
                    ask.cursor = Some(cursor.map_err(|error| told(error.into()))?);
                }
            } else {
                others.push(word);
                if WITH_ARGUMENT.iter().any(|option| is(option)) {
                    others.extend(rest.next());
                }
            }
        }
        let (query, read) = parse_query(&others, definition, counts)?;
        (ask.query, ask.consistency, ask.timeout) = (query, read.consistency, read.timeout);
        let found = if counts { self.count(&ask) } else { self.scan(&ask) }.map_err(told)?;
        let missing = found.missing.iter().map(|m| Reply::Integer(i64::from(m.partition)));
        let state = [bulk(found.vector.to_string()), Reply::Array(missing.collect())];
        let millis = Reply::Integer(i64::try_from(found.age.as_millis()).unwrap_or(i64::MAX));
        let head = match counts {
            true => vec![Reply::Integer(i64::try_from(found.count).unwrap_or(i64::MAX))],
            false => page(&found, ask.query.covering),
        };
        Ok(Reply::Array(head.into_iter().chain(state).chain([millis]).collect()))
    }
}

/// Returns the cursor and the entries, in the form in which a single server replies.
fn page(found: &GroupResult, covering: bool) -> Vec<Reply> {
    let cursor = found.cursor.as_ref().map_or_else(|| "0".to_owned(), ToString::to_string);
    let mut entries = Vec::with_capacity(found.entries.len() * if covering { 2 } else { 1 });
    for entry in &found.entries {
        entries.push(Reply::Bulk(entry.id.clone()));
        if covering {
            entries.push(Reply::Array(entry.parts.iter().map(shown).collect()));
        }
    }
    vec![bulk(cursor), Reply::Array(entries)]
}
