//! `FT.AGGREGATE`: documents in groups, with sums over them.
//!
//! Groups are in the order of their values. Groups and rows are bounded by [`MOST_ROWS`].

use std::collections::BTreeMap;

use super::order::Key;
use super::plan::Plan;
use super::schema::Schema;
use crate::hash::Hash;

/// Rows or groups of an aggregation at most.
pub const MOST_ROWS: usize = 100_000;
/// Columns of LOAD * at most.
const MOST_COLUMNS: usize = 1024;
/// Rows that SORTBY leaves without LIMIT or MAX, as in RediSearch.
const SORTED: usize = 10;

/// What a group counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Reducer {
    pub function: Function,
    /// The field; COUNT has none.
    pub field: String,
    pub name: String,
}

/// How a group counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Count,
    Sum,
    Min,
    Max,
    Average,
}

/// A step of an aggregation.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Group {
        by: Vec<String>,
        reducers: Vec<Reducer>,
    },
    /// By fields, descending or not; at most so many rows.
    Sort {
        by: Vec<(String, bool)>,
        most: Option<usize>,
    },
    Limit {
        offset: usize,
        count: usize,
    },
}

type Cell = Option<Vec<u8>>;

/// Rows with named columns.
#[derive(Debug, Default, PartialEq)]
pub struct Table {
    pub columns: Vec<String>,
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    fn column(&self, name: &str) -> Result<usize, String> {
        let found = self.columns.iter().position(|column| column == name);
        found.ok_or_else(|| format!("ERR Property '{name}' is not there: LOAD it, or group by it"))
    }
}

/// Numbers of a group.
#[derive(Debug, Clone, Copy)]
struct Sums {
    count: usize,
    numbers: usize,
    sum: f64,
    min: f64,
    max: f64,
}

impl Sums {
    const NONE: Self =
        Self { count: 0, numbers: 0, sum: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY };

    fn add(&mut self, cell: Option<&[u8]>) {
        self.count += 1;
        if let Key::Number(number) = Key::of_text(cell) {
            self.numbers += 1;
            self.sum += number;
            self.min = self.min.min(number);
            self.max = self.max.max(number);
        }
    }

    /// Without numbers only COUNT and SUM are known.
    fn cell(&self, function: Function) -> Cell {
        let number = match function {
            Function::Count => return Some(self.count.to_string().into_bytes()),
            Function::Sum => self.sum,
            _ if self.numbers == 0 => return None,
            Function::Min => self.min,
            Function::Max => self.max,
            Function::Average => self.sum / self.numbers as f64,
        };
        Some(number.to_string().into_bytes())
    }
}

/// Groups under way.
struct Groups<'a> {
    reducers: &'a [Reducer],
    of: BTreeMap<Vec<Cell>, Vec<Sums>>,
}

impl<'a> Groups<'a> {
    fn new(reducers: &'a [Reducer]) -> Self {
        Self { reducers, of: BTreeMap::new() }
    }

    /// Adds a row, whose cells `cell` returns by the number of the reducer.
    fn add<'c>(&mut self, key: Vec<Cell>, mut cell: impl FnMut(usize) -> Option<&'c [u8]>) -> bool {
        if self.of.len() >= MOST_ROWS && !self.of.contains_key(&key) {
            return false;
        }
        let sums = self.of.entry(key).or_insert_with(|| vec![Sums::NONE; self.reducers.len()]);
        sums.iter_mut().enumerate().for_each(|(at, sums)| sums.add(cell(at)));
        true
    }

    fn finish(self, by: &[String]) -> Table {
        let names = self.reducers.iter().map(|reducer| reducer.name.clone());
        let columns = by.iter().cloned().chain(names).collect();
        let row = |(mut key, sums): (Vec<Cell>, Vec<Sums>)| {
            let cells = self.reducers.iter().zip(&sums);
            key.extend(cells.map(|(reducer, sums)| sums.cell(reducer.function)));
            key
        };
        Table { columns, rows: self.of.into_iter().map(row).collect() }
    }
}

fn too_many() -> String {
    format!("ERR the aggregation has more than {MOST_ROWS} rows; narrow the query or group it")
}

/// The cell of a document.
fn cell<'h>(schema: &Schema, hash: &Hash<'h>, name: &str) -> Option<&'h [u8]> {
    let path = schema.field(name).map_or(name, |field| field.path.as_str());
    hash.get(path.as_bytes())
}

/// Fields that a document's row has: name in the row, name in the document; all fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    pub fields: Vec<(String, String)>,
    pub all: bool,
}

/// Runs an aggregation; returns its rows, and how many there were before the last LIMIT.
///
/// # Errors
/// A column that is not there; too many rows.
pub fn run(
    plan: &Plan<'_>,
    schema: &Schema,
    load: &Load,
    steps: &[Step],
) -> Result<(Table, usize), String> {
    let (mut table, rest) = match steps {
        [Step::Group { by, reducers }, rest @ ..] if !load.all => {
            let mut groups = Groups::new(reducers);
            let mut fits = true;
            let path = |name: &str| {
                let loaded = load.fields.iter().find(|(column, _)| column == name);
                loaded.map_or_else(|| name.to_owned(), |(_, path)| path.clone())
            };
            let (by_paths, paths): (Vec<String>, Vec<String>) = (
                by.iter().map(|name| path(name)).collect(),
                reducers.iter().map(|reducer| path(&reducer.field)).collect(),
            );
            plan.visit(|_, hash| {
                let key = by_paths.iter().map(|name| cell(schema, hash, name).map(<[u8]>::to_vec));
                fits &= groups.add(key.collect(), |at| cell(schema, hash, &paths[at]));
            })?;
            if !fits {
                return Err(too_many());
            }
            (groups.finish(by), rest)
        }
        _ => (rows(plan, schema, load, steps)?, steps),
    };
    let mut total = table.rows.len();
    for (at, step) in rest.iter().enumerate() {
        match step {
            Step::Group { by, reducers } => {
                table = group(&table, by, reducers)?;
                total = table.rows.len();
            }
            Step::Sort { by, most } => {
                let columns = by
                    .iter()
                    .map(|(name, descending)| Ok((table.column(name)?, *descending)))
                    .collect::<Result<Vec<_>, String>>()?;
                let key = |row: &[Cell], at: usize| Key::of_text(row[at].as_deref());
                table.rows.sort_by(|a, b| {
                    let orders = columns.iter();
                    let mut orders =
                        orders.map(|(at, desc)| key(a, *at).compare(&key(b, *at), *desc));
                    orders.find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
                });
                let is_limited = matches!(rest.get(at + 1), Some(Step::Limit { .. }));
                let most = match most {
                    None if is_limited => usize::MAX,
                    None => SORTED,
                    Some(0) => usize::MAX,
                    Some(most) => *most,
                };
                table.rows.truncate(most);
            }
            Step::Limit { offset, count } => {
                table.rows.drain(..(*offset).min(table.rows.len()));
                table.rows.truncate(*count);
            }
        }
    }
    Ok((table, total))
}

/// The documents as rows.
fn rows(plan: &Plan<'_>, schema: &Schema, load: &Load, steps: &[Step]) -> Result<Table, String> {
    let mut fields = load.fields.clone();
    let mut columns: Vec<String> = fields.iter().map(|(name, _)| name.clone()).collect();
    // What is sorted by before a group need not be loaded if it is of the schema.
    for step in steps {
        match step {
            Step::Group { .. } => break,
            Step::Sort { by, .. } => {
                for (name, _) in by {
                    if schema.field(name).is_some() && !columns.contains(name) {
                        columns.push(name.clone());
                        fields.push((name.clone(), name.clone()));
                    }
                }
            }
            Step::Limit { .. } => {}
        }
    }
    let mut table = Table { columns, rows: Vec::new() };
    let mut fits = true;
    plan.visit(|_, hash| {
        fits &= table.rows.len() < MOST_ROWS;
        if !fits {
            return;
        }
        let known = fields.iter().map(|(_, path)| cell(schema, hash, path).map(<[u8]>::to_vec));
        let mut row: Vec<Cell> = known.collect();
        if load.all {
            for (field, value) in hash.iter() {
                let name = String::from_utf8_lossy(field);
                match table.columns.iter().position(|column| *column == name) {
                    Some(at) => {
                        row.resize(row.len().max(at + 1), None);
                        row[at] = Some(value.to_vec());
                    }
                    None if table.columns.len() < MOST_COLUMNS => {
                        table.columns.push(name.into_owned());
                        row.resize(table.columns.len() - 1, None);
                        row.push(Some(value.to_vec()));
                    }
                    None => fits = false,
                }
            }
        }
        table.rows.push(row);
    })?;
    if !fits {
        return Err(too_many());
    }
    let width = table.columns.len();
    table.rows.iter_mut().for_each(|row| row.resize(width, None));
    Ok(table)
}

fn group(table: &Table, by: &[String], reducers: &[Reducer]) -> Result<Table, String> {
    let keys = by.iter().map(|name| table.column(name)).collect::<Result<Vec<_>, _>>()?;
    let column = |reducer: &Reducer| match reducer.function {
        Function::Count => Ok(None),
        _ => table.column(&reducer.field).map(Some),
    };
    let columns = reducers.iter().map(column).collect::<Result<Vec<_>, _>>()?;
    let mut groups = Groups::new(reducers);
    for row in &table.rows {
        let key = keys.iter().map(|at| row[*at].clone()).collect();
        // There are no more groups than rows.
        groups.add(key, |at| columns[at].and_then(|at| row[at].as_deref()));
    }
    Ok(groups.finish(by))
}
