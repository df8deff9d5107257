//! Plans of queries: which index is scanned, and which documents match.
//!
//! # Consistency
//! The candidates come from a consistent state of the indexes that includes everything written
//! before the query began. Then a snapshot of the keyspace is taken, from which each candidate is
//! read and completely checked. No transaction of another client comes between the two. So each
//! returned document is as it was at one moment, and matches the query. A document that matches
//! from the beginning of the query to its end is returned. A document that changes concurrently is
//! returned in its former or later state or, if it matches only because of that change, may be left
//! out. The total of a query for all documents is that of the state of the indexes.
//!
//! # Cost
//! O(candidates), that is, the entries of the smallest index range of the query. A query with more
//! than [`MOST_CANDIDATES`] is refused. Sorting costs O(candidates · log(offset + limit)) time and
//! O(offset + limit) memory, because only the requested part is kept.

use std::collections::HashSet;
use std::ops::Bound;
use std::time::{Duration, Instant};

use ordna::tuple::{Number, Value};
use ordna_secondary::{Query, Range, View, lower};

use super::parse::{Node, Tag};
use crate::indexes::schema::{Field, FieldKind, Schema};
use crate::indexes::{Indexes, error_text, patience};
use crate::keyspace::Keyspace;
use crate::keyspace::hash::Hash;
use crate::keyspace::snapshot::KeyspaceSnapshot;

/// Maximum number of documents that a query examines: about a second of work.
pub const MOST_CANDIDATES: usize = 1_000_000;
/// Maximum number of entries that are read from an index at a time.
const PAGE: usize = 1024;
/// Size in bytes of keys after which such a read ends.
const PAGE_BYTES: usize = 1 << 20;
/// Number of entries below which a range is used without comparing it with others.
const SMALL: usize = 256;

/// A range of an index of the library.
#[derive(Debug, Clone)]
struct IndexRange {
    index: String,
    prefix: Vec<Value>,
    range: Range,
    /// A description of the range for users.
    shown: String,
}

/// The source of the candidates.
#[derive(Debug, Clone)]
struct Candidates {
    spans: Vec<IndexRange>,
    entries: usize,
}

/// A state of the indexes, and a later one of the documents.
pub struct Plan<'a> {
    schema: &'a Schema,
    node: Node,
    view: View,
    documents: KeyspaceSnapshot,
    until: Instant,
    timeout: Duration,
}

/// Checks a query against a schema, and gives its tags the case of their fields.
///
/// # Errors
/// A field that is not there, or is of another type.
pub fn check(node: &mut Node, schema: &Schema) -> Result<(), String> {
    let named = |name: &str| {
        let field = schema.field(name).ok_or_else(|| unknown_field(name, schema))?;
        match field.no_index {
            true => Err(format!("ERR the field '{name}' is NOINDEX: it cannot be searched")),
            false => Ok(field),
        }
    };
    match node {
        Node::All => Ok(()),
        Node::Not(node) => check(node, schema),
        Node::And(nodes) | Node::Or(nodes) => {
            nodes.iter_mut().try_for_each(|node| check(node, schema))
        }
        Node::Tags { field, tags } => match named(field)?.kind {
            FieldKind::Tag { case_sensitive, .. } => {
                if !case_sensitive {
                    tags.iter_mut().for_each(|tag| tag.text = lower(&tag.text));
                }
                Ok(())
            }
            FieldKind::Numeric => {
                Err(format!("ERR the field '{field}' is NUMERIC: ask for it as @{field}:[lo hi]"))
            }
        },
        Node::Range { field, .. } => match named(field)?.kind {
            FieldKind::Numeric => Ok(()),
            FieldKind::Tag { .. } => {
                Err(format!("ERR the field '{field}' is TAG: ask for it as @{field}:{{tag}}"))
            }
        },
    }
}

/// Returns the error of a reply that would exceed the limit of replies.
pub fn reply_too_large(most: usize) -> String {
    format!("ERR the reply would exceed {most} bytes; ask for less")
}

/// Returns the error for a name that is not a field.
pub fn unknown_field(name: &str, schema: &Schema) -> String {
    format!("ERR Unknown field '{name}': the index {} has none of this name", schema.name)
}

/// Returns whether a document passes a query that was checked.
fn passes(node: &Node, schema: &Schema, hash: &Hash<'_>) -> bool {
    match node {
        Node::All => true,
        Node::Not(node) => !passes(node, schema, hash),
        Node::And(nodes) => nodes.iter().all(|node| passes(node, schema, hash)),
        Node::Or(nodes) => nodes.iter().any(|node| passes(node, schema, hash)),
        Node::Tags { field, tags } => schema.field(field).is_some_and(|field| {
            let is = |tag: &Tag, text: &str| match tag.is_prefix {
                true => text.starts_with(&tag.text),
                false => text == tag.text,
            };
            field.any_tag(hash, |text| tags.iter().any(|tag| is(tag, text)))
        }),
        Node::Range { field, lower, upper } => {
            let number = schema.field(field).and_then(|field| field.number(hash));
            number.is_some_and(|number| {
                let above = match lower {
                    Bound::Included(lower) => number >= *lower,
                    Bound::Excluded(lower) => number > *lower,
                    Bound::Unbounded => true,
                };
                above
                    && match upper {
                        Bound::Included(upper) => number <= *upper,
                        Bound::Excluded(upper) => number < *upper,
                        Bound::Unbounded => true,
                    }
            })
        }
    }
}

/// Numbers beyond the exact integers of a float: an index holds them exactly, a check compares
/// floats.
fn widened(bound: Bound<f64>, up: bool) -> Bound<Value> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let (Bound::Included(n) | Bound::Excluded(n)) = bound else { return Bound::Unbounded };
    let number = |n: f64| Value::Number(Number::from(n));
    if n.abs() >= EXACT && n.is_finite() {
        return Bound::Included(number(if up { n.next_up() } else { n.next_down() }));
    }
    bound.map(number)
}

fn shown_bound(bound: &Bound<f64>) -> String {
    match bound {
        Bound::Included(n) => n.to_string(),
        Bound::Excluded(n) => format!("({n}"),
        Bound::Unbounded => "inf".to_owned(),
    }
}

impl<'a> Plan<'a> {
    /// Creates a plan of a checked query, with the states that it reads.
    ///
    /// # Errors
    /// The state does not come in time.
    pub fn new(
        indexes: &Indexes,
        schema: &'a Schema,
        node: Node,
        (timeout, held): (Duration, Option<&Keyspace>),
    ) -> Result<Self, String> {
        let timeout = patience(timeout, held);
        let until = Instant::now() + timeout;
        let service = indexes.service()?;
        // An index that is still being built is waited for.
        let all = schema.fields.iter().filter(|field| !field.no_index);
        for name in std::iter::once(schema.documents()).chain(all.map(|f| schema.index_of(f))) {
            let left = until.saturating_duration_since(Instant::now());
            service.wait_until_built(&name, left).map_err(error_text)?;
        }
        indexes.expire_now(held);
        let (view, documents) = indexes.snapshot_point(until, held.is_some())?;
        Ok(Self { schema, node, view, documents, until, timeout })
    }

    fn spans_of(&self, field: &Field, node: &Node) -> Vec<IndexRange> {
        let index = self.schema.index_of(field);
        match node {
            Node::Tags { tags, .. } => {
                let span = |tag: &Tag| {
                    let text = Value::String(tag.text.clone());
                    let (prefix, range, star) = match tag.is_prefix {
                        true => (vec![], Range::StartsWith(tag.text.clone()), "*"),
                        false => (vec![text], Range::All, ""),
                    };
                    let shown = format!("@{}:{{{}{star}}}", field.name, tag.text);
                    IndexRange { index: index.clone(), prefix, range, shown }
                };
                tags.iter().map(span).collect()
            }
            Node::Range { lower, upper, .. } => {
                let (from, to) = (shown_bound(lower), shown_bound(upper));
                let range = Range::Between(widened(*lower, false), widened(*upper, true));
                let shown = format!("@{}:[{from} {to}]", field.name);
                vec![IndexRange { index, prefix: vec![], range, shown }]
            }
            _ => Vec::new(),
        }
    }

    /// Returns the number of entries of some spans: exact up to `most`, beyond that as many as
    /// there are or `most` + 1.
    fn count(&self, spans: &[IndexRange], most: usize) -> Result<usize, String> {
        let mut sum = 0;
        for span in spans {
            let counted = self.view.count_up_to(&span.index, &span.prefix, &span.range, most);
            sum += counted.map_err(error_text)?;
            self.check_time()?;
            if sum > most {
                break;
            }
        }
        Ok(sum)
    }

    /// Returns an error once the time limit of the query has passed.
    ///
    /// # Errors
    /// The time is over.
    pub fn check_time(&self) -> Result<(), String> {
        match Instant::now() > self.until {
            true => Err(format!("ERR Timeout limit of {:?} was reached", self.timeout)),
            false => Ok(()),
        }
    }

    /// Returns the smallest source of candidates for a part of the query, if it has fewer than
    /// `most`.
    fn source(&self, node: &Node, most: usize) -> Result<Option<Candidates>, String> {
        match node {
            Node::All | Node::Not(_) => Ok(None),
            Node::Tags { field, .. } | Node::Range { field, .. } => {
                let Some(field) = self.schema.field(field) else { return Ok(None) };
                let spans = self.spans_of(field, node);
                let entries = self.count(&spans, most)?;
                Ok((entries <= most).then_some(Candidates { spans, entries }))
            }
            Node::And(nodes) => {
                let mut best: Option<Candidates> = None;
                for node in nodes {
                    let most = best.as_ref().map_or(most, |best| best.entries);
                    best = self.source(node, most)?.or(best);
                }
                Ok(best)
            }
            Node::Or(nodes) => {
                let mut together = Candidates { spans: Vec::new(), entries: 0 };
                for node in nodes {
                    let Some(source) = self.source(node, most)? else { return Ok(None) };
                    together.spans.extend(source.spans);
                    together.entries += source.entries;
                }
                Ok((together.entries <= most).then_some(together))
            }
        }
    }

    /// Returns the smallest source. All sources are tried with a small bound first, then with
    /// larger ones.
    fn choose(&self) -> Result<Candidates, String> {
        let mut most = SMALL;
        while most < MOST_CANDIDATES {
            if let Some(source) = self.source(&self.node, most)? {
                return Ok(source);
            }
            if matches!(self.node, Node::All) {
                break;
            }
            most = most.saturating_mul(16).min(MOST_CANDIDATES);
            if most == MOST_CANDIDATES
                && let Some(source) = self.source(&self.node, most)?
            {
                return Ok(source);
            }
        }
        let index = self.schema.documents();
        let entries = self.view.count(&index, &[], &Range::All).map_err(error_text)?;
        let span = IndexRange { index, prefix: vec![], range: Range::All, shown: "*".to_owned() };
        Ok(Candidates { spans: vec![span], entries })
    }

    /// Calls `each` once with the key and the hash of every document that matches.
    ///
    /// # Errors
    /// There are too many candidates, or the time is over.
    pub fn visit(&self, mut each: impl FnMut(&[u8], &Hash<'_>)) -> Result<(), String> {
        let source = self.choose()?;
        if source.entries > MOST_CANDIDATES {
            return Err(format!(
                "ERR the query would look at more than {MOST_CANDIDATES} documents: narrow it, or scan an index of ORDNA.INDEX, which is in order"
            ));
        }
        // A document may have several tags, but only one entry for a single tag or number.
        let is_single = match source.spans.as_slice() {
            [span] => !matches!(span.range, Range::StartsWith(_)),
            _ => false,
        };
        let mut met: HashSet<Vec<u8>> = HashSet::new();
        for span in &source.spans {
            let query = Query::new().prefix(span.prefix.clone()).range(span.range.clone());
            let mut query = query.limit(PAGE).max_bytes(PAGE_BYTES);
            loop {
                let page = self.view.query(&span.index, &query).map_err(error_text)?;
                for entry in page.entries {
                    self.documents.with_whole_hash(&entry.id, |hash| {
                        if self.passes(&hash) && (is_single || met.insert(entry.id.clone())) {
                            each(&entry.id, &hash);
                        }
                    });
                }
                self.check_time()?;
                let Some(cursor) = page.cursor else { break };
                query = query.cursor(cursor);
            }
        }
        Ok(())
    }

    fn passes(&self, hash: &Hash<'_>) -> bool {
        passes(&self.node, self.schema, hash)
    }

    /// Reads a document of the plan's state.
    pub fn read<R>(&self, key: &[u8], read: impl FnOnce(Hash<'_>) -> R) -> Option<R> {
        self.documents.with_whole_hash(key, read)
    }

    /// Returns the number of all documents if the query matches all of them.
    ///
    /// # Errors
    /// The index failed.
    pub fn count_all(&self) -> Result<Option<usize>, String> {
        match self.node {
            Node::All => {
                let count = self.view.count(&self.schema.documents(), &[], &Range::All);
                count.map(Some).map_err(error_text)
            }
            _ => Ok(None),
        }
    }

    /// Returns the keys of all documents in order, from `offset` on, with at most `most` bytes.
    /// O(offset + count). A document that was removed after the state of the indexes is on no page.
    ///
    /// # Errors
    /// The index failed, or there are more bytes.
    pub fn page_of_all(
        &self,
        offset: usize,
        count: usize,
        most: usize,
    ) -> Result<Vec<Vec<u8>>, String> {
        let mut bytes = 0;
        let (index, mut found, mut passed) = (self.schema.documents(), Vec::new(), 0);
        let mut query = Query::new().limit((offset + count).min(PAGE)).max_bytes(PAGE_BYTES);
        while found.len() < count {
            let page = self.view.query(&index, &query).map_err(error_text)?;
            for id in page.entries.into_iter().map(|entry| entry.id) {
                if found.len() < count && self.read(&id, |_| ()).is_some() {
                    passed += 1;
                    if passed > offset {
                        bytes += id.len();
                        if bytes > most {
                            return Err(reply_too_large(most));
                        }
                        found.push(id);
                    }
                }
            }
            let Some(cursor) = page.cursor else { break };
            query = query.cursor(cursor);
        }
        Ok(found)
    }

    /// Describes the chosen index and bounds for users.
    ///
    /// # Errors
    /// The index failed.
    pub fn explain(&self) -> Result<String, String> {
        let source = self.choose()?;
        let mut text = String::new();
        for span in &source.spans {
            let (_, name) = span.index.split_once('\0').unwrap_or_default();
            let name = name.replace('\0', ".");
            text.push_str(&format!("INDEX {name} BOUNDS {}\n", span.shown));
        }
        text.push_str(&format!("ENTRIES {}\nCHECK {}\n", source.entries, shown(&self.node)));
        Ok(text)
    }
}

fn shown(node: &Node) -> String {
    let all = |nodes: &[Node], between| nodes.iter().map(shown).collect::<Vec<_>>().join(between);
    match node {
        Node::All => "*".to_owned(),
        Node::Not(node) => format!("-{}", shown(node)),
        Node::And(nodes) => format!("({})", all(nodes, " ")),
        Node::Or(nodes) => format!("({})", all(nodes, " | ")),
        Node::Tags { field, tags } => {
            let tag = |tag: &Tag| format!("{}{}", tag.text, if tag.is_prefix { "*" } else { "" });
            format!("@{field}:{{{}}}", tags.iter().map(tag).collect::<Vec<_>>().join("|"))
        }
        Node::Range { field, lower, upper } => {
            format!("@{field}:[{} {}]", shown_bound(lower), shown_bound(upper))
        }
    }
}
