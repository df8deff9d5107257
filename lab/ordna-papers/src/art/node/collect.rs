//! Collects the entries of a node in the order of keys, one chunk at a time.

use super::layout::{
    LAST, LINE, Linear, Node48, Node256, Position, TERMINAL, View, byte_at, position,
};
use crate::art::protocol::Protocol;
use crate::art::word::{Kind, NodeRef};
use crate::art::word::{Slot, Word};
use ordna_base::index::Direction;
use ordna_base::simd::prefetch;
use ordna_base::sync::atomic::Ordering;
use ordna_base::sync::{fault, point};

/// Maximum number of entries that a scan takes from a node at once.
pub const CHUNK: usize = 16;

/// Some entries of a node, in the order of a scan.
pub struct Chunk<'g, P> {
    words: [Word<'g, P>; CHUNK],
    at: u8,
    len: u8,
    /// Maximum number of entries.
    limit: u8,
}

impl<'g, P: Protocol> Chunk<'g, P> {
    pub fn new() -> Self {
        Self { words: [Word::EMPTY; CHUNK], at: 0, len: 0, limit: CHUNK as u8 }
    }

    pub fn push(&mut self, word: Word<'g, P>) {
        self.words[usize::from(self.len)] = word;
        self.len += 1;
    }

    /// Takes the word if it is not empty. Returns whether the chunk is full.
    fn offer(&mut self, word: Word<'g, P>) -> bool {
        if !word.is_empty() {
            self.push(word);
        }
        self.len == self.limit
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
    /// Moves up to `limit` entries from position `from` on to `chunk`, in the order of the scan.
    /// Returns the position of the next ones, or `None` if none are left.
    pub fn collect(
        self,
        from: Position,
        direction: Direction,
        limit: usize,
        chunk: &mut Chunk<'g, P>,
    ) -> Option<Position> {
        (chunk.at, chunk.len, chunk.limit) = (0, 0, limit.min(CHUNK) as u8);
        match self.view() {
            View::Linear(linear) if linear.children.len() == 4 => {
                self.collect_linear::<5>(linear, from, direction, chunk)
            }
            View::Linear(linear) => self.collect_linear::<17>(linear, from, direction, chunk),
            View::Node48(node) => self.collect_wide(from, direction, chunk, |first, chunk| {
                Self::offer48(node, first, direction, chunk)
            }),
            View::Node256(node) => self.collect_wide(from, direction, chunk, |first, chunk| {
                Self::offer256(node, first, direction, chunk)
            }),
        }
    }

    /// Returns the first entry from position `from` on, without a chunk. Only for nodes whose slots
    /// keep their bytes while readers are in them.
    #[inline]
    pub fn nearest(self, from: Position, direction: Direction) -> Option<Word<'g, P>> {
        let descends = direction == Direction::Descending;
        let terminal = || Some(self.terminal()).filter(|word| !word.is_empty());
        let linear = match self.view() {
            View::Linear(linear) => linear,
            View::Node48(node) => {
                return self.nearest_wide(from, direction, |byte| {
                    let child = node.children.get(node.slot_of(byte as u8).wrapping_sub(1));
                    child.map_or(Word::EMPTY, Slot::load)
                });
            }
            View::Node256(node) => {
                return self.nearest_wide(from, direction, |byte| node.children[byte].load());
            }
        };
        if from == TERMINAL
            && let Some(word) = terminal()
        {
            return Some(word);
        }
        let mut best: Option<(Position, Word<'g, P>)> = None;
        for (slot, child) in linear.children.iter().enumerate() {
            let word = child.load();
            point("art.nearest.slot");
            if word.is_empty() {
                continue;
            }
            // Loaded after the slot: a slot that is seen filled has its byte.
            let at = position(byte_at(linear.keys.load(), slot));
            let (ahead, nearer) = if descends {
                (at <= from, best.is_none_or(|best| at > best.0))
            } else {
                (at >= from, best.is_none_or(|best| at < best.0))
            };
            if ahead && nearer {
                best = Some((at, word));
            }
        }
        best.map(|best| best.1).or_else(|| if descends { terminal() } else { None })
    }

    #[inline]
    fn nearest_wide(
        self,
        from: Position,
        direction: Direction,
        child: impl Fn(usize) -> Word<'g, P>,
    ) -> Option<Word<'g, P>> {
        let terminal = || Some(self.terminal()).filter(|word| !word.is_empty());
        let at = |at: Position| Some(child(usize::from(at) - 1)).filter(|word| !word.is_empty());
        match direction {
            Direction::Ascending => {
                let first = if from == TERMINAL { terminal() } else { None };
                first.or_else(|| (from.max(1)..=LAST).find_map(at))
            }
            Direction::Descending => (1..=from).rev().find_map(at).or_else(terminal),
        }
    }

    /// Prefetches what the chunks after the next position probably need: the small nodes in the
    /// next slots of a Node256, and the cache lines of the slots after them. Records are prefetched
    /// when they are taken, and large nodes one at a time.
    #[inline]
    pub fn prefetch_chunk(self, from: Position, direction: Direction) {
        const SLOTS: usize = LINE / size_of::<Slot>();
        const NEXT: usize = 4 * SLOTS;
        if self.kind() != Kind::Node256 {
            return;
        }
        let children = &self.node256().children;
        let first = usize::from(from).saturating_sub(1);
        let ahead = |slots: usize| match direction {
            Direction::Ascending => children.get(first + slots),
            Direction::Descending => children.get(first.wrapping_sub(slots)),
        };
        for slot in (0..NEXT).filter_map(ahead) {
            slot.load::<P>().prefetch_small();
        }
        let lines = (NEXT..2 * NEXT).step_by(SLOTS);
        lines.filter_map(ahead).for_each(|slot| prefetch(std::ptr::from_ref(slot)));
    }

    /// Prefetches the cache lines of the slots at the next position.
    #[inline]
    pub fn prefetch_slots(self, from: Position, direction: Direction) {
        if self.kind() != Kind::Node256 {
            return;
        }
        let first = std::ptr::from_ref(&self.node256().children).cast::<u8>();
        let at = usize::from(from).saturating_sub(1) * size_of::<Slot>();
        for line in 0..4 {
            let offset = match direction {
                Direction::Ascending => at.wrapping_add(line * LINE),
                Direction::Descending => at.wrapping_sub(line * LINE),
            };
            prefetch(first.wrapping_add(offset));
        }
    }

    /// Collects from a Node4 or Node16. `WORDS` is the number of slots, including the terminal one.
    fn collect_linear<const WORDS: usize>(
        self,
        linear: Linear<'g>,
        from: Position,
        direction: Direction,
        chunk: &mut Chunk<'g, P>,
    ) -> Option<Position> {
        let keys_first = linear.keys.load();
        point("art.collect.before_slots");
        // Slots are loaded before keys: a slot that is seen filled has its byte.
        let mut words = [Word::EMPTY; WORDS];
        words[0] = self.terminal();
        for (word, child) in words[1..].iter_mut().zip(linear.children) {
            *word = child.load();
            point("art.collect.slot");
        }
        let in_order = !fault!("art.collect.slots_first");
        let keys = if in_order { linear.keys.load() } else { keys_first };
        // The upper bits contain the position, and the lower ones the index in `words`.
        const INDEX_BITS: u32 = 5;
        let mut found = [0_u16; WORDS];
        let mut len = 0;
        for (index, word) in words.iter().enumerate() {
            let at = index.checked_sub(1).map_or(TERMINAL, |slot| position(byte_at(keys, slot)));
            let ahead = match direction {
                Direction::Ascending => at >= from,
                Direction::Descending => at <= from,
            };
            if word.is_empty() || !ahead {
                continue;
            }
            // There are few, and they are often sorted already.
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
        let limit = usize::from(chunk.limit);
        found.iter().take(limit).for_each(|entry| chunk.push(words[index_of(*entry)]));
        found.get(limit).map(|entry| entry >> INDEX_BITS)
    }

    /// Takes the terminal entry in the order of the scan. `bytes` offers the children from a byte
    /// on, in the scan's direction, and returns the byte of the one that filled the chunk.
    #[inline]
    fn collect_wide(
        self,
        from: Position,
        direction: Direction,
        chunk: &mut Chunk<'g, P>,
        bytes: impl FnOnce(usize, &mut Chunk<'g, P>) -> Option<usize>,
    ) -> Option<Position> {
        match direction {
            Direction::Ascending => {
                if from == TERMINAL && chunk.offer(self.terminal()) {
                    return Some(TERMINAL + 1);
                }
                let full = bytes(usize::from(from.max(1)) - 1, chunk)?;
                let next = full as Position + 2;
                (next <= LAST).then_some(next)
            }
            Direction::Descending => {
                let first = usize::from(from).checked_sub(1);
                if let Some(full) = first.and_then(|first| bytes(first, chunk)) {
                    return Some(full as Position);
                }
                chunk.offer(self.terminal());
                None
            }
        }
    }

    /// Examines eight bytes of the index at a time.
    fn offer48(
        node: &'g Node48<P::Lock>,
        first: usize,
        direction: Direction,
        chunk: &mut Chunk<'g, P>,
    ) -> Option<usize> {
        const BYTES: usize = 8;
        let child = |slot: u64| {
            let child = node.children.get((slot as usize & 0xFF).wrapping_sub(1));
            child.map_or(Word::EMPTY, Slot::load)
        };
        match direction {
            Direction::Ascending => {
                let mut mask = u64::MAX << (first % BYTES * 8);
                for (at, word) in node.index.iter().enumerate().skip(first / BYTES) {
                    let mut slots = word.load(Ordering::Relaxed) & mask;
                    mask = u64::MAX;
                    while slots != 0 {
                        let byte = slots.trailing_zeros() as usize / 8;
                        let slot = slots >> (byte * 8);
                        slots &= !(0xFF << (byte * 8));
                        if chunk.offer(child(slot)) {
                            return Some(at * BYTES + byte);
                        }
                    }
                }
            }
            Direction::Descending => {
                let mut mask = u64::MAX >> ((BYTES - 1 - first % BYTES) * 8);
                for (at, word) in node.index[..=first / BYTES].iter().enumerate().rev() {
                    let mut slots = word.load(Ordering::Relaxed) & mask;
                    mask = u64::MAX;
                    while slots != 0 {
                        let byte = BYTES - 1 - slots.leading_zeros() as usize / 8;
                        let slot = slots >> (byte * 8);
                        slots &= !(0xFF << (byte * 8));
                        if chunk.offer(child(slot)) {
                            return Some(at * BYTES + byte);
                        }
                    }
                }
            }
        }
        None
    }

    fn offer256(
        node: &'g Node256<P::Lock>,
        first: usize,
        direction: Direction,
        chunk: &mut Chunk<'g, P>,
    ) -> Option<usize> {
        let children = node.children.iter().enumerate();
        let fills = |(_, child): &(usize, &'g Slot)| chunk.offer(child.load());
        let full = match direction {
            Direction::Ascending => children.skip(first).find(fills),
            Direction::Descending => children.take(first + 1).rev().find(fills),
        };
        full.map(|(byte, _)| byte)
    }
}
