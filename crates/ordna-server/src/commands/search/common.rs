//! Functions that the commands on search indexes share.

use std::time::Duration;

use crate::indexes::PATIENCE;
use crate::indexes::schema::Schema;
use crate::search::parse::{Node, parse};
use crate::search::plan;
use crate::state::ServerState;
use crate::wire::argument_reader::{ArgumentReader, text};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;

/// Reads and validates the index and the query, which are the first arguments of all queries.
pub fn query(
    state: &ServerState,
    reader: &mut ArgumentReader<'_>,
) -> Result<(Schema, Node), CommandError> {
    let schema = state.indexes.schema(reader.text_of("the name of the index")?)?;
    let mut node = parse(reader.text_of("the query")?)?;
    plan::check(&mut node, &schema)?;
    Ok((schema, node))
}

/// The options that all queries accept.
pub struct CommonOptions {
    pub timeout: Duration,
}

impl CommonOptions {
    pub fn new() -> Self {
        Self { timeout: PATIENCE }
    }

    pub fn read(&mut self, reader: &mut ArgumentReader<'_>) -> Result<bool, CommandError> {
        if reader.take("dialect") {
            let dialect = reader.count_of("DIALECT", 4)?;
            if dialect == 0 {
                return Err("ERR DIALECT requires a number from 1 to 4".into());
            }
        } else if reader.take("timeout") {
            let millis = reader.count_of("TIMEOUT", 1 << 31)?;
            // 0 means the longest possible time.
            if millis > 0 {
                self.timeout = Duration::from_millis(millis as u64).min(PATIENCE);
            }
        } else if reader.take("scorer") {
            // redis-py always sends a scorer, but documents are not scored.
            reader.of("SCORER")?;
        } else if !reader.take("verbatim") {
            return Ok(false);
        }
        Ok(true)
    }
}

/// Reads the name of a field, with or without `@`.
pub fn property<'a>(word: &'a [u8], what: &str) -> Result<&'a str, CommandError> {
    text(word.strip_prefix(b"@").unwrap_or(word), what)
}

/// Reads `n name [AS alias] …` after an option, where n is a number of arguments. Returns pairs of
/// alias and name.
pub fn aliased<'a>(
    reader: &mut ArgumentReader<'a>,
    option: &str,
    most: usize,
) -> Result<Vec<(&'a str, &'a str)>, CommandError> {
    let mut count = reader.count_of(option, most)?;
    let mut pairs = Vec::new();
    while count > 0 {
        count -= 1;
        let name = property(reader.of(option)?, "the name of a field")?;
        let has_alias = count >= 2 && reader.take("as");
        count -= if has_alias { 2 } else { 0 };
        pairs.push((if has_alias { reader.text_of("AS")? } else { name }, name));
    }
    Ok(pairs)
}

/// Checks that the reply does not exceed the limit of replies.
pub fn within_limit(state: &ServerState, out: &Replies, start: usize) -> Result<(), CommandError> {
    let most = state.settings.reply_limit();
    match out.bytes.len() - start > most {
        true => Err(plan::reply_too_large(most).into()),
        false => Ok(()),
    }
}

/// Begins the reply to a query; in RESP2 each result takes `elements` elements.
pub fn begin_results(out: &mut Replies, results: usize, elements: usize, total: usize) {
    if out.resp3 {
        out.map(5);
        out.bulk(b"attributes");
        out.array(0);
        out.bulk(b"format");
        out.bulk(b"STRING");
        out.bulk(b"results");
        out.array(results);
    } else {
        out.array(1 + results * elements);
        out.count(total);
    }
}

/// Ends the reply that [`begin_results`] began.
pub fn end_results(out: &mut Replies, total: usize) {
    if out.resp3 {
        out.bulk(b"total_results");
        out.count(total);
        out.bulk(b"warning");
        out.array(0);
    }
}
