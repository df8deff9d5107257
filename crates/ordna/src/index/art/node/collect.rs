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
        *chunk = Chunk::new();
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

    /// Fetches the lines of a Node256 that the next chunk is likely to come from.
    #[inline]
    pub fn prefetch_chunk(self, from: Position, direction: Direction) {
        const LINES: usize = 4;
        const SLOTS: usize = 64 / size_of::<Slot>();
        if self.kind() != Kind::Node256 {
            return;
        }
        let at = usize::from(from).saturating_sub(1);
        for line in 0..LINES {
            let slot = match direction {
                Direction::Ascending => (at + line * SLOTS).min(255),
                Direction::Descending => at.saturating_sub(line * SLOTS),
            };
            prefetch(std::ptr::from_ref(&self.node256().children[slot]).cast());
        }
    }

    fn collect_linear(
        self,
        linear: Linear<'g>,
        from: Position,
        direction: Direction,
        limit: usize,
        chunk: &mut Chunk<'g, P>,
    ) -> Option<Position> {
        let mut found = [(TERMINAL, Word::EMPTY); 17];
        let mut len = 0;
        let mut offer = |position, word: Word<'g, P>| {
            let ahead = match direction {
                Direction::Ascending => position >= from,
                Direction::Descending => position <= from,
            };
            if !word.is_empty() && ahead {
                found[len] = (position, word);
                len += 1;
            }
        };
        let keys_first = linear.keys.load();
        point("art.collect.before_slots");
        // Slots before keys: a slot that is seen filled has its byte.
        let mut words = [Word::EMPTY; 16];
        for (word, child) in words.iter_mut().zip(linear.children) {
            *word = child.load();
        }
        offer(TERMINAL, self.terminal());
        let in_order = !fault!("art.collect.slots_first");
        let keys = if in_order { linear.keys.load() } else { keys_first };
        for (slot, word) in words[..linear.children.len()].iter().enumerate() {
            offer(position(byte_at(keys, slot)), *word);
        }
        let found = &mut found[..len];
        // Few, and often sorted already.
        for end in 1..found.len() {
            let mut at = end;
            while at > 0 && found[at - 1].0 > found[at].0 {
                found.swap(at - 1, at);
                at -= 1;
            }
        }
        if direction == Direction::Descending {
            found.reverse();
        }
        found.iter().take(limit).for_each(|(_, word)| chunk.push(*word));
        found.get(limit).map(|(position, _)| *position)
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
