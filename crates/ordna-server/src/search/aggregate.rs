//! `FT.AGGREGATE`: groups of documents, with sums over them.
//!
//! Groups are returned in the order of their values. The number of groups and rows is limited by
//! [`MOST_ROWS`], and their memory by [`MOST_BYTES`].

use std::collections::{BTreeMap, HashMap};

use super::order::Key;
use super::plan::Plan;
use crate::indexes::schema::{FieldKind, KEY, Schema};
use crate::keyspace::hash::Hash;

/// Maximum number of rows or groups of an aggregation.
pub const MOST_ROWS: usize = 100_000;
/// Maximum number of columns of LOAD.
pub const MOST_COLUMNS: usize = 1024;
/// Maximum size in bytes of an aggregation's rows or groups.
const MOST_BYTES: usize = 64 << 20;
/// Size in bytes of the overhead of an allocation or of an entry in a map.
const OVERHEAD: usize = 16;
/// Number of rows that SORTBY keeps without LIMIT or MAX, as in RediSearch.
const SORTED: usize = 10;

/// One figure of a group.
#[derive(Debug, Clone, PartialEq)]
pub struct Reducer {
    pub function: Function,
    /// The field; empty for COUNT.
    pub field: String,
    pub name: String,
}

/// The function that computes a group's figure.
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
pub enum AggregateStep {
    Group {
        by: Vec<String>,
        reducers: Vec<Reducer>,
    },
    /// Sorts by fields, each ascending or descending, and optionally limits the number of rows.
    Sort {
        by: Vec<(String, bool)>,
        most: Option<usize>,
    },
    Limit {
        offset: usize,
        count: usize,
    },
}

type Cell = Option<Box<[u8]>>;

fn bytes_of(cell: &[u8]) -> usize {
    size_of::<(usize, Box<[u8]>)>() + OVERHEAD + cell.len()
}

/// The cells of a row with their columns, in ascending order of columns.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row(Vec<(usize, Box<[u8]>)>);

impl Row {
    fn of(cells: impl Iterator<Item = Cell>) -> Self {
        Self(cells.enumerate().filter_map(|(at, cell)| Some((at, cell?))).collect())
    }

    fn set(&mut self, column: usize, cell: &[u8]) {
        match self.0.binary_search_by_key(&column, |(column, _)| *column) {
            Ok(at) => self.0[at].1 = cell.into(),
            Err(at) => self.0.insert(at, (column, cell.into())),
        }
    }

    fn get(&self, column: usize) -> Option<&[u8]> {
        let at = self.0.binary_search_by_key(&column, |(column, _)| *column).ok()?;
        Some(&self.0[at].1)
    }

    /// Returns the cells with their columns.
    pub fn cells(&self) -> impl ExactSizeIterator<Item = (usize, &[u8])> {
        self.0.iter().map(|(column, cell)| (*column, &**cell))
    }

    /// Returns the memory of the row in bytes.
    pub fn bytes(&self) -> usize {
        let cells: usize = self.0.iter().map(|(_, cell)| bytes_of(cell)).sum();
        size_of::<Self>() + OVERHEAD + cells
    }
}

fn bytes_of_name(name: &str) -> usize {
    size_of::<String>() + OVERHEAD + name.len()
}

/// Rows with named columns.
#[derive(Debug, Default, PartialEq)]
pub struct RowTable {
    pub columns: Vec<String>,
    pub rows: Vec<Row>,
}

impl RowTable {
    /// Returns the memory of rows and names in bytes.
    pub fn bytes(&self) -> usize {
        let names: usize = self.columns.iter().map(|name| bytes_of_name(name)).sum();
        names + self.rows.iter().map(Row::bytes).sum::<usize>()
    }

    fn column(&self, name: &str) -> Result<usize, String> {
        let found = self.columns.iter().position(|column| column == name);
        found.ok_or_else(|| no_property(name))
    }
}

fn no_property(name: &str) -> String {
    format!("ERR Property '{name}' is not there: LOAD it, or group by it")
}

/// The sums over the numbers of a group.
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

    /// Returns the result of a function. Without numbers, only COUNT and SUM have one.
    fn cell(&self, function: Function) -> Cell {
        let number = match function {
            Function::Count => return Some(self.count.to_string().into_bytes().into()),
            Function::Sum => self.sum,
            _ if self.numbers == 0 => return None,
            Function::Min => self.min,
            Function::Max => self.max,
            Function::Average => self.sum / self.numbers as f64,
        };
        Some(number.to_string().into_bytes().into())
    }
}

/// The groups during an aggregation.
struct Groups<'a> {
    reducers: &'a [Reducer],
    of: BTreeMap<Vec<Cell>, Vec<Sums>>,
    bytes: usize,
}

impl<'a> Groups<'a> {
    fn new(reducers: &'a [Reducer]) -> Self {
        Self { reducers, of: BTreeMap::new(), bytes: 0 }
    }

    /// Adds a row. `cell` returns its cells by the number of the reducer.
    fn add<'c>(
        &mut self,
        key: &[Option<&[u8]>],
        mut cell: impl FnMut(usize) -> Option<&'c [u8]>,
    ) -> Result<(), String> {
        // Counted before the cells are copied, because several may be the same long field.
        let cells: usize = key.iter().map(|cell| bytes_of(cell.unwrap_or(&[]))).sum();
        check(1, cells)?;
        let key: Vec<Cell> = key.iter().map(|cell| cell.map(Box::from)).collect();
        if !self.of.contains_key(&key) {
            let sums = self.reducers.len() * size_of::<Sums>();
            self.bytes += size_of::<(Vec<Cell>, Vec<Sums>)>() + 2 * OVERHEAD + cells + sums;
            check(self.of.len() + 1, self.bytes)?;
        }
        let sums = self.of.entry(key).or_insert_with(|| vec![Sums::NONE; self.reducers.len()]);
        sums.iter_mut().enumerate().for_each(|(at, sums)| sums.add(cell(at)));
        Ok(())
    }

    fn finish(self, by: &[String]) -> RowTable {
        let names = self.reducers.iter().map(|reducer| reducer.name.clone());
        let columns = by.iter().cloned().chain(names).collect();
        let row = |(mut key, sums): (Vec<Cell>, Vec<Sums>)| {
            let cells = self.reducers.iter().zip(&sums);
            key.extend(cells.map(|(reducer, sums)| sums.cell(reducer.function)));
            Row::of(key.into_iter())
        };
        RowTable { columns, rows: self.of.into_iter().map(row).collect() }
    }
}

/// Returns an error if an aggregation would have too many rows or bytes.
fn check(rows: usize, bytes: usize) -> Result<(), String> {
    if rows > MOST_ROWS {
        return Err(format!(
            "ERR the aggregation has more than {MOST_ROWS} rows; narrow the query or group it"
        ));
    }
    if bytes > MOST_BYTES {
        return Err(format!(
            "ERR the aggregation takes more than {MOST_BYTES} bytes; narrow the query or group it"
        ));
    }
    Ok(())
}

/// Returns whether any document may have the name: a field of the schema, or the key.
fn is_known(schema: &Schema, name: &str) -> bool {
    name == KEY || schema.field(name).is_some()
}

/// Returns the cell of a document.
fn cell<'h>(schema: &Schema, id: &'h [u8], hash: &Hash<'h>, name: &str) -> Option<&'h [u8]> {
    if name == KEY {
        return Some(id);
    }
    let path = schema.field(name).map_or(name, |field| field.path.as_str());
    hash.get(path.as_bytes())
}

/// The fields that a document's row has: pairs of the name in the row and the name in the document,
/// or all fields.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Load {
    pub fields: Vec<(String, String)>,
    pub all: bool,
}

impl Load {
    /// Returns the name in the document for a name in the row.
    fn path(&self, name: &str) -> Option<&str> {
        let loaded = self.fields.iter().find(|(column, _)| column == name);
        loaded.map(|(_, path)| path.as_str())
    }
}

/// Runs an aggregation. Returns its rows, and their number before the last LIMIT.
///
/// # Errors
/// A column does not exist, or there are too many rows.
pub fn run(
    plan: &Plan<'_>,
    schema: &Schema,
    load: &Load,
    steps: &[AggregateStep],
) -> Result<(RowTable, usize), String> {
    let (mut table, rest) = match steps {
        [AggregateStep::Group { by, reducers }, rest @ ..] if !load.all => {
            let mut groups = Groups::new(reducers);
            let path = |name: &String| match load.path(name) {
                Some(path) => Ok(path.to_owned()),
                None if is_known(schema, name) => Ok(name.clone()),
                None => Err(no_property(name)),
            };
            let by_paths = by.iter().map(path).collect::<Result<Vec<_>, _>>()?;
            let paths = reducers.iter().map(|reducer| match reducer.function {
                Function::Count => Ok(String::new()),
                _ => path(&reducer.field),
            });
            let paths = paths.collect::<Result<Vec<_>, _>>()?;
            let mut done = Ok(());
            plan.visit(|id, hash| {
                if done.is_ok() {
                    let key = by_paths.iter().map(|name| cell(schema, id, hash, name));
                    let key: Vec<_> = key.collect();
                    done = groups.add(&key, |at| cell(schema, id, hash, &paths[at]));
                }
            })?;
            done?;
            (groups.finish(by), rest)
        }
        _ => (rows(plan, schema, load, steps)?, steps),
    };
    let mut total = table.rows.len();
    for (at, step) in rest.iter().enumerate() {
        plan.check_time()?;
        match step {
            AggregateStep::Group { by, reducers } => {
                table = group(&table, by, reducers)?;
                total = table.rows.len();
            }
            AggregateStep::Sort { by, most } => {
                let before = &steps[..steps.len() - rest.len() + at];
                let column = |(name, descending): &(String, bool)| {
                    Ok((table.column(name)?, kind_of(schema, load, before, name), *descending))
                };
                let columns = by.iter().map(column).collect::<Result<Vec<_>, String>>()?;
                table.rows.sort_by(|a, b| {
                    let mut orders = columns.iter().map(|(at, kind, descending)| {
                        let key = |row: &Row| Key::of_cell(*kind, row.get(*at));
                        key(a).compare(&key(b), *descending)
                    });
                    orders.find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
                });
                let is_limited = matches!(rest.get(at + 1), Some(AggregateStep::Limit { .. }));
                let most = match most {
                    None if is_limited => usize::MAX,
                    None => SORTED,
                    Some(0) => usize::MAX,
                    Some(most) => *most,
                };
                table.rows.truncate(most);
            }
            AggregateStep::Limit { offset, count } => {
                table.rows.drain(..(*offset).min(table.rows.len()));
                table.rows.truncate(*count);
            }
        }
    }
    Ok((table, total))
}

/// Returns the type of a column, if the schema defines it and the column is not the result of a
/// group.
fn kind_of(
    schema: &Schema,
    load: &Load,
    before: &[AggregateStep],
    name: &str,
) -> Option<FieldKind> {
    let is_reduced = before.iter().any(|step| match step {
        AggregateStep::Group { reducers, .. } => {
            reducers.iter().any(|reducer| reducer.name == name)
        }
        AggregateStep::Sort { .. } | AggregateStep::Limit { .. } => false,
    });
    let field = schema.field(load.path(name).unwrap_or(name)).filter(|_| !is_reduced);
    field.map(|field| field.kind)
}

/// Returns the documents as rows.
fn rows(
    plan: &Plan<'_>,
    schema: &Schema,
    load: &Load,
    steps: &[AggregateStep],
) -> Result<RowTable, String> {
    let mut fields = load.fields.clone();
    let mut columns: Vec<String> = fields.iter().map(|(name, _)| name.clone()).collect();
    // Fields of the schema that steps up to a group name need not be loaded explicitly.
    for step in steps {
        let (mut names, mut is_last): (Vec<&String>, _) = (Vec::new(), false);
        match step {
            AggregateStep::Group { by, reducers } => {
                names.extend(by.iter().chain(reducers.iter().map(|reducer| &reducer.field)));
                is_last = true;
            }
            AggregateStep::Sort { by, .. } => names.extend(by.iter().map(|(name, _)| name)),
            AggregateStep::Limit { .. } => {}
        }
        for name in names {
            if is_known(schema, name) && !columns.contains(name) {
                columns.push(name.clone());
                fields.push((name.clone(), name.clone()));
            }
        }
        if is_last {
            break;
        }
    }
    let names = columns.iter().enumerate().map(|(at, name)| (name.clone(), at));
    let mut known: HashMap<String, usize> = names.collect();
    let mut table = RowTable { columns, rows: Vec::new() };
    let (mut bytes, mut done) = (0, Ok(()));
    plan.visit(|id, hash| {
        if done.is_err() {
            return;
        }
        let cells = || fields.iter().map(|(_, path)| cell(schema, id, hash, path));
        // Counted before they are copied, because several may be the same long field.
        let copied: usize = cells().flatten().map(bytes_of).sum();
        done = check(table.rows.len() + 1, bytes + copied);
        if done.is_err() {
            return;
        }
        let mut row = Row::of(cells().map(|cell| cell.map(Box::from)));
        for (field, value) in hash.iter().filter(|_| load.all) {
            let name = String::from_utf8_lossy(field);
            let column = match known.get(&*name) {
                Some(column) => *column,
                None if table.columns.len() == MOST_COLUMNS => {
                    done = Err(format!(
                        "ERR the documents have more than {MOST_COLUMNS} fields together: LOAD some of them by name"
                    ));
                    return;
                }
                None => {
                    // The name is stored here and in the table.
                    bytes += 2 * bytes_of_name(&name);
                    known.insert(name.clone().into_owned(), table.columns.len());
                    table.columns.push(name.into_owned());
                    table.columns.len() - 1
                }
            };
            row.set(column, value);
        }
        row.0.shrink_to_fit();
        bytes += row.bytes();
        done = check(table.rows.len() + 1, bytes);
        table.rows.push(row);
    })?;
    done.map(|()| table)
}

fn group(table: &RowTable, by: &[String], reducers: &[Reducer]) -> Result<RowTable, String> {
    let keys = by.iter().map(|name| table.column(name)).collect::<Result<Vec<_>, _>>()?;
    let column = |reducer: &Reducer| match reducer.function {
        Function::Count => Ok(None),
        _ => table.column(&reducer.field).map(Some),
    };
    let columns = reducers.iter().map(column).collect::<Result<Vec<_>, _>>()?;
    let mut groups = Groups::new(reducers);
    for row in &table.rows {
        let key: Vec<_> = keys.iter().map(|at| row.get(*at)).collect();
        groups.add(&key, |at| columns[at].and_then(|at| row.get(at)))?;
    }
    Ok(groups.finish(by))
}
