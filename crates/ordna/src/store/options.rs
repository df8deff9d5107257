//! Options of a store.

use std::sync::Arc;

use super::budget::{Budget, Lifted, MemoryBudget};
use super::collectors::Collectors;
use super::expiry::{Clock, system_clock};
use crate::tree::{FANOUT, SLOTS, Sizes};

/// Options of a [`Store`](super::Store).
///
/// ```
/// use ordna::{Options, Store};
///
/// let options = Options::new().memory_limit(1 << 30).background_collector(false);
/// let store: Store<[u8], [u8]> = Store::with_options(options);
/// # drop(store);
/// ```
#[derive(Clone)]
pub struct Options {
    pub(super) memory_limit: Option<usize>,
    pub(super) memory_budget: Option<MemoryBudget>,
    pub(super) background_collector: bool,
    pub(super) shared_collectors: Option<Collectors>,
    pub(super) sizes: Sizes,
    /// Whether records keep their addresses, because owners hold pointers to them.
    pub(super) records_stay: bool,
    pub(super) clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_limit: None,
            memory_budget: None,
            background_collector: true,
            shared_collectors: None,
            sizes: Sizes::default(),
            records_stay: false,
            clock: Arc::new(system_clock),
        }
    }
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("memory_limit", &self.memory_limit)
            .field("memory_budget", &self.memory_budget)
            .field("background_collector", &self.background_collector)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Returns the default options: no memory limit, a background collector, the system's clock.
    ///
    /// ```
    /// let store: ordna::Store<u64, u64> = ordna::Store::with_options(ordna::Options::new());
    /// assert_eq!(store.statistics().memory_limit, None);
    /// ```
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the maximum size in bytes of all entries and undo records. Writes that would exceed it
    /// fail. An entry counts with key, value and its share of the leaf; memory that waits to be
    /// freed does not count. A write that replaces an entry needs only the additional bytes.
    /// Removals never fail, and neither do writes under
    /// [`Store::lift_limit`](super::Store::lift_limit) and the entries that
    /// [`Store::open`](super::Store::open) reads.
    /// [`Store::modify_expiry`](super::Store::modify_expiry) fails only if a snapshot makes it copy
    /// an entry.
    ///
    /// ```
    /// use ordna::{Error, Options, Store};
    ///
    /// let store: Store<u64, [u8]> = Store::with_options(Options::new().memory_limit(10_000));
    /// assert!(matches!(store.put(1, vec![0; 20_000]), Err(Error::MemoryLimit { .. })));
    /// ```
    pub fn memory_limit(self, bytes: usize) -> Self {
        Self { memory_limit: Some(bytes), memory_budget: None, ..self }
    }

    /// Sets one limit for all stores that share the budget. The bytes of a store count until the
    /// store and its snapshots are dropped and freed. While one of the stores is opened, the limit
    /// is lifted for all.
    ///
    /// ```
    /// use ordna::{MemoryBudget, Options, Store};
    ///
    /// let budget = MemoryBudget::new(1 << 20);
    /// let options = || Options::new().memory_budget(&budget);
    /// let names: Store<u64, [u8]> = Store::with_options(options());
    /// let counts: Store<u64, u64> = Store::with_options(options());
    /// names.put(1, vec![0; 600_000])?;
    /// counts.put(1, 1)?;
    /// assert!(names.put(2, vec![0; 600_000]).is_err());
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn memory_budget(self, budget: &MemoryBudget) -> Self {
        Self { memory_budget: Some(budget.clone()), ..self }
    }

    /// Sets whether a background thread frees undo records, removes expired keys and compacts the
    /// tree (the default). The thread starts when there is work. Without it, the thread that ends a
    /// snapshot frees undo records, and only
    /// [`Store::collect_garbage`](super::Store::collect_garbage) removes expired keys and compacts.
    ///
    /// ```
    /// let options = ordna::Options::new().background_collector(false);
    /// let store: ordna::Store<u64, u64> = ordna::Store::with_options(options);
    /// store.collect_garbage();
    /// ```
    pub fn background_collector(self, wanted: bool) -> Self {
        Self { background_collector: wanted, shared_collectors: None, ..self }
    }

    /// Uses a pool of collector threads that several stores share.
    ///
    /// ```
    /// use ordna::{Collectors, Options, Store};
    ///
    /// let collectors = Collectors::new(1);
    /// let options = || Options::new().shared_collectors(&collectors);
    /// let (one, other) = (Store::<u64, u64>::with_options(options()), options());
    /// # drop((one, other));
    /// ```
    pub fn shared_collectors(self, collectors: &Collectors) -> Self {
        Self { shared_collectors: Some(collectors.clone()), ..self }
    }

    pub(super) fn collectors_or_own(&self) -> Collectors {
        let own = || Collectors::new(usize::from(self.background_collector));
        self.shared_collectors.clone().unwrap_or_else(own)
    }

    pub(super) fn budget(&self) -> Budget {
        match &self.memory_budget {
            Some(shared) => Budget::within(shared),
            None => Budget::new(self.memory_limit.unwrap_or(usize::MAX)),
        }
    }

    /// Returns these options, with the memory limit lifted until the guard is dropped.
    pub(crate) fn lift_limit(self) -> (Self, Lifted) {
        let limit = self.memory_limit.unwrap_or(usize::MAX);
        let budget = self.memory_budget.clone().unwrap_or_else(|| MemoryBudget::new(limit));
        let lifted = budget.lift();
        (self.memory_budget(&budget), lifted)
    }

    /// Returns the bytes that the memory limit leaves to the store; `None` without a limit.
    pub(crate) fn room(&self) -> Option<usize> {
        match &self.memory_budget {
            Some(budget) => budget.room(),
            None => self.memory_limit,
        }
    }

    /// Sets the sizes of the tree's nodes, for tests: entries of a leaf (2 to 56), children of an
    /// inner node (3 to 64).
    #[doc(hidden)]
    pub fn sizes(self, slots: usize, fanout: usize) -> Self {
        let sizes = Sizes { slots: slots.clamp(2, SLOTS), fanout: fanout.clamp(3, FANOUT) };
        Self { sizes, ..self }
    }

    /// Keeps records at their addresses, because owners hold pointers to them.
    pub(crate) fn records_stay(self) -> Self {
        Self { records_stay: true, ..self }
    }

    /// Wraps the clock.
    pub(crate) fn wrap_clock(self, wrap: impl FnOnce(Clock) -> Clock) -> Self {
        Self { clock: wrap(Arc::clone(&self.clock)), ..self }
    }

    /// Sets the clock by which keys expire, in milliseconds. The default is Unix time.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// use ordna::{Options, Store};
    ///
    /// let time = Arc::new(AtomicU64::new(0));
    /// let clock = Arc::clone(&time);
    /// let options = Options::new().clock(move || clock.load(Ordering::Relaxed));
    /// let store: Store<u64, u64> = Store::with_options(options);
    /// store.insert_until(&1, &10, 5)?;
    /// assert!(store.contains_key(1));
    /// time.store(5, Ordering::Relaxed);
    /// assert!(!store.contains_key(1));
    /// # Ok::<(), ordna::Error>(())
    /// ```
    pub fn clock(self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }
}
