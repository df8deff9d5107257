//! `FT.AGGREGATE` and `FT.CURSOR`.

use std::time::Duration;

use super::common::{
    CommonOptions, aliased, begin_results, end_results, property, query, within_limit,
};
use crate::keyspace::Keyspace;
use crate::search::aggregate::{Function, Load, MOST_ROWS, Reducer, Row, Step, Table, run};
use crate::search::plan::Plan;
use crate::search::results::MOST_IDLE;
use crate::state::State;
use crate::wire::arguments::Words;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

/// Steps, and names of one step, at most.
const MOST_NAMES: usize = 128;
/// Rows of a cursor's reply unless COUNT says otherwise.
const ROWS: usize = 1000;

/// The options of `FT.AGGREGATE`.
struct AggregateOptions {
    load: Load,
    steps: Vec<Step>,
    /// Rows a reply, and how long the cursor may wait.
    cursor: Option<(usize, Duration)>,
    common: CommonOptions,
}

fn options(words: &mut Words<'_>) -> Result<AggregateOptions, CommandError> {
    let (load, steps, common) = (Load::default(), Vec::new(), CommonOptions::new());
    let mut asked = AggregateOptions { load, steps, cursor: None, common };
    while words.peek().is_some() {
        if asked.steps.len() == MOST_NAMES {
            return Err(format!("ERR an aggregation has at most {MOST_NAMES} steps").into());
        }
        if asked.common.read(words)? {
        } else if words.take("load") {
            load_of(words, &mut asked.load)?;
        } else if words.take("groupby") {
            asked.steps.push(group(words)?);
        } else if words.take("sortby") {
            asked.steps.push(sort(words)?);
        } else if words.take("limit") {
            let offset = words.count_of("LIMIT", i64::MAX as usize)?;
            let count = words.count_of("LIMIT", i64::MAX as usize)?;
            asked.steps.push(Step::Limit { offset, count });
        } else if words.take("withcursor") {
            let (mut count, mut idle) = (ROWS, MOST_IDLE);
            loop {
                if words.take("count") {
                    count = words.count_of("COUNT", MOST_ROWS)?.max(1);
                } else if words.take("maxidle") {
                    let most = MOST_IDLE.as_millis() as usize;
                    let millis = words.count_of("MAXIDLE", i64::MAX as usize)?.clamp(1, most);
                    idle = Duration::from_millis(millis as u64);
                } else {
                    break;
                }
            }
            asked.cursor = Some((count, idle));
        } else {
            return Err(words.unsupported("FT.AGGREGATE"));
        }
    }
    Ok(asked)
}

fn load_of(words: &mut Words<'_>, load: &mut Load) -> Result<(), CommandError> {
    if words.take("*") {
        load.all = true;
        return Ok(());
    }
    for (alias, name) in aliased(words, "LOAD", MOST_NAMES)? {
        if load.fields.iter().all(|(known, _)| known != alias) {
            load.fields.push((alias.to_owned(), name.to_owned()));
        }
    }
    Ok(())
}

fn group(words: &mut Words<'_>) -> Result<Step, CommandError> {
    let mut by = Vec::new();
    for _ in 0..words.count_of("GROUPBY", MOST_NAMES)? {
        by.push(property(words.of("GROUPBY")?, "a field of GROUPBY")?.to_owned());
    }
    let mut reducers: Vec<Reducer> = Vec::new();
    while words.take("reduce") {
        let known = [
            ("count", Function::Count),
            ("sum", Function::Sum),
            ("min", Function::Min),
            ("max", Function::Max),
            ("avg", Function::Average),
        ];
        let found = known.into_iter().find(|(name, _)| words.take(name));
        let (name, function) = found.ok_or_else(|| words.unsupported("REDUCE"))?;
        let wanted = usize::from(function != Function::Count);
        let given = words.count_of("REDUCE", MOST_NAMES)?;
        if given != wanted {
            let name = name.to_ascii_uppercase();
            return Err(format!("ERR REDUCE {name} takes {wanted} arguments, not {given}").into());
        }
        let field = match wanted {
            0 => "",
            _ => property(words.of("REDUCE")?, "the field of REDUCE")?,
        };
        let alias = match words.take("as") {
            true => words.text_of("AS")?.to_owned(),
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
    Ok(Step::Group { by, reducers })
}

fn sort(words: &mut Words<'_>) -> Result<Step, CommandError> {
    let mut by: Vec<(String, bool)> = Vec::new();
    let mut count = words.count_of("SORTBY", MOST_NAMES)?;
    while count > 0 {
        count -= 1;
        let name = property(words.of("SORTBY")?, "a field of SORTBY")?.to_owned();
        let mut descending = false;
        if count > 0
            && (words.take("asc") || {
                descending = words.take("desc");
                descending
            })
        {
            count -= 1;
        }
        by.push((name, descending));
    }
    let most = match words.take("max") {
        true => Some(words.count_of("MAX", i64::MAX as usize)?),
        false => None,
    };
    Ok(Step::Sort { by, most })
}

/// `FT.AGGREGATE index query [options]`
pub fn aggregate(
    state: &State,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let mut words = Words::new(arguments, 1);
    let (schema, node) = query(state, &mut words)?;
    let asked = options(&mut words)?;
    let plan = Plan::new(&state.indexes, &schema, node, (asked.common.timeout, held))?;
    let (mut table, total) = run(&plan, &schema, &asked.load, &asked.steps)?;
    let Some((count, idle)) = asked.cursor else { return rows(state, &table, total, out) };
    let rest = table.rows.split_off(count.min(table.rows.len()));
    let columns = table.columns.clone();
    let number = match rest.is_empty() {
        true => 0,
        false => state.results.keep(&schema.name, Table { columns, rows: rest }, count, idle)?,
    };
    out.array(2);
    rows(state, &table, total, out)?;
    out.integer(number as i64);
    Ok(())
}

/// Writes rows: a cell that is not there is left out.
fn rows(state: &State, table: &Table, total: usize, out: &mut Replies) -> Result<(), CommandError> {
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
    state: &State,
    _: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<(), CommandError> {
    let mut words = Words::new(arguments, 1);
    let reads = words.take("read");
    if !reads && !words.take("del") {
        return Err(words.unsupported("FT.CURSOR"));
    }
    let index = state.indexes.schema(words.text_of("the name of the index")?)?.name;
    let number = words.count_of("the cursor", i64::MAX as usize)? as u64;
    let count = match reads && words.take("count") {
        true => Some(words.count_of("COUNT", MOST_ROWS)?.max(1)),
        false => None,
    };
    if words.peek().is_some() {
        return Err(words.unsupported("FT.CURSOR"));
    }
    let mut waiting = state.results.take(&index, number)?;
    if !reads {
        out.simple("OK");
        return Ok(());
    }
    let count = count.unwrap_or(waiting.count).min(waiting.table.rows.len());
    let rest = waiting.table.rows.split_off(count);
    let page = std::mem::replace(&mut waiting.table.rows, rest);
    waiting.bytes -= page.iter().map(Row::bytes).sum::<usize>();
    let table = Table { columns: waiting.table.columns.clone(), rows: page };
    let next = if waiting.table.rows.is_empty() { 0 } else { number };
    if next != 0 {
        state.results.put_back(number, waiting);
    }
    out.array(2);
    rows(state, &table, table.rows.len(), out)?;
    out.integer(next as i64);
    Ok(())
}
