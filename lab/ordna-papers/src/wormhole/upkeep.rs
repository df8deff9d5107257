//! Applies the steps of the leaf list to the two tables, without delaying writers and readers.
//!
//! # Protocol
//! A writer that splits or merges makes its step *under the log's lock*: it numbers the step, marks
//! the two halves of a split with the number, relinks the list and appends to the log. So the log
//! is the history of the list, and the table after step n is exact for the list after step n. A
//! reader reaches a leaf through the table of version v. If the leaf is marked with a number not
//! above v, the leaf has everything that the table promised. Otherwise the reader uses the anchors.
//!
//! Later, without any leaf's lock, a writer that finds enough steps in the log tries to become the
//! keeper: it brings the standby table up to date and publishes it (`twin`). If another thread is
//! the keeper, or the standby is busy, the writer continues and its steps wait. In the meantime,
//! readers follow the links of the list.
//!
//! A leaf that was merged into another is retired when its step is in both tables, in the order of
//! the steps. So a reader with a guard can follow the `prev` of an obsolete leaf, because that leaf
//! is retired later.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError, TryLockError};

use super::switches::Switches;
use super::table::{Table, TableLeaf, TableStep};
use super::twin::{Grace, Standby, Twin};
use ordna_base::sync::atomic::{AtomicU64, Ordering};
use ordna_base::sync::{check, fault, point};

/// Number of leaves per waiting step. When more steps wait, a thread applies them.
const LEAVES_PER_STEP: usize = 64;
/// Maximum number of waiting steps: a reader of a leaf whose step waits examines two leaves.
const MOST_STEPS: u64 = 64;
/// Minimum number of steps that wait for a busy standby, because a copy of the table costs as much
/// as it has leaves.
const LEAST_OVERDUE: usize = 64;
const LEAVES_PER_OVERDUE: usize = 4;

#[derive(Debug)]
struct StepLog<P> {
    /// Number of the last step.
    last: u64,
    /// Steps that the keeper has not taken yet.
    steps: Vec<TableStep<P>>,
}

#[derive(Debug)]
struct Keeper<P> {
    standby: Standby<Table<P>>,
    /// Steps that are not in both tables, oldest first. The last one has the number `fetched`.
    steps: VecDeque<TableStep<P>>,
    fetched: u64,
}

/// The two tables and the log.
#[derive(Debug)]
pub struct Tables<P> {
    twin: Twin<Table<P>>,
    log: Mutex<StepLog<P>>,
    keeper: Mutex<Keeper<P>>,
    /// Copies of the log's last number and of the published version, for threads that only check
    /// whether there is work.
    logged: AtomicU64,
    published: AtomicU64,
    wanted: AtomicU64,
}

impl<P: TableLeaf + Send + Sync> Tables<P> {
    pub fn new(first: P, switches: Switches) -> Self {
        let (twin, standby) = Twin::new(Table::new(first, switches));
        Self {
            twin,
            log: Mutex::new(StepLog { last: 0, steps: Vec::new() }),
            keeper: Mutex::new(Keeper { standby, steps: VecDeque::new(), fetched: 0 }),
            logged: AtomicU64::new(0),
            published: AtomicU64::new(0),
            wanted: AtomicU64::new(1),
        }
    }

    /// Returns the published table.
    ///
    /// # Safety
    /// As for [`Twin::read`].
    #[expect(unsafe_code, reason = "hands on a promise")]
    #[inline]
    pub unsafe fn read<'a>(&self) -> &'a Table<P> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.twin.read() }
    }

    /// Makes a step of the list. `change` receives the step's number, relinks the list, and returns
    /// a description of the step. It is short and does not panic.
    pub fn step(&self, change: impl FnOnce(u64) -> TableStep<P>) {
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.last += 1;
        let step = change(log.last);
        log.steps.push(step);
        self.logged.store(log.last, Ordering::Relaxed);
    }

    /// Returns how many steps of the list are not in the published table.
    pub fn lag(&self) -> u64 {
        let published = self.published.load(Ordering::Relaxed);
        self.logged.load(Ordering::Relaxed).saturating_sub(published)
    }

    /// Applies the log to the standby table and publishes that table. Does nothing if the log is
    /// short, if another thread publishes, or while readers use the standby. Calls `retire` with
    /// leaves that are now in neither table. Waits for no thread.
    pub fn maintain(&self, grace: &impl Grace, retire: impl FnMut(P)) {
        if self.lag() < self.wanted.load(Ordering::Relaxed) {
            return;
        }
        match self.keeper.try_lock() {
            Ok(mut keeper) => self.keep(&mut keeper, grace, retire),
            Err(TryLockError::Poisoned(poisoned)) => {
                self.keep(&mut poisoned.into_inner(), grace, retire);
            }
            Err(TryLockError::WouldBlock) => {}
        }
    }

    fn keep(&self, keeper: &mut Keeper<P>, grace: &impl Grace, mut retire: impl FnMut(P)) {
        point("wormhole.maintain.keeper");
        {
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            keeper.steps.extend(log.steps.drain(..));
            keeper.fetched = log.last;
        }
        #[expect(unsafe_code, reason = "the keeper reads the published table")]
        // SAFETY: this thread is the keeper.
        let (published, leaves) = unsafe {
            let table = self.twin.read();
            (table.version(), table.leaves())
        };
        if !keeper.standby.is_quiet() {
            let overdue = (leaves / LEAVES_PER_OVERDUE).max(LEAST_OVERDUE);
            if check!("wormhole.renew.never", keeper.fetched - published < overdue as u64) {
                return;
            }
            self.twin.renew(&mut keeper.standby, grace);
        }
        let mut version = keeper.fetched - keeper.steps.len() as u64;
        let before = keeper.standby.peek().version();
        for step in &keeper.steps {
            version += 1;
            if check!("wormhole.apply.twice", version > before) {
                #[expect(unsafe_code, reason = "changes the standby")]
                // SAFETY: the standby was quiet, or is a new copy.
                unsafe { keeper.standby.table() }.apply(step, version);
            }
        }
        // Steps up to `published` are now in both tables. Leaves are retired in this order.
        let both = keeper.steps.len() as u64 - (keeper.fetched - published);
        let early = fault!("wormhole.retire.before_both_tables");
        let done = if early { keeper.steps.len() as u64 } else { both };
        for step in keeper.steps.drain(..done as usize) {
            if !step.came {
                retire(step.place);
            }
        }
        point("wormhole.maintain.before_publish");
        self.twin.publish(&mut keeper.standby, grace);
        self.published.store(keeper.fetched, Ordering::Relaxed);
        let wanted = (leaves / LEAVES_PER_STEP) as u64 + 1;
        self.wanted.store(wanted.min(MOST_STEPS), Ordering::Relaxed);
    }

    /// Applies the log to the published table, in place. Calls `free` with leaves that are no
    /// longer in it.
    ///
    /// # Safety
    /// The caller is the only thread that uses the tables, and holds no reference to them.
    #[expect(unsafe_code, reason = "changes what is published")]
    pub unsafe fn maintain_alone(&self, mut free: impl FnMut(P)) {
        if self.lag() == 0 {
            return;
        }
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let mut version = log.last - log.steps.len() as u64;
        for step in log.steps.drain(..) {
            version += 1;
            // SAFETY: the caller upholds the contract.
            unsafe { self.twin.published_mut() }.apply(&step, version);
            if !step.came {
                free(step.place);
            }
        }
        self.published.store(version, Ordering::Relaxed);
        let mut keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        keeper.fetched = version;
    }

    /// Returns the size of both tables in bytes.
    pub fn bytes(&self) -> usize {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        #[expect(unsafe_code, reason = "the keeper reads the published table")]
        // SAFETY: this thread is the keeper.
        let published = unsafe { self.twin.read() };
        published.bytes() + keeper.standby.peek().bytes()
    }

    /// Compares the list with the published table, after applying the remaining log.
    ///
    /// # Errors
    /// Returns the first difference.
    pub fn check_invariants(&self, leaves: &[P]) -> Result<(), String> {
        let keeper = self.keeper.lock().unwrap_or_else(PoisonError::into_inner);
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        #[expect(unsafe_code, reason = "the keeper reads the published table")]
        // SAFETY: this thread is the keeper.
        let mut table = unsafe { self.twin.read() }.clone();
        let mut version = keeper.fetched - keeper.steps.len() as u64;
        for step in keeper.steps.iter().chain(&log.steps) {
            version += 1;
            if version > table.version() {
                table.apply(step, version);
            }
        }
        table.check_invariants(leaves)
    }

    /// Frees the tables. Calls `free` with the leaves that are not in the list but not retired yet.
    ///
    /// # Safety
    /// No reader is left, and the tables are not used afterwards.
    #[expect(unsafe_code, reason = "the end of both tables")]
    pub unsafe fn free(&mut self, free: impl FnMut(P)) {
        let keeper = self.keeper.get_mut().unwrap_or_else(PoisonError::into_inner);
        let log = self.log.get_mut().unwrap_or_else(PoisonError::into_inner);
        let steps = keeper.steps.drain(..).chain(log.steps.drain(..));
        steps.filter(|step| !step.came).map(|step| step.place).for_each(free);
        // SAFETY: the caller upholds the contract.
        unsafe { self.twin.free(&keeper.standby) }
    }
}
