//! Entries of a node in the order of keys, a chunk at a time.

use super::{Kind, LAST, Linear, NodeRef, Position, TERMINAL, View, byte_at, position};
use crate::index::Direction;
use crate::index::art::protocol::Protocol;
use crate::index::art::word::{Slot, Word, prefetch};
use crate::sync::atomic::Ordering;
use crate::sync::{fault, point};

/// How many entries a walk takes from a node at once.
pub const CHUNK: usize = 16;

/// Some entries of a node, in the order of a walk.
pub struct Chunk<'g, P> {
    words: [Word<'g, P>; CHUNK],
    at: u8,
    len: u8,
}

impl<'g, P: Protocol> Chunk<'g, P> {
    pub fn new() -> Self {
        Self { words: [Word::EMPTY; CHUNK], at: 0, len: 0 }
    }

    pub fn push(&mut self, word: Word<'g, P>) {
        self.words[usize::from(self.len)] = word;
        self.len += 1;
    }

    pub fn next(&mut self) -> Option<Word<'g, P>> {
        (self.at < self.len).then(|| {
            self.at += 1;
            self.words[usize::from(self.at) - 1]
        })
    }

    pub fn words(&self) -> &[Word<'g, P>] {
        &self.words[usize::from(self.at)..usize::from(self.len)]
    }
}

impl<'g, P: Protocol> NodeRef<'g, P> {
    /// Moves up to `limit` entries from position `from` on, in the walk's order, to `chunk`. Returns
    /// where the next ones start, or `None` if none are left.
    pub fn collect(
        self,
        from: Position,
        direction: Direction,
        limit: usize,
        chunk: &mut Chunk<'g, P>,
    ) -> Option<Position> {
        (chunk.at, chunk.len) = (0, 0);
        let limit = limit.min(CHUNK);
        match self.view() {
            View::Linear(linear) => self.collect_linear(linear, from, direction, limit, chunk),
            View::Node48(node) => self.collect_wide(from, direction, limit, chunk, |byte| {
                let slot = node.index[byte].load(Ordering::Relaxed);
                let child = node.children.get(usize::from(slot).wrapping_sub(1));
                child.map_or(Word::EMPTY, Slot::load)
            }),
            View::Node256(node) => {
                self.collect_wide(from, direction, limit, chunk, |byte| node.children[byte].load())
            }
        }
    }

    /// Fetches what the chunks behind the next position are likely to need: with `deep`, the children in
    /// the next slots of a Node256; and the lines of the slots behind them.
    #[inline]
    pub fn prefetch_chunk(self, from: Position, direction: Direction, deep: bool) {
        const LINE: usize = 64 / size_of::<Slot>();
        const NEXT: usize = 4 * LINE;
        if self.kind() != Kind::Node256 {
            return;
        }
        let children = &self.node256().children;
        let first = usize::from(from).saturating_sub(1);
        let ahead = |slots: usize| match direction {
            Direction::Ascending => children.get(first + slots),
            Direction::Descending => children.get(first.wrapping_sub(slots)),
        };
        if deep {
            let words = (0..NEXT).filter_map(ahead).map(Slot::load::<P>);
            words.filter(|word| !word.is_empty()).for_each(|word| prefetch(word.untagged()));
        }
        let lines = (0..NEXT).step_by(LINE).map(|slots| slots + if deep { NEXT } else { 0 });
        lines.filter_map(ahead).for_each(|slot| prefetch(std::ptr::from_ref(slot).cast()));
    }

    fn collect_linear(
        self,
        linear: Linear<'g>,
        from: Position,
        direction: Direction,
        limit: usize,
        chunk: &mut Chunk<'g, P>,
    ) -> Option<Position> {
        let keys_first = linear.keys.load();
        point("art.collect.before_slots");
        // Slots before keys: a slot that is seen filled has its byte.
        let mut words = [Word::EMPTY; 17];
        words[0] = self.terminal();
        for (word, child) in words[1..].iter_mut().zip(linear.children) {
            *word = child.load();
        }
        let in_order = !fault!("art.collect.slots_first");
        let keys = if in_order { linear.keys.load() } else { keys_first };
        // Position above, index in `words` below.
        const INDEX_BITS: u32 = 5;
        let mut found = [0_u16; 17];
        let mut len = 0;
        for (index, word) in words[..=linear.children.len()].iter().enumerate() {
            let at = index.checked_sub(1).map_or(TERMINAL, |slot| position(byte_at(keys, slot)));
            let ahead = match direction {
                Direction::Ascending => at >= from,
                Direction::Descending => at <= from,
            };
            if word.is_empty() || !ahead {
                continue;
            }
            // Few, and often sorted already.
            let entry = at << INDEX_BITS | index as u16;
            let mut place = len;
            while place > 0 && found[place - 1] > entry {
                found[place] = found[place - 1];
                place -= 1;
            }
            found[place] = entry;
            len += 1;
        }
        let found = &mut found[..len];
        if direction == Direction::Descending {
            found.reverse();
        }
        let index_of = |entry: u16| usize::from(entry & ((1 << INDEX_BITS) - 1));
        found.iter().take(limit).for_each(|entry| chunk.push(words[index_of(*entry)]));
        found.get(limit).map(|entry| entry >> INDEX_BITS)
    }

    fn collect_wide(
        self,
        from: Position,
        direction: Direction,
        limit: usize,
        chunk: &mut Chunk<'g, P>,
        child: impl Fn(usize) -> Word<'g, P>,
    ) -> Option<Position> {
        let mut left = limit;
        let mut offer = |word: Word<'g, P>| {
            if !word.is_empty() {
                chunk.push(word);
                left -= 1;
            }
            left == 0
        };
        match direction {
            Direction::Ascending => {
                if from == TERMINAL && offer(self.terminal()) {
                    return Some(TERMINAL + 1);
                }
                for at in from.max(1)..=LAST {
                    if offer(child(usize::from(at) - 1)) {
                        return (at < LAST).then_some(at + 1);
                    }
                }
            }
            Direction::Descending => {
                for at in (1..=from).rev() {
                    if offer(child(usize::from(at) - 1)) {
                        return Some(at - 1);
                    }
                }
                offer(self.terminal());
            }
        }
        None
    }
}
