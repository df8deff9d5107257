//! Answers the questions of other nodes about the partitions of this node.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ordna::sync::fault;
use ordna_secondary::{Error, IndexDefinition, View};

use crate::node::{LocalNode, NodeError};
use crate::query::merge::merge;
use crate::query::rows::{Rows, Run, Scan, group, read};
use crate::query::wire::{Answer, Part, Refusal, Request, fingerprint};

/// Maximum number of questions that are answered at the same time. If there are more, the other
/// node has to ask again.
pub const MOST_AT_ONCE: usize = 64;
/// The share of a partition in the bytes of an answer is at least this, however many partitions
/// there are.
const LEAST_BYTES: usize = 64 << 10;
/// Number of rows to read of a partition in addition to twice its share, as rows are rarely
/// distributed evenly over few partitions.
const LEAST_ROWS: usize = 16;
/// Maximum number of rows in an answer.
pub const MOST_ROWS: usize = 20_000;
/// Maximum number of bytes of the keys in an answer.
pub const MOST_BYTES: usize = 4 << 20;
/// Maximum time that a question waits.
const LONGEST: Duration = Duration::from_secs(60);

/// One of the slots for questions that are answered at the same time.
#[derive(Debug)]
pub struct AnswerSlot<'a>(&'a AtomicUsize);

impl<'a> AnswerSlot<'a> {
    /// Takes a slot if one is free.
    pub fn take(taken: &'a AtomicUsize, most: usize) -> Option<Self> {
        // Relaxed ordering is enough, as no other data depends on the counter.
        let add = |now| (now < most).then_some(now + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok().map(|_| Self(taken))
    }
}

impl Drop for AnswerSlot<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn refused(request: &Request, refusal: &Refusal) -> Answer {
    let parts = request.partitions.iter().map(|(p, _)| (*p, Err(refusal.clone()))).collect();
    Answer { parts, ..Answer::default() }
}

/// Returns the definition of an index, if the asking node has the same one.
fn definition<'a>(
    local: &'a dyn LocalNode,
    request: &Request,
) -> Result<&'a IndexDefinition, Refusal> {
    let name = &request.scan.selection.index;
    let found = local.indexes().iter().find(|definition| definition.name == *name);
    let found =
        found.ok_or_else(|| Refusal::Query(Error::UnknownIndex(name.clone()).to_string()))?;
    if fingerprint(found) != request.fingerprint {
        let why = format!("nodes have different definitions of the index {name:?}");
        return Err(Refusal::Query(why));
    }
    Ok(found)
}

/// Reads the first rows of some views and merges them. If the rows of a view turn out to be too
/// few, it is read again with a higher limit. Memory is at most four times that of the result.
fn merged(views: &[View], definition: &IndexDefinition, scan: &Scan) -> Result<Run, Error> {
    let key_group = |key: &'_ [u8]| group(definition, scan.distinct, key).len();
    let mut share = scan.limit / views.len().max(1) * 2 + LEAST_ROWS;
    loop {
        let part = Scan { limit: share.min(scan.limit), ..scan.clone() };
        let part = Scan { bytes: (scan.bytes / views.len().max(1)).max(LEAST_BYTES), ..part };
        let runs = views.iter().map(|view| read(view, definition, &part));
        let runs = runs.collect::<Result<Vec<Run>, _>>()?;
        let inputs: Vec<&Run> = runs.iter().collect();
        let most = (scan.limit, scan.bytes);
        let merged = merge(&inputs, scan.reverse, most, |key| &key[..key_group(key)]);
        let is_cut = runs.iter().any(|run| run.more && run.rows.len() == part.limit);
        if merged.more && merged.rows.len() < scan.limit && is_cut && share < scan.limit {
            share *= 4;
            continue;
        }
        let mut rows = Rows::default();
        let lost = usize::from(fault!("queries.first_row_is_lost"));
        for (input, row) in merged.rows.into_iter().skip(lost) {
            rows.push(runs[input].rows.key(row), runs[input].rows.id_len(row));
        }
        return Ok(Run { rows, more: merged.more });
    }
}

/// Answers a question. Each partition that the node holds is read at one position, and the rows of
/// all partitions are merged. Blocks until the requested states are reached, or the time is over.
pub fn answer(local: &dyn LocalNode, request: &Request) -> Answer {
    let until = Instant::now() + request.time.min(LONGEST);
    let definition = match definition(local, request) {
        Ok(definition) => definition,
        Err(refusal) => return refused(request, &refusal),
    };
    let mut scan = request.scan.clone();
    (scan.limit, scan.bytes) = (scan.limit.min(MOST_ROWS), scan.bytes.min(MOST_BYTES));
    let mut views = Vec::with_capacity(request.partitions.len());
    let mut parts = Vec::with_capacity(request.partitions.len());
    for (partition, asked) in &request.partitions {
        let shown = local.view(*partition, *asked, until);
        let part = shown.and_then(|shown| {
            let count = match request.counts {
                true => shown.view.count(
                    &definition.name,
                    &scan.selection.prefix,
                    &scan.selection.range,
                )?,
                false => 0,
            };
            let part = Part { position: shown.position(), age: shown.age, count: count as u64 };
            views.push(shown.view);
            Ok(part)
        });
        parts.push((*partition, part.map_err(Refusal::from)));
    }
    if request.counts {
        return Answer { parts, ..Answer::default() };
    }
    match merged(&views, definition, &scan) {
        Ok(run) => Answer { parts, run },
        Err(error) => refused(request, &Refusal::from(NodeError::from(error))),
    }
}
