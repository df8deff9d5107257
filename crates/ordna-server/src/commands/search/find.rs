//! `FT.SEARCH` and `FT.EXPLAIN`.

use super::common::{
    CommonOptions, aliased, begin_results, end_results, property, query, within_limit,
};
use crate::indexes::schema::{Field, KEY, Schema};
use crate::keyspace::Keyspace;
use crate::search::order::{First, Key};
use crate::search::parse::{Node, bound};
use crate::search::plan::{Plan, check, reply_too_large, unknown_field};
use crate::state::ServerState;
use crate::wire::argument_reader::ArgumentReader;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

/// Maximum sum of offset and number of results of a query.
const MOST_RESULTS: usize = 100_000;
/// Maximum number of fields of RETURN.
const MOST_RETURNED: usize = 1024;

/// The options of `FT.SEARCH`.
struct SearchOptions {
    only_keys: bool,
    /// Pairs of the name in the reply and the name in the hash.
    fields: Option<Vec<(String, String)>>,
    sort: Option<(Field, bool)>,
    offset: usize,
    count: usize,
    common: CommonOptions,
}

/// Reads the options after a query. Filters become part of the query.
fn options(
    reader: &mut ArgumentReader<'_>,
    schema: &Schema,
    node: &mut Node,
) -> Result<SearchOptions, CommandError> {
    let (fields, sort, common) = (None, None, CommonOptions::new());
    let mut search = SearchOptions { only_keys: false, fields, sort, offset: 0, count: 10, common };
    while reader.peek().is_some() {
        if search.common.read(reader)? || reader.take("withcount") {
        } else if reader.take("nocontent") {
            search.only_keys = true;
        } else if reader.take("return") {
            let fields = aliased(reader, "RETURN", MOST_RETURNED)?;
            search.only_keys |= fields.is_empty();
            let path = |name| schema.field(name).map_or(name, |field| field.path.as_str());
            let fields = fields.into_iter();
            search.fields = Some(
                fields.map(|(alias, name)| (alias.to_owned(), path(name).to_owned())).collect(),
            );
        } else if reader.take("sortby") {
            let name = property(reader.of("SORTBY")?, "the field of SORTBY")?;
            let field = schema.field(name).ok_or_else(|| unknown_field(name, schema))?;
            let descending = reader.take("desc");
            if !descending {
                reader.take("asc");
            }
            search.sort = Some((field.clone(), descending));
        } else if reader.take("limit") {
            search.offset = reader.count_of("LIMIT", MOST_RESULTS)?;
            search.count = reader.count_of("LIMIT", MOST_RESULTS)?;
            if search.offset + search.count > MOST_RESULTS {
                return Err(format!("ERR LIMIT exceeds maximum of {MOST_RESULTS}").into());
            }
        } else if reader.take("filter") {
            let field = property(reader.of("FILTER")?, "the field of FILTER")?.to_owned();
            let mut read = || {
                let text = reader.text_of("FILTER")?;
                let number = bound(text);
                number.ok_or_else(|| {
                    CommandError::from(format!("ERR FILTER: '{text:.40}' is not a number"))
                })
            };
            let mut range = Node::Range { field, lower: read()?, upper: read()? };
            check(&mut range, schema)?;
            node.narrow(range)?;
        } else {
            return Err(reader.unsupported("FT.SEARCH"));
        }
    }
    Ok(search)
}

/// `FT.SEARCH index query [options]`
pub fn search(
    state: &ServerState,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let mut reader = ArgumentReader::new(arguments, 1);
    let (schema, mut node) = query(state, &mut reader)?;
    let search = options(&mut reader, &schema, &mut node)?;
    let plan = Plan::new(&state.indexes, &schema, node, (search.common.timeout, held))?;
    let (offset, most) = (search.offset, search.offset + search.count);
    let largest = state.settings.reply_limit();
    let mut ids: Vec<Vec<u8>> = Vec::new();
    let mut total = 0;
    match (&search.sort, plan.count_all()?) {
        // The index of all documents is in this order and knows their number.
        (None, Some(count)) => {
            total = count;
            ids = plan.page_of_all(offset, search.count, largest)?;
        }
        (None, None) => {
            let mut bytes = 0;
            plan.visit(|id, _| {
                if (offset..most).contains(&total) {
                    bytes += id.len();
                    if bytes <= largest {
                        ids.push(id.to_vec());
                    }
                }
                total += 1;
            })?;
            if bytes > largest {
                return Err(reply_too_large(largest).into());
            }
        }
        (Some((field, descending)), _) => {
            let mut first = First::new(most, *descending);
            plan.visit(|id, hash| {
                total += 1;
                first.offer(Key::of_field(field, hash), id);
            })?;
            ids = first.finish()?;
            ids.drain(..offset.min(ids.len()));
        }
    }
    let start = out.bytes.len();
    begin_results(out, ids.len(), if search.only_keys { 1 } else { 2 }, total);
    for id in &ids {
        if out.resp3 {
            out.map(if search.only_keys { 2 } else { 3 });
            out.bulk(b"id");
        }
        out.bulk(id);
        if !search.only_keys {
            if out.resp3 {
                out.bulk(b"extra_attributes");
            }
            document(&plan, id, search.fields.as_deref(), out, |out| {
                within_limit(state, out, start)
            })?;
        }
        if out.resp3 {
            out.bulk(b"values");
            out.array(0);
        }
        within_limit(state, out, start)?;
    }
    end_results(out, total);
    Ok(())
}

/// Writes the fields of a document: all, or those of RETURN that it has. `check` is called after
/// each field of RETURN, which may name one field many times.
fn document(
    plan: &Plan<'_>,
    id: &[u8],
    fields: Option<&[(String, String)]>,
    out: &mut Replies,
    check: impl Fn(&Replies) -> Result<(), CommandError>,
) -> Result<(), CommandError> {
    let written = plan.read(id, |hash| match fields {
        None => {
            out.map(hash.len());
            hash.iter().for_each(|(field, value)| {
                out.bulk(field);
                out.bulk(value);
            });
            Ok(())
        }
        Some(fields) => {
            let present = fields.iter();
            let value = |path: &str| if path == KEY { Some(id) } else { hash.get(path.as_bytes()) };
            let present = present.filter_map(|(name, path)| Some((name, value(path)?)));
            let present: Vec<_> = present.collect();
            out.map(present.len());
            for (name, value) in present {
                out.bulk(name.as_bytes());
                out.bulk(value);
                check(out)?;
            }
            Ok(())
        }
    });
    written.unwrap_or_else(|| {
        out.map(0);
        Ok(())
    })
}

/// `FT.EXPLAIN index query [options]`
pub fn explain(
    state: &ServerState,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let mut reader = ArgumentReader::new(arguments, 1);
    let (schema, mut node) = query(state, &mut reader)?;
    // redis-py sends the options of a search, too.
    let search = options(&mut reader, &schema, &mut node)?;
    let plan = Plan::new(&state.indexes, &schema, node, (search.common.timeout, held))?;
    out.bulk(plan.explain()?.as_bytes());
    Ok(())
}
