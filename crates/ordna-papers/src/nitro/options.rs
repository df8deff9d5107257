//! How a store is to work.

use std::sync::Arc;

use ordna::store::budget::{Budget, MemoryBudget};
use ordna::store::ttl::{Clock, system_clock};

/// How a store is to work.
#[derive(Clone)]
pub struct Options {
    pub(super) memory_limit: Option<usize>,
    pub(super) memory_budget: Option<MemoryBudget>,
    pub(super) collectors: usize,
    pub(super) order: Order,
    pub(super) clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_limit: None,
            memory_budget: None,
            collectors: 1,
            order: Order::default(),
            clock: Arc::new(system_clock),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("memory_limit", &self.memory_limit)
            .field("memory_budget", &self.memory_budget)
            .field("collectors", &self.collectors)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// No memory limit, one collector, collection by the live set, the system's clock.
    pub fn new() -> Self {
        Self::default()
    }

    /// Refuses writes that would make the versions hold more than so many bytes. Counts key, value
    /// and overhead of each version that is linked, dead ones included; not what waits to be freed.
    /// A write that replaces a version of its own term needs only what it takes beyond that one.
    /// `Store::modify_expiry` is not refused, nor is anything under `Store::lift_limit`.
    pub fn memory_limit(self, bytes: usize) -> Self {
        Self { memory_limit: Some(bytes), memory_budget: None, ..self }
    }

    /// The same for all stores that share the budget: what they hold together counts, until a store
    /// and its snapshots are dropped and freed.
    pub fn memory_budget(self, budget: &MemoryBudget) -> Self {
        Self { memory_budget: Some(budget.clone()), ..self }
    }

    /// Threads that collect in the background; best as many as write. They are started when there
    /// is something to collect. With 0, whoever ends a snapshot collects, and writers do when their
    /// lists of dead versions are long, after their write; and expired keys are removed by
    /// [`Store::collect_garbage`](super::Store::collect_garbage) only.
    pub fn collectors(self, threads: usize) -> Self {
        Self { collectors: threads, ..self }
    }

    pub(super) fn budget(&self) -> Budget {
        match &self.memory_budget {
            Some(shared) => Budget::within(shared),
            None => Budget::new(self.memory_limit.unwrap_or(usize::MAX)),
        }
    }

    /// What keeps dead versions from being collected.
    pub fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// The clock by which keys expire, in milliseconds. The system's tells Unix time.
    pub fn clock(self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }
}

/// What keeps a dead version from being collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// The live snapshots that see it.
    #[default]
    LiveSet,
    /// Every live snapshot older than its death, as in the paper (§4).
    Terms,
}
