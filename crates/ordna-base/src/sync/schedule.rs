//! Forced interleavings: a test holds its threads at named points in an index's code.
//!
//! A thread that has enrolled in a [`Schedule`] under a role stops at each point for which
//! [`Schedule::hold`] was called with that role, until the test releases it. Threads that have not
//! enrolled pass every point. Waits end after [`PATIENCE`] with a panic, so that a wrong script
//! fails instead of hanging.
//!
//! ```
//! # use ordna_base::sync::schedule::Schedule;
//! let schedule = Schedule::new();
//! schedule.hold("writer", "example.before_link");
//! std::thread::scope(|scope| {
//!     scope.spawn(|| schedule.enroll("writer", || { /* index.insert(…) */
//!         # schedule.reached("example.before_link");
//!     }));
//!     schedule.wait_held("writer", "example.before_link");
//!     // … the other thread's part …
//!     schedule.release("writer", "example.before_link");
//! });
//! ```

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time after which a point or a test stops waiting and panics.
pub const PATIENCE: Duration = Duration::from_secs(20);

type Stop = (&'static str, &'static str);

#[derive(Debug, Default)]
struct Stops {
    wanted: HashMap<Stop, Wanted>,
    held: HashSet<Stop>,
}

/// How a stop holds a thread.
#[derive(Debug)]
struct Wanted {
    /// Number of times that the thread passes the point before it is held.
    passes: usize,
    /// Time after which the thread continues without a release; `None` if it must be released.
    at_most: Option<Duration>,
}

/// A script for the threads of one test.
#[derive(Debug, Clone, Default)]
pub struct Schedule {
    shared: Arc<(Mutex<Stops>, Condvar)>,
}

thread_local! {
    static ENROLLED: RefCell<Option<(Schedule, &'static str)>> = const { RefCell::new(None) };
    /// The state of the generator of a thread that [`shaken`] runs; zero for others.
    static SHAKEN: Cell<u64> = const { Cell::new(0) };
}

impl Schedule {
    /// Creates a script that holds no thread.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes threads with this role stop when they reach the point.
    pub fn hold(&self, role: &'static str, point: &'static str) {
        self.hold_after(role, point, 0);
    }

    /// Works like [`hold`](Self::hold), but the point is passed `passes` times before it holds a
    /// thread.
    pub fn hold_after(&self, role: &'static str, point: &'static str, passes: usize) {
        self.stops().wanted.insert((role, point), Wanted { passes, at_most: None });
    }

    /// Works like [`hold`](Self::hold), for a limited time. For scripts that may be wrong, such as
    /// random ones.
    pub fn hold_at_most(&self, role: &'static str, point: &'static str, time: Duration) {
        self.stops().wanted.insert((role, point), Wanted { passes: 0, at_most: Some(time) });
    }

    /// Runs `body` on the calling thread under this role.
    pub fn enroll<R>(&self, role: &'static str, body: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                ENROLLED.with(|enrolled| enrolled.borrow_mut().take());
            }
        }
        ENROLLED.with(|enrolled| *enrolled.borrow_mut() = Some((self.clone(), role)));
        let _leave = Leave;
        body()
    }

    /// Waits until a thread of this role is held at the point.
    pub fn wait_held(&self, role: &'static str, point: &'static str) {
        self.wait_until(&format!("{role} at {point}"), |stops| stops.held.contains(&(role, point)));
    }

    /// Waits until a thread of this role is waiting for another thread with a
    /// [`Backoff`](super::Backoff).
    pub fn wait_waiting(&self, role: &'static str) {
        self.hold(role, "sync.waits");
        self.wait_held(role, "sync.waits");
        self.release(role, "sync.waits");
    }

    /// Returns whether a thread of this role is held at the point now.
    pub fn is_held(&self, role: &'static str, point: &'static str) -> bool {
        self.stops().held.contains(&(role, point))
    }

    /// Lets the thread continue. Later threads of the role pass the point.
    pub fn release(&self, role: &'static str, point: &'static str) {
        self.stops().wanted.remove(&(role, point));
        self.shared.1.notify_all();
    }

    /// Acts as a point in code outside of the index, such as a test's own closure.
    pub fn reached(&self, name: &'static str) {
        point(name);
    }

    fn stop_at(&self, role: &'static str, name: &'static str) {
        let stop = (role, name);
        let at_most = {
            let mut stops = self.stops();
            let at_most = match stops.wanted.get_mut(&stop) {
                None => return,
                Some(Wanted { passes: 0, at_most }) => *at_most,
                Some(wanted) => {
                    wanted.passes -= 1;
                    return;
                }
            };
            stops.held.insert(stop);
            at_most
        };
        self.shared.1.notify_all();
        if let Some(time) = at_most {
            let is_wanted = |stops: &mut Stops| stops.wanted.contains_key(&stop);
            let stops = self.shared.1.wait_timeout_while(self.stops(), time, is_wanted);
            let mut stops = stops.unwrap_or_else(PoisonError::into_inner).0;
            stops.wanted.remove(&stop);
            stops.held.remove(&stop);
            return;
        }
        self.wait_until(&format!("the release of {role} at {name}"), |stops| {
            !stops.wanted.contains_key(&stop)
        });
        self.stops().held.remove(&stop);
    }

    fn stops(&self) -> MutexGuard<'_, Stops> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_until(&self, what: &str, done: impl Fn(&Stops) -> bool) {
        // With a planted fault, a script may wait in vain.
        let is_faulty = std::env::var_os("ORDNA_FAULT").is_some_and(|name| !name.is_empty());
        let patience = if is_faulty { PATIENCE / 4 } else { PATIENCE };
        let give_up = Instant::now() + patience;
        let mut stops = self.stops();
        while !done(&stops) {
            let left = give_up.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "schedule: waited {patience:?} in vain for {what}");
            stops =
                self.shared.1.wait_timeout(stops, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A thread that stops at a point of its `body`.
#[derive(Debug)]
pub struct Held<F> {
    point: &'static str,
    body: F,
}

/// Defines the thread that [`Held::meanwhile`] holds at `point`.
pub fn held<R: Send, F: FnOnce() -> R + Send>(point: &'static str, body: F) -> Held<F> {
    Held { point, body }
}

impl<R: Send, F: FnOnce() -> R + Send> Held<F> {
    /// Runs the body on a separate thread until it reaches the point, then calls `meanwhile`, then
    /// lets the body end. Returns the body's result.
    pub fn meanwhile<T>(self, meanwhile: impl FnOnce() -> T) -> R {
        let Self { point, body } = self;
        let schedule = Schedule::new();
        schedule.hold("held", point);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| schedule.enroll("held", body));
            schedule.wait_held("held", point);
            meanwhile();
            schedule.release("held", point);
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

/// Runs `body` on two threads that continue from `point` only when both have reached it. Returns
/// their results.
pub fn two_at<R: Send>(point: &'static str, body: impl Fn() -> R + Sync) -> [R; 2] {
    let (schedule, roles) = (&Schedule::new(), ["first", "second"]);
    roles.iter().for_each(|role| schedule.hold(role, point));
    std::thread::scope(|scope| {
        let threads = roles.map(|role| scope.spawn(|| schedule.enroll(role, &body)));
        roles.iter().for_each(|role| schedule.wait_held(role, point));
        roles.iter().for_each(|role| schedule.release(role, point));
        threads.map(|thread| thread.join().unwrap_or_else(|p| std::panic::resume_unwind(p)))
    })
}

/// Makes `body` run, on whatever thread, under the role that the calling thread has now. For
/// threads that an index starts itself.
pub fn handed_on<R>(body: impl FnOnce() -> R) -> impl FnOnce() -> R {
    let enrolled = ENROLLED.with(|enrolled| enrolled.borrow().clone());
    move || match enrolled {
        Some((schedule, role)) => schedule.enroll(role, body),
        None => body(),
    }
}

/// Runs `body`. The calling thread yields its processor at about every eighth point that it passes.
/// Races show in far fewer rounds than by preemption alone.
pub fn shaken<R>(seed: u64, body: impl FnOnce() -> R) -> R {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            SHAKEN.set(0);
        }
    }
    SHAKEN.set(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let _leave = Leave;
    body()
}

/// Yields at random if the thread is run by [`shaken`].
fn shake() {
    let mut state = SHAKEN.get();
    if state != 0 {
        // Xorshift (Marsaglia 2003), which never returns to zero.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        SHAKEN.set(state);
        if state >> 32 & 7 == 0 {
            std::thread::yield_now();
        }
    }
}

/// A named point in an index's code. Holds the thread if its schedule says so.
pub fn point(name: &'static str) {
    shake();
    let enrolled = ENROLLED.with(|enrolled| enrolled.borrow().clone());
    if let Some((schedule, role)) = enrolled {
        schedule.stop_at(role, name);
    }
}
