//! Random numbers and random samples of collections.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::ControlFlow;

use crate::keyspace::collections::names::Named;

/// Maximum number of elements of a sample with repetitions. It takes some tenths of a second,
/// during which the thread serves no other connection.
pub const MOST_DRAWN: usize = 1 << 20;

/// Returns a random number, good enough to choose a key.
pub fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without a source of random numbers, any key will do.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

/// Random numbers from one seed (SplitMix64). A random number from the system would need a system
/// call each time.
#[derive(Debug)]
pub struct Draws(u64);

thread_local! {
    /// The numbers with which [`Draws`] of the thread begin.
    static SEEDS: RefCell<Draws> = RefCell::new(Draws(random()));
}

impl Draws {
    pub fn new() -> Self {
        Self(SEEDS.with_borrow_mut(Self::next))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `end`, or 0.
    pub fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }
}

/// A visitor of names and values, until it breaks.
pub type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'v;

/// A collection from which a sample is drawn.
pub trait Sampled {
    /// Returns the number of elements.
    fn len(&self) -> usize;

    /// Visits names and values until `visit` breaks.
    fn visit(&self, visit: &mut Visit<'_>);

    /// Returns a random element without visiting all of them, or `None` if that is not possible.
    fn one(&self, draws: &mut Draws) -> Option<Named>;

    /// Returns all elements, of a small collection.
    fn all(&self) -> Vec<Named> {
        let mut all = Vec::new();
        self.visit(&mut |name, value| {
            all.push((name.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        });
        all
    }
}

/// Returns the number of elements of a sample of `count`, see [`sample`].
fn wanted(count: i64) -> usize {
    usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX)
}

/// Returns whether the elements should be drawn one by one. Otherwise visiting all elements is
/// cheaper.
fn is_few(wanted: usize, len: usize) -> bool {
    wanted < len / 64
}

/// Returns the number of elements that [`sample`] visits.
pub fn sample_work(of: &impl Sampled, count: i64) -> usize {
    let (wanted, len) = (wanted(count), of.len());
    if is_few(wanted, len) { wanted } else { len }
}

/// Draws random elements: `count` different ones or, if it is negative, that number with
/// repetitions. Returns `None` if the names and values have more than `most` bytes.
pub fn sample(of: &impl Sampled, count: i64, most: usize) -> Option<Vec<Named>> {
    let (wanted, len) = (wanted(count), of.len());
    let mut draws = Draws::new();
    let bytes = |(name, value): &Named| name.len() + value.len() + 6;
    if len == 0 || wanted == 0 {
        return Some(Vec::new());
    }
    if wanted.min(if count < 0 { wanted } else { len }) > most / 6 {
        return None;
    }
    let mut found = Vec::new();
    if is_few(wanted, len)
        && let Some(first) = of.one(&mut draws)
    {
        let (mut met, mut left) = (HashSet::new(), most);
        let mut next = Some(first);
        // Elements between wide gaps are rarely drawn twice.
        for _ in 0..wanted.saturating_mul(8) {
            let Some(drawn) = next.take().or_else(|| of.one(&mut draws)) else { break };
            if count < 0 || met.insert(drawn.0.clone()) {
                left = left.checked_sub(bytes(&drawn))?;
                found.push(drawn);
            }
            if found.len() == wanted {
                return Some(found);
            }
        }
    }
    // Draws positions first, and then copies the elements at these positions in one pass over all
    // elements.
    let mut places: Vec<usize> = match count < 0 {
        true => (0..wanted).map(|_| draws.below(len)).collect(),
        false => (0..len).collect(),
    };
    if count >= 0 && wanted < len {
        for at in 0..wanted {
            let other = at + draws.below(len - at);
            places.swap(at, other);
        }
        places.truncate(wanted);
    }
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_unstable_by_key(|at| places[*at]);
    let mut found: Vec<Named> = vec![Named::default(); places.len()];
    let (mut order, mut left) = (order.into_iter().peekable(), Some(most));
    let mut at = 0;
    of.visit(&mut |name, value| {
        while let Some(place) = order.next_if(|place| places[*place] == at) {
            found[place] = (name.to_vec(), value.to_vec());
            left = left.and_then(|left| left.checked_sub(bytes(&found[place])));
            if left.is_none() {
                return ControlFlow::Break(());
            }
        }
        at += 1;
        if order.peek().is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    left.map(|_| found)
}
