//! Batches of lookups, in which the memory accesses of sixteen keys overlap.
//!
//! The searches of a group are interleaved: each visits one slot of the table, and prefetches what
//! its next step needs. Then the leaves are prefetched, and then the records. Finally each key is
//! looked up in its leaf, as in a single get.

use std::borrow::Borrow;

use super::leaf::Leaf;
use super::list::{LeafList, Target};
use super::mode::Mode;
use super::section::Section;
use ordna_base::{Key, Value};

/// Number of interleaved keys, which is the number of concurrent misses of a core.
const GROUP: usize = 16;

impl<K: Key + ?Sized, V: Value + ?Sized, S: Mode, const LEAF: usize> LeafList<K, V, S, LEAF> {
    /// Calls `each` with the position and value of every key, in the order of `keys`.
    pub fn get_many<Q: Borrow<K>>(&self, keys: &[Q], mut each: impl FnMut(usize, Option<&V>)) {
        let section = self.enter();
        for (number, group) in keys.chunks(GROUP).enumerate() {
            let mut radixes: [Option<K::Radix<'_>>; GROUP] = [None; GROUP];
            for (radix, key) in radixes.iter_mut().zip(group) {
                // A key that exceeds the limit is absent.
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

    /// Returns the leaves to which the table leads for the keys, and prefetches them.
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
