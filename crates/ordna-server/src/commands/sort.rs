//! `SORT` and `SORT_RO`.
//!
//! Without `STORE`, these commands read a snapshot, so that no other command waits while they sort.
//! Within a transaction or a script no other command runs anyway. With `STORE`, most of the work is
//! [prepared](crate::execution::prepared_writes) without the lock. The commit then checks that the
//! keys named by the call have not changed. It does not check keys that patterns name: their values
//! are those of the snapshot, which is taken while no write is in progress.
//!
//! # Cost
//! O(n log n) comparisons for n elements, and one read for each element and pattern. The elements,
//! the values that they are sorted by, and the result may each take as many bytes as a reply.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use ordna::Direction;

use crate::execution::command::{
    Command, CommandOutcome, Context, READ_SLOW, Result, Task, WRITE_SLOW,
};
use crate::keyspace::Keyspace;
use crate::keyspace::collections::head::Head;
use crate::keyspace::list::ListView;
use crate::keyspace::set::SetView;
use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::sorted_set::SortedSet;
use crate::keyspace::stored_value;
use crate::keyspace::value_kind::ValueKind;
use crate::state::ServerState;
use crate::state::command_spec::{CommandFlags, Growth, KeyAccess, ONE_KEY};
use crate::wire::double;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, number};

/// ACL categories of the data types that can be sorted.
const OF_TYPES: &[&str] = &["set", "sortedset", "list", "dangerous"];

pub const COMMANDS: &[Command] = &[
    Command::new(
        "sort",
        -2,
        WRITE_SLOW.or(CommandFlags::MOVABLEKEYS),
        ONE_KEY,
        "Sorts the elements of a list, set or sorted set, and optionally stores the result.",
        sort,
    )
    .grows(Growth::Copies)
    .accesses(KeyAccess::READ, KeyAccess::WRITE)
    .last_key(store_key)
    .also_in(OF_TYPES),
    Command::new(
        "sort_ro",
        -2,
        READ_SLOW.or(CommandFlags::MOVABLEKEYS),
        ONE_KEY,
        "Sorts the elements of a list, set or sorted set.",
        sort,
    )
    .also_in(OF_TYPES),
];

/// Returns the position of the key of the last option `STORE`. For a call that is refused because
/// of another word, it returns the position that Redis reports, where the key of `STORE` may be
/// read as an option.
fn store_key(arguments: Arguments<'_>) -> Option<usize> {
    let last = |passes_key: bool| {
        let (mut at, mut found, mut is_valid) = (2, None, true);
        while at < arguments.len() {
            match arguments.get(at).to_ascii_lowercase().as_slice() {
                b"limit" => at += 2,
                b"get" | b"by" => at += 1,
                b"store" if at + 1 < arguments.len() => {
                    found = Some(at + 1);
                    at += usize::from(passes_key);
                }
                b"asc" | b"desc" | b"alpha" => {}
                _ => is_valid = false,
            }
            at += 1;
        }
        (found, is_valid)
    };
    let (found, is_valid) = last(true);
    if is_valid { found } else { last(false).0 }
}

/// The options of a call.
struct Options<'a> {
    descends: bool,
    is_alpha: bool,
    /// Whether the elements keep their present order.
    keeps_order: bool,
    by: Option<&'a [u8]>,
    get: Vec<&'a [u8]>,
    limit: (i64, i64),
    store: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    /// Returns the number of reads for each element: one for itself, and one for each pattern.
    fn reads_of_each(&self) -> usize {
        1 + self.by.iter().chain(&self.get).filter(|pattern| star(pattern).is_some()).count()
    }

    /// Parses the options. `reads_all` returns whether the user may read all keys.
    fn read(arguments: Arguments<'a>, reads_all: impl Fn() -> bool) -> Result<Self> {
        let may_store = arguments.get(0).eq_ignore_ascii_case(b"sort");
        let mut options = Self {
            descends: false,
            is_alpha: false,
            keeps_order: false,
            by: None,
            get: Vec::new(),
            limit: (0, -1),
            store: None,
        };
        let mut words = arguments.iter_from(2);
        while let Some(word) = words.next() {
            match word.to_ascii_lowercase().as_slice() {
                b"asc" => options.descends = false,
                b"desc" => options.descends = true,
                b"alpha" => options.is_alpha = true,
                b"limit" if words.len() >= 2 => {
                    let mut value =
                        || words.next().and_then(number).ok_or(CommandError::NotAnInteger);
                    options.limit = (value()?, value()?);
                }
                b"store" if may_store && words.len() >= 1 => options.store = words.next(),
                b"by" if words.len() >= 1 => {
                    options.by = words.next();
                    // As in Redis, a later pattern cannot undo this.
                    match options.by.is_some_and(|pattern| star(pattern).is_some()) {
                        false => options.keeps_order = true,
                        true if reads_all() => {}
                        true => {
                            return Err(
                                "ERR BY option of SORT denied due to insufficient ACL permissions."
                                    .into(),
                            );
                        }
                    }
                }
                b"get" if words.len() >= 1 => {
                    if !reads_all() {
                        return Err(
                            "ERR GET option of SORT denied due to insufficient ACL permissions."
                                .into(),
                        );
                    }
                    options.get.extend(words.next());
                }
                _ => return Err(CommandError::Syntax),
            }
        }
        Ok(options)
    }
}

/// Returns the position of the first star. As in Redis, a zero byte ends the text.
fn star(pattern: &[u8]) -> Option<usize> {
    c_text(pattern).iter().position(|byte| *byte == b'*')
}

fn c_text(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn sort(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    let (state, user) = (context.state, context.session.user.clone());
    let options = Options::read(arguments, || {
        let spec = context.table.catalog.find(arguments.get(0));
        user.as_ref()
            .zip(spec)
            .is_some_and(|(user, spec)| user.reads_all_keys(spec, arguments, &state.indexes))
    })?;
    let Some(key) = options.store else {
        return Ok(CommandOutcome::Task(Task::new(arguments, sort_snapshot)));
    };
    let keys = match context.keys.snapshot() {
        Some(snapshot) => snapshot.clone(),
        None => {
            let len = |stored: &[u8]| Head::read(stored).map_or(0, |head| head.len());
            let len = context.stored(arguments.get(1), len).unwrap_or(0);
            context.check_work(len.saturating_mul(options.reads_of_each()))?;
            context.check_bytes(&[arguments.get(1)])?;
            if !context.keys.is_exclusive() {
                return Err(CommandError::NeedsExclusive);
            }
            KeyspaceSnapshot::of(&context.keys)
        }
    };
    let most = state.settings.reply_limit();
    let sorted = Sorted::read(&keys, arguments.get(1), &options, most)?;
    let mut values: Vec<Vec<u8>> = Vec::new();
    let mut bytes = 0;
    sorted.results(&keys, &options, |value| {
        let value = value.unwrap_or_default();
        bytes += value.len() + OVERHEAD;
        values.push(value.to_vec());
        if bytes > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    drop(keys);
    if bytes > most {
        return Err(too_large(most));
    }
    match values.len() {
        0 => context.put_nothing(key)?,
        _ => {
            let value = context.keys.build_list(&values)?;
            context.put_value(key, &value, None)?;
        }
    }
    out.count(values.len());
    Ok(CommandOutcome::Done)
}

/// Memory that an element takes in addition to its bytes.
const OVERHEAD: usize = 48;

fn too_large(most: usize) -> CommandError {
    format!("ERR SORT would take more than {most} bytes; use LIMIT, or a sorted set").into()
}

/// Sorts without the lock of the keyspace.
fn sort_snapshot(
    state: &ServerState,
    held: Option<&Keyspace>,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> Result<()> {
    // The rights were checked when the task was created.
    let options = Options::read(arguments, || true)?;
    let keys = match held {
        Some(keys) => KeyspaceSnapshot::of(keys),
        None if options.by.is_none() && options.get.is_empty() => {
            KeyspaceSnapshot::of(&state.keys())
        }
        // If a pattern names other keys, the snapshot must be consistent over several keys, so it
        // is taken while no write is in progress.
        None => KeyspaceSnapshot::of(&state.keys_exclusive()),
    };
    let most = state.settings.reply_limit();
    let sorted = Sorted::read(&keys, arguments.get(1), &options, most)?;
    let start = out.bytes.len();
    out.array(sorted.range.len() * options.get.len().max(1));
    sorted.results(&keys, &options, |value| {
        out.bulk_or_null(value);
        let fits = out.bytes.len() - start <= most;
        if fits { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    if out.bytes.len() - start > most {
        return Err(format!("ERR the reply would exceed {most} bytes; ask for less").into());
    }
    Ok(())
}

/// The sorted elements, and the range of those that `LIMIT` selects.
struct Sorted {
    elements: Vec<Vec<u8>>,
    range: std::ops::Range<usize>,
}

impl Sorted {
    fn read(
        keys: &KeyspaceSnapshot,
        key: &[u8],
        options: &Options<'_>,
        most: usize,
    ) -> Result<Self> {
        let kind = keys.get_with(key, ValueKind::of);
        // A set has no order of its own. It is sorted, so that the result is always the same.
        let keeps_order = options.keeps_order && kind != Some(ValueKind::Set);
        let mut elements = Elements { all: Vec::new(), left: most };
        match kind {
            None => {}
            Some(ValueKind::List) => {
                keys.read_collection(key, ValueKind::List, |body| {
                    let list = ListView(body);
                    list.visit(0, list.len(), Direction::Ascending, |value| elements.add(value));
                })?;
            }
            Some(ValueKind::Set) => {
                keys.read_collection(key, ValueKind::Set, |body| {
                    SetView(body).visit(|member| elements.add(member));
                })?;
            }
            Some(ValueKind::ZSet) => {
                keys.read_collection(key, ValueKind::ZSet, |body| {
                    let set = SortedSet(body);
                    let count = set.len();
                    set.visit_positions(0, count, Direction::Ascending, |member, _| {
                        // Further elements are only counted.
                        let _ = elements.add(member);
                    });
                })?;
            }
            Some(_) => return Err(CommandError::WrongType),
        }
        if elements.left == 0 {
            return Err(too_large(most));
        }
        let mut elements = elements.all;
        let range = range_of(options.limit, elements.len());
        if keeps_order {
            if options.descends {
                elements.reverse();
            }
            return Ok(Self { elements, range });
        }
        let by = options.by.filter(|_| !options.keeps_order);
        let is_alpha = options.is_alpha || options.keeps_order;
        let weigh = |element: &[u8]| -> Result<Weight> {
            let found = match by {
                None => None,
                Some(pattern) => match value_of(keys, pattern, element) {
                    None => {
                        return Ok(if is_alpha { Weight::Text(None) } else { Weight::Number(0.0) });
                    }
                    found => found,
                },
            };
            Ok(match (is_alpha, found) {
                // The element itself.
                (true, None) => Weight::Element,
                (true, found) => Weight::Text(found),
                (false, found) => Weight::Number(number_of(found.as_deref().unwrap_or(element))?),
            })
        };
        let mut left = most;
        let mut weighed = Vec::with_capacity(elements.len());
        for element in elements {
            let weight = weigh(&element)?;
            let bytes = if let Weight::Text(Some(text)) = &weight { text.len() } else { 0 };
            left = left.checked_sub(bytes + OVERHEAD).ok_or_else(|| too_large(most))?;
            weighed.push((weight, element));
        }
        weighed.sort_by(|(one, element), (other, second)| {
            let order = one.compare(element, other, second);
            if options.descends { order.reverse() } else { order }
        });
        let elements = weighed.into_iter().map(|(_, element)| element).collect();
        Ok(Self { elements, range })
    }

    /// Calls `each` with the results in order until it breaks. A result is `None` if a pattern
    /// finds no value.
    fn results(
        &self,
        keys: &KeyspaceSnapshot,
        options: &Options<'_>,
        mut each: impl FnMut(Option<&[u8]>) -> ControlFlow<()>,
    ) {
        let _ = self.elements[self.range.clone()].iter().try_for_each(|element| {
            if options.get.is_empty() {
                return each(Some(element));
            }
            options.get.iter().try_for_each(|pattern| match *pattern {
                b"#" => each(Some(element)),
                pattern => each(value_of(keys, pattern, element).as_deref()),
            })
        });
    }
}

/// Elements that fit into a limit. `left` is the number of bytes left, or 0 if one did not fit.
struct Elements {
    all: Vec<Vec<u8>>,
    left: usize,
}

impl Elements {
    fn add(&mut self, element: &[u8]) -> ControlFlow<()> {
        self.left = self.left.saturating_sub(element.len() + OVERHEAD);
        if self.left == 0 {
            return ControlFlow::Break(());
        }
        self.all.push(element.to_vec());
        ControlFlow::Continue(())
    }
}

/// Returns the positions that `LIMIT` selects.
fn range_of((start, count): (i64, i64), len: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(start.max(0)).unwrap_or(usize::MAX).min(len);
    let end = match usize::try_from(count) {
        Ok(count) => start.saturating_add(count).min(len),
        Err(_) => len,
    };
    start..end
}

/// The value by which an element is sorted.
enum Weight {
    Number(f64),
    /// A text, or `None` if its key does not exist.
    Text(Option<Vec<u8>>),
    Element,
}

impl Weight {
    fn compare(&self, element: &[u8], other: &Self, second: &[u8]) -> Ordering {
        match (self, other) {
            // Elements with equal numbers are sorted by themselves, so that the order is always the
            // same.
            (Self::Number(one), Self::Number(other)) => {
                one.partial_cmp(other).unwrap_or(Ordering::Equal).then_with(|| element.cmp(second))
            }
            (Self::Text(one), Self::Text(other)) => one.cmp(other),
            _ => element.cmp(second),
        }
    }
}

/// Parses a number as C does.
fn number_of(text: &[u8]) -> Result<f64> {
    match c_text(text) {
        b"" => Ok(0.0),
        text => double::parse(text.trim_ascii_start())
            .ok_or_else(|| "ERR One or more scores can't be converted into double".into()),
    }
}

/// Returns the value of the key or hash field that a pattern names for an element.
fn value_of(keys: &KeyspaceSnapshot, pattern: &[u8], element: &[u8]) -> Option<Vec<u8>> {
    let star = star(pattern)?;
    let text = c_text(pattern);
    let rest = &text[star + 1..];
    // An arrow at the end of the pattern is part of the key.
    let arrow = rest.windows(2).position(|pair| pair == b"->").map(|at| star + 1 + at);
    let arrow = arrow.filter(|at| at + 2 < text.len());
    let end = arrow.unwrap_or(pattern.len());
    let key = [&pattern[..star], element, &pattern[star + 1..end]].concat();
    match arrow {
        None => keys.get_with(&key, |stored| stored_value::string(stored).map(<[u8]>::to_vec))?,
        Some(at) => {
            keys.read_hash(&key, |hash| hash.get_with(&pattern[at + 2..], <[u8]>::to_vec))?
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_cut_to_the_elements() {
        for (limit, len, expected) in [
            ((0, -1), 3, 0..3),
            ((1, 1), 3, 1..2),
            ((-5, 2), 3, 0..2),
            ((5, 2), 3, 3..3),
            ((1, -7), 3, 1..3),
            ((i64::MAX, i64::MAX), 3, 3..3),
            ((0, 0), 3, 0..0),
        ] {
            assert_eq!(range_of(limit, len), expected);
        }
    }

    #[test]
    fn texts_are_numbers_as_in_c() {
        for (text, expected) in
            [("", 0.0), (" 1.5", 1.5), ("0x10", 16.0), ("-inf", f64::NEG_INFINITY)]
        {
            assert_eq!(number_of(text.as_bytes()), Ok(expected));
        }
        for text in ["x", "1 ", " ", "nan", "1e999"] {
            assert!(number_of(text.as_bytes()).is_err(), "{text}");
        }
    }
}
