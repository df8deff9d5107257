//! The memory that a run needs, roughly, said before it begins.

use super::plan::Plan;
use super::script::Script;
use crate::workload::Operation;

/// Bytes of an index for each of its keys, but for what the key's own bytes take: the widest seen
/// so far is a B+-tree of the peers.
const WIDEST: usize = 130;

/// The most memory that a plan needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// How many keys are made.
    pub keys: usize,
    /// Bytes while they are made.
    making: usize,
    /// Bytes of keys, their order, and operations, shared by all instances.
    shared: usize,
    /// Bytes of one loaded index, and of what is known about its keys.
    pub instance: usize,
    /// Bytes that an instance grows by while workloads run on it.
    pub growth: usize,
}

impl Needs {
    /// While keys are made, or with one instance.
    pub fn at_the_fullest(&self) -> usize {
        let running =
            [self.instance, self.growth].into_iter().fold(self.shared, usize::saturating_add);
        self.making.max(running)
    }
}

impl Plan {
    /// Of all builds, the most.
    pub(super) fn needs(&self) -> Needs {
        let (mut extra, mut script, mut phase) = (0, 0, 0);
        for build in self.builds() {
            extra = Script::extra_keys(self, &build).max(extra);
            let (all, largest) = Script::bytes(self, &build);
            (script, phase) = (all.max(script), largest.max(phase));
        }
        let mean = self.keys.mean_bytes();
        let keys = self.n.saturating_add(extra);
        let of = |count: usize, bytes: usize| count.saturating_mul(bytes);
        let scans = self.workloads.iter().any(crate::workload::Workload::scans);
        // The order: ranks, and while it is found heads and places too.
        let order = if scans { of(self.n, 4 + 16) } else { 0 };
        let (flat, making) = if self.keys.is_int() {
            (8, 16)
        } else {
            // Each in a box of its own, its hash in a table, and then all in one buffer.
            (mean + 8, 2 * mean + 80)
        };
        let sum = |all: &[usize]| all.iter().copied().fold(0, usize::saturating_add);
        Needs {
            keys,
            making: sum(&[of(keys, making), self.keys.bytes_to_read()]),
            // Operations in groups are written twice for a moment; so is a phase.
            shared: sum(&[of(keys, flat), order, script, of(phase, 2)]),
            // Versions take two bytes. The operations of the load are gone before others come.
            instance: sum(&[of(self.n, 2 * mean + WIDEST), of(keys, 2), of(self.n, 8)]),
            // Writes are sorted after a run; the keys of a phase are copied before it.
            growth: sum(&[
                of(extra, 2 * mean + WIDEST),
                of(phase, 2),
                of(phase / size_of::<Operation>(), mean + 8),
            ]),
        }
    }
}
