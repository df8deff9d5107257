//! Batches of lookups: the memory accesses of sixteen keys overlap.
//!
//! The searches of a group take turns, one slot of the table each, and fetch what their next turn
//! needs; then the leaves, then the records. Each key is then looked up in its leaf as a single get
//! would.

use std::borrow::Borrow;

use super::leaf::Leaf;
use super::list::{LeafList, Target};
use super::mode::Mode;
use super::section::Section;
use ordna_base::{Key, Value};

/// Keys that take turns: as many misses as a core has under way.
const GROUP: usize = 16;

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> LeafList<K, V, S, LEAF> {
    /// Calls `each` with the position and value of every key, in the order of `keys`.
    pub fn get_many<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        let section = self.enter();
        for (number, group) in keys.chunks(GROUP).enumerate() {
            let mut radixes: [Option<K::Radix<'_>>; GROUP] = [None; GROUP];
            for (radix, key) in radixes.iter_mut().zip(group) {
                // A key beyond the limit is nowhere.
                let key = key.borrow();
                *radix = key.check().ok().map(|()| key.radix());
            }
            let targets = self.targets(&radixes, &section);
            for (target, key) in targets.iter().zip(group) {
                if let Some(target) = target {
                    target.leaf.prefetch_record(target.tag, key.borrow());
                }
            }
            for (at, key) in group.iter().enumerate() {
                let entry =
                    targets[at].as_ref().zip(radixes[at].as_ref()).and_then(|(target, radix)| {
                        self.get(target, key.borrow(), radix.as_ref(), &section)
                    });
                let at = number * GROUP + at;
                match entry {
                    Some(words) => {
                        Leaf::<K, V, S, LEAF>::read(words, &section, |value| each(at, Some(value)));
                    }
                    None => each(at, None),
                }
            }
        }
    }

    /// Where the table says the keys are; their leaves are fetched.
    fn targets<B: AsRef<[u8]>>(
        &self,
        keys: &[Option<B>; GROUP],
        section: &Section<'_>,
    ) -> [Option<Target<K, V, S, LEAF>>; GROUP] {
        let table = self.table(section);
        let keys = keys.each_ref().map(|key| key.as_ref().map(AsRef::as_ref));
        if !self.switches.tag_matching {
            return keys.map(|key| key.map(|key| self.search(key, section)));
        }
        let found = table.search_many(keys);
        let mut pairs = keys.into_iter().zip(found);
        let targets: [Option<Target<K, V, S, LEAF>>; GROUP] = std::array::from_fn(|_| {
            let (key, found) = pairs.next()?;
            let target = self.target(table, found, key?);
            target.prefetch_anchor();
            Some(target)
        });
        targets
    }
}
