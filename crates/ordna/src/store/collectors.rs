//! The threads that collect garbage for one store or several.
//!
//! # Contract
//! All methods may run concurrently. A member is served by one thread at a time, and again if it
//! was woken in the meantime. Threads are started, up to the configured number, when there is work
//! and no thread is idle.
//!
//! # Protocol
//! The pool holds its members weakly. A member that was woken or whose time has come is in the
//! queue once. Each store holds a handle of its pool. Dropping the last handle stops the threads
//! and waits for them. If a thread of the pool itself drops the last store, and with it the last
//! handle, it does not wait for itself.
//!
//! A panic in a member, for example in its caller's clock, ends that member's run, but not the
//! thread.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A store that needs collection.
pub trait CollectorTask: Send + Sync {
    /// Collects. Returns the time after which to call it again if the member is not woken earlier,
    /// or `None` if that is not needed.
    fn run_task(&self) -> Option<Duration>;
}

struct Member {
    task: Weak<dyn CollectorTask>,
    /// Whether the member was woken and waits in the queue or for the end of its run.
    woken: bool,
    /// Whether a thread is serving the member.
    busy: bool,
    due: Option<Instant>,
}

#[derive(Default)]
struct PoolState {
    members: BTreeMap<u64, Member>,
    last: u64,
    queue: VecDeque<u64>,
    /// The members by the time when they are due.
    due: BTreeSet<(Instant, u64)>,
    threads: Vec<JoinHandle<()>>,
    idle: usize,
    stop: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<PoolState>,
    wake: Condvar,
}

struct Handle {
    shared: Arc<Shared>,
    most: usize,
}

/// Threads that free undo records and remove expired keys for all stores that were created with
/// them ([`Options::shared_collectors`](crate::store::Options::shared_collectors)). A cheap handle;
/// clones share the threads.
///
/// ```
/// use ordna::{Collectors, Options, Store};
///
/// let collectors = Collectors::new(2);
/// let options = || Options::new().shared_collectors(&collectors);
/// let towns: Store<[u8], u64> = Store::with_options(options());
/// let streets: Store<[u8], u64> = Store::with_options(options());
/// # drop((towns, streets));
/// ```
#[derive(Clone)]
pub struct Collectors(Arc<Handle>);

impl fmt::Debug for Collectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collectors").field("threads", &self.0.most).finish_non_exhaustive()
    }
}

impl Collectors {
    /// Creates a pool of up to `threads` threads, started on demand. With 0, callers collect garbage
    /// themselves.
    ///
    /// ```
    /// use ordna::{Collectors, Options, Store};
    ///
    /// let collectors = Collectors::new(1);
    /// let store: Store<u64, u64> =
    ///     Store::with_options(Options::new().shared_collectors(&collectors));
    /// # drop(store);
    /// ```
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(Handle { shared: Arc::default(), most: threads }))
    }

    /// Returns the maximum number of threads.
    ///
    /// ```
    /// assert_eq!(ordna::Collectors::new(2).threads(), 2);
    /// ```
    pub fn threads(&self) -> usize {
        self.0.most
    }

    /// Adds a member and returns its number.
    pub(super) fn register(&self, task: Weak<dyn CollectorTask>) -> u64 {
        let mut state = self.0.shared.state();
        state.last += 1;
        let number = state.last;
        let member = Member { task, woken: false, busy: false, due: None };
        state.members.insert(number, member);
        number
    }

    /// Removes a member.
    pub(super) fn unregister(&self, number: u64) {
        let mut state = self.0.shared.state();
        let due = state.members.remove(&number).and_then(|member| member.due);
        state.due.retain(|(at, other)| Some(*at) != due || *other != number);
        state.queue.retain(|other| *other != number);
    }

    /// Wakes a thread to run a member's task. Returns `false` if there is no thread.
    pub(super) fn wake(&self, number: u64) -> bool {
        let mut state = self.0.shared.state();
        let Some(member) = state.members.get_mut(&number) else { return false };
        let queued = member.woken || member.busy;
        member.woken = true;
        if !queued {
            state.queue.push_back(number);
        }
        if state.idle < state.queue.len() && state.threads.len() < self.0.most && !state.stop {
            let shared = Arc::clone(&self.0.shared);
            let thread = thread::Builder::new().name("ordna collector".to_owned());
            // If no further thread can be started, the existing ones do the work.
            state.threads.extend(thread.spawn(move || shared.run()));
        }
        let attended = !state.threads.is_empty();
        drop(state);
        self.0.shared.wake.notify_one();
        attended
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the loop of a thread.
    fn run(&self) {
        let mut state = self.state();
        while !state.stop {
            state.queue_due();
            let Some((number, task)) = state.next() else {
                state = self.sleep(state);
                continue;
            };
            drop(state);
            // The panic hook reports a panic; the member then leaves its work to callers.
            let left = task.upgrade().map(|task| {
                let left = catch_unwind(AssertUnwindSafe(|| task.run_task()));
                left.unwrap_or_default()
            });
            state = self.state();
            state.finished(number, left.flatten());
        }
    }

    fn sleep<'a>(&'a self, mut state: MutexGuard<'a, PoolState>) -> MutexGuard<'a, PoolState> {
        state.idle += 1;
        let first = state.due.first().map(|(at, _)| *at);
        let mut state = match first {
            None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                let waited = self.wake.wait_timeout(state, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.idle -= 1;
        state
    }
}

impl PoolState {
    /// Moves the members whose time has come to the queue.
    fn queue_due(&mut self) {
        if self.due.is_empty() {
            return;
        }
        let now = Instant::now();
        while let Some((at, number)) = self.due.first().copied()
            && at <= now
        {
            self.due.pop_first();
            if let Some(member) = self.members.get_mut(&number) {
                member.due = None;
                if !std::mem::replace(&mut member.woken, true) && !member.busy {
                    self.queue.push_back(number);
                }
            }
        }
    }

    /// Returns the next member to serve.
    fn next(&mut self) -> Option<(u64, Weak<dyn CollectorTask>)> {
        let number = self.queue.pop_front()?;
        let member = self.members.get_mut(&number)?;
        (member.woken, member.busy) = (false, true);
        Some((number, Weak::clone(&member.task)))
    }

    /// Records that a member was served.
    fn finished(&mut self, number: u64, left: Option<Duration>) {
        let Some(member) = self.members.get_mut(&number) else { return };
        member.busy = false;
        if member.woken {
            self.queue.push_back(number);
        }
        let due = left.and_then(|left| Instant::now().checked_add(left));
        if let Some(before) = std::mem::replace(&mut member.due, due) {
            self.due.remove(&(before, number));
        }
        self.due.extend(due.map(|at| (at, number)));
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let threads = {
            let mut state = self.shared.state();
            state.stop = true;
            std::mem::take(&mut state.threads)
        };
        self.shared.wake.notify_all();
        for thread in threads.into_iter().filter(|it| it.thread().id() != thread::current().id()) {
            // A thread does not panic; if it did, the panic hook has reported it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    struct Told(Sender<()>, Option<Duration>, Mutex<Receiver<()>>);

    impl CollectorTask for Told {
        fn run_task(&self) -> Option<Duration> {
            self.0.send(()).unwrap();
            // Waits until the test releases it.
            let _ = self.2.lock().unwrap().recv();
            self.1
        }
    }

    type Ends = (Arc<Told>, Receiver<()>, Sender<()>);

    fn member(pool: &Collectors, left: Option<Duration>) -> (u64, Ends) {
        let ((tell, told), (let_go, wait)) = (channel(), channel());
        let member = Arc::new(Told(tell, left, Mutex::new(wait)));
        let weak: Weak<Told> = Arc::downgrade(&member);
        (pool.register(weak), (member, told, let_go))
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn members_share_the_threads_and_each_is_tended_by_one() {
        let pool = Collectors::new(2);
        let members: Vec<_> = (0..3).map(|_| member(&pool, None)).collect();
        for _ in 0..2 {
            for (number, _) in &members {
                assert!(pool.wake(*number));
            }
            // Two threads are held in two members. These members are woken again, but not entered a
            // second time.
            for (_, (_, told, _)) in &members[..2] {
                told.recv_timeout(PATIENCE).unwrap();
            }
            pool.wake(members[0].0);
            let (_, (_, first, let_go)) = &members[0];
            let (_, (_, third, _)) = &members[2];
            assert!(first.try_recv().is_err() && third.try_recv().is_err());
            let_go.send(()).unwrap();
            third.recv_timeout(PATIENCE).unwrap();
            members[1].1.2.send(()).unwrap();
            first.recv_timeout(PATIENCE).unwrap();
            let_go.send(()).unwrap();
            members[2].1.2.send(()).unwrap();
            assert!(pool.0.shared.state().threads.len() <= 2);
            while pool.0.shared.state().members.values().any(|member| member.busy || member.woken) {
                thread::yield_now();
            }
        }
        pool.unregister(members[1].0);
        assert!(!pool.wake(members[1].0));
    }

    #[test]
    fn a_member_is_tended_when_it_is_due() {
        let pool = Collectors::new(1);
        let (number, (_member, told, let_go)) = member(&pool, Some(Duration::from_millis(1)));
        pool.wake(number);
        for _ in 0..3 {
            told.recv_timeout(PATIENCE).unwrap();
            let_go.send(()).unwrap();
        }
        drop(let_go);
    }

    #[test]
    fn a_member_that_leaves_takes_its_own_time_only() {
        let pool = Collectors::new(0);
        let numbers = [0; 3].map(|_| member(&pool, None).0);
        let at = Instant::now() + PATIENCE;
        for (number, at) in numbers.into_iter().zip([at, at, at + PATIENCE]) {
            let mut state = pool.0.shared.state();
            state.members.get_mut(&number).unwrap().due = Some(at);
            state.due.insert((at, number));
            state.queue.push_back(number);
        }
        pool.unregister(numbers[0]);
        let state = pool.0.shared.state();
        let due: Vec<u64> = state.due.iter().map(|(_, number)| *number).collect();
        assert_eq!(
            (due, Vec::from(state.queue.clone())),
            (numbers[1..].to_vec(), numbers[1..].to_vec())
        );
    }

    #[test]
    fn without_threads_nobody_comes() {
        let pool = Collectors::new(0);
        let (number, _) = member(&pool, None);
        assert!(!pool.wake(number));
    }
}
