//! `FT.AGGREGATE` and `FT.CURSOR`.

use std::time::Duration;

use super::common::{
    CommonOptions, aliased, begin_results, end_results, property, query, within_limit,
};
use crate::keyspace::Keyspace;
use crate::search::aggregate::{
    AggregateStep, Function, Load, MOST_COLUMNS, MOST_ROWS, Reducer, Row, RowTable, run,
};
use crate::search::plan::Plan;
use crate::search::results::MOST_IDLE;
use crate::state::ServerState;
use crate::wire::argument_reader::ArgumentReader;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

/// Maximum number of steps of an aggregation, and of names in one step.
const MOST_NAMES: usize = 128;
/// Number of rows in a cursor's reply unless COUNT is given.
const ROWS: usize = 1000;

/// The options of `FT.AGGREGATE`.
struct AggregateOptions {
    load: Load,
    steps: Vec<AggregateStep>,
    /// Number of rows in each reply, and how long the cursor may stay unused.
    cursor: Option<(usize, Duration)>,
    common: CommonOptions,
}

fn options(reader: &mut ArgumentReader<'_>) -> Result<AggregateOptions, CommandError> {
    let (load, steps, common) = (Load::default(), Vec::new(), CommonOptions::new());
    let mut asked = AggregateOptions { load, steps, cursor: None, common };
    while reader.peek().is_some() {
        if asked.steps.len() == MOST_NAMES {
            return Err(format!("ERR an aggregation has at most {MOST_NAMES} steps").into());
        }
        if asked.common.read(reader)? {
        } else if reader.take("load") {
            load_of(reader, &mut asked.load)?;
        } else if reader.take("groupby") {
            asked.steps.push(group(reader)?);
        } else if reader.take("sortby") {
            asked.steps.push(sort(reader)?);
        } else if reader.take("limit") {
            let offset = reader.count_of("LIMIT", i64::MAX as usize)?;
            let count = reader.count_of("LIMIT", i64::MAX as usize)?;
            asked.steps.push(AggregateStep::Limit { offset, count });
        } else if reader.take("withcursor") {
            let (mut count, mut idle) = (ROWS, MOST_IDLE);
            loop {
                if reader.take("count") {
                    count = reader.count_of("COUNT", MOST_ROWS)?.max(1);
                } else if reader.take("maxidle") {
                    let most = MOST_IDLE.as_millis() as usize;
                    let millis = reader.count_of("MAXIDLE", i64::MAX as usize)?.clamp(1, most);
                    idle = Duration::from_millis(millis as u64);
                } else {
                    break;
                }
            }
            asked.cursor = Some((count, idle));
        } else {
            return Err(reader.unsupported("FT.AGGREGATE"));
        }
    }
    Ok(asked)
}

fn load_of(reader: &mut ArgumentReader<'_>, load: &mut Load) -> Result<(), CommandError> {
    if reader.take("*") {
        load.all = true;
        return Ok(());
    }
    for (alias, name) in aliased(reader, "LOAD", MOST_NAMES)? {
        if load.fields.len() == MOST_COLUMNS {
            return Err(format!("ERR LOAD names more than {MOST_COLUMNS} fields").into());
        }
        if load.fields.iter().all(|(known, _)| known != alias) {
            load.fields.push((alias.to_owned(), name.to_owned()));
        }
    }
    Ok(())
}

fn group(reader: &mut ArgumentReader<'_>) -> Result<AggregateStep, CommandError> {
    let mut by = Vec::new();
    for _ in 0..reader.count_of("GROUPBY", MOST_NAMES)? {
        by.push(property(reader.of("GROUPBY")?, "a field of GROUPBY")?.to_owned());
    }
    let mut reducers: Vec<Reducer> = Vec::new();
    while reader.take("reduce") {
        let known = [
            ("count", Function::Count),
            ("sum", Function::Sum),
            ("min", Function::Min),
            ("max", Function::Max),
            ("avg", Function::Average),
        ];
        let found = known.into_iter().find(|(name, _)| reader.take(name));
        let (name, function) = found.ok_or_else(|| reader.unsupported("REDUCE"))?;
        let wanted = usize::from(function != Function::Count);
        let given = reader.count_of("REDUCE", MOST_NAMES)?;
        if given != wanted {
            let name = name.to_ascii_uppercase();
            return Err(format!("ERR REDUCE {name} takes {wanted} arguments, not {given}").into());
        }
        let field = match wanted {
            0 => "",
            _ => property(reader.of("REDUCE")?, "the field of REDUCE")?,
        };
        let alias = match reader.take("as") {
            true => reader.text_of("AS")?.to_owned(),
            false => format!("__generated_alias{name}{field}"),
        };
        if reducers.len() == MOST_NAMES {
            return Err(format!("ERR a group has at most {MOST_NAMES} reducers").into());
        }
        reducers.push(Reducer { function, field: field.to_owned(), name: alias });
    }
    let mut names: Vec<&String> = by.iter().chain(reducers.iter().map(|one| &one.name)).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(format!("ERR Property '{}' specified more than once", twice[0]).into());
    }
    Ok(AggregateStep::Group { by, reducers })
}

fn sort(reader: &mut ArgumentReader<'_>) -> Result<AggregateStep, CommandError> {
    let mut by: Vec<(String, bool)> = Vec::new();
    let mut count = reader.count_of("SORTBY", MOST_NAMES)?;
    while count > 0 {
        count -= 1;
        let name = property(reader.of("SORTBY")?, "a field of SORTBY")?.to_owned();
        let mut descending = false;
        if count > 0
            && (reader.take("asc") || {
                descending = reader.take("desc");
                descending
            })
        {
            count -= 1;
        }
        by.push((name, descending));
    }
    let most = match reader.take("max") {
        true => Some(reader.count_of("MAX", i64::MAX as usize)?),
        false => None,
    };
    Ok(AggregateStep::Sort { by, most })
}

/// `FT.AGGREGATE index query [options]`
pub fn aggregate(
    state: &ServerState,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let mut reader = ArgumentReader::new(arguments, 1);
    let (schema, node) = query(state, &mut reader)?;
    let asked = options(&mut reader)?;
    let plan = Plan::new(&state.indexes, &schema, node, (asked.common.timeout, held))?;
    let (mut table, total) = run(&plan, &schema, &asked.load, &asked.steps)?;
    let Some((count, idle)) = asked.cursor else { return rows(state, &table, total, out) };
    let rest = table.rows.split_off(count.min(table.rows.len()));
    let columns = table.columns.clone();
    let number = match rest.is_empty() {
        true => 0,
        false => state.results.keep(&schema, RowTable { columns, rows: rest }, count, idle)?,
    };
    out.array(2);
    let written = rows(state, &table, total, out);
    if written.is_err() && number != 0 {
        // The client never gets the number of this cursor.
        drop(state.results.take(&schema, number));
    }
    written?;
    out.integer(number as i64);
    Ok(())
}

/// Writes rows. Absent cells are left out.
fn rows(
    state: &ServerState,
    table: &RowTable,
    total: usize,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let start = out.bytes.len();
    begin_results(out, table.rows.len(), 1, total);
    for row in &table.rows {
        if out.resp3 {
            out.map(2);
            out.bulk(b"extra_attributes");
        }
        out.map(row.cells().len());
        for (column, cell) in row.cells() {
            out.bulk(table.columns[column].as_bytes());
            out.bulk(cell);
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

/// `FT.CURSOR READ|DEL index cursor [COUNT n]`
pub fn cursor(
    state: &ServerState,
    _: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let mut reader = ArgumentReader::new(arguments, 1);
    let reads = reader.take("read");
    if !reads && !reader.take("del") {
        return Err(reader.unsupported("FT.CURSOR"));
    }
    let schema = state.indexes.schema(reader.text_of("the name of the index")?)?;
    let number = reader.count_of("the cursor", i64::MAX as usize)? as u64;
    let count = match reads && reader.take("count") {
        true => Some(reader.count_of("COUNT", MOST_ROWS)?.max(1)),
        false => None,
    };
    if reader.peek().is_some() {
        return Err(reader.unsupported("FT.CURSOR"));
    }
    let mut waiting = state.results.take(&schema, number)?;
    if !reads {
        out.simple("OK");
        return Ok(());
    }
    let count = count.unwrap_or(waiting.count).min(waiting.table.rows.len());
    let rest = waiting.table.rows.split_off(count);
    out.array(2);
    let written = rows(state, &waiting.table, count, out);
    if written.is_err() {
        // The client may retry and ask for fewer rows.
        waiting.table.rows.extend(rest);
        state.results.put_back(number, waiting);
        return written;
    }
    let page = std::mem::replace(&mut waiting.table.rows, rest);
    waiting.bytes -= page.iter().map(Row::bytes).sum::<usize>();
    let next = if waiting.table.rows.is_empty() { 0 } else { number };
    if next != 0 {
        state.results.put_back(number, waiting);
    }
    out.integer(next as i64);
    Ok(())
}
