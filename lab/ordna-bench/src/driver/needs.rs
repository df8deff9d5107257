//! The approximate memory that a run needs, which is computed before it begins.

use super::plan::Plan;
use super::script::Script;
use crate::workload::Operation;

/// Number of bytes that an index needs per key, in addition to the key's own bytes. The largest
/// number observed is that of a B+-tree of the peers.
const WIDEST: usize = 130;

/// The maximum memory that a plan needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    /// Number of keys that are generated.
    pub keys: usize,
    /// Number of bytes while they are generated.
    making: usize,
    /// Number of bytes of keys, their order, and operations, which all instances share.
    shared: usize,
    /// Number of bytes of one loaded index, and of the data about its keys.
    pub instance: usize,
    /// Number of bytes by which an instance grows while workloads run on it.
    pub growth: usize,
}

impl Needs {
    /// Returns the larger of the sizes while keys are generated, and with one instance.
    pub fn at_the_fullest(&self) -> usize {
        let running =
            [self.instance, self.growth].into_iter().fold(self.shared, usize::saturating_add);
        self.making.max(running)
    }
}

impl Plan {
    /// Returns the maximum over all builds.
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
        // The order consists of ranks, and of heads and positions while it is computed.
        let order = if scans { of(self.n, 4 + 16) } else { 0 };
        let (flat, making) = if self.keys.is_int() {
            (8, 16)
        } else {
            // Each key is in its own box and its hash in a table, and then all keys are in one
            // buffer.
            (mean + 8, 2 * mean + 80)
        };
        let sum = |all: &[usize]| all.iter().copied().fold(0, usize::saturating_add);
        Needs {
            keys,
            making: sum(&[of(keys, making), self.keys.bytes_to_read()]),
            // Operations in groups exist twice for a short time, and so does a phase.
            shared: sum(&[of(keys, flat), order, script, of(phase, 2)]),
            // Versions take two bytes. The operations of the load are freed before others are
            // created.
            instance: sum(&[of(self.n, 2 * mean + WIDEST), of(keys, 2), of(self.n, 8)]),
            // Writes are sorted after a run, and the keys of a phase are copied before it.
            growth: sum(&[
                of(extra, 2 * mean + WIDEST),
                of(phase, 2),
                of(phase / size_of::<Operation>(), mean + 8),
            ]),
        }
    }
}
