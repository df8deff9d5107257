//! What ends a script that runs, and hands its thread over to the connections that wait for it.
//!
//! The hook of the Lua state looks at a [`Control`] every hundred instructions. Functions of
//! libraries run without instructions, so their loops look at it by [`Work`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use mlua::Lua;
use ordna::sync::{Lock, notice};

/// The script has written, or is about to.
const WROTE: u8 = 1;
/// The script was ended.
const ENDED: u8 = 2;

/// The error of a script that was ended.
pub const KILLED: &str = "Script killed by user with SCRIPT KILL.";
/// Time after which the worker of the runtime is first handed to another thread, so that the connections of this
/// worker are served.
const HANDED_OVER: Duration = Duration::from_millis(10);
/// Longest pause in which the other thread may begin.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Shared with other threads while a script runs.
#[derive(Debug)]
pub struct Control {
    /// `WROTE` and `ENDED`. One word, so that a script that is ended either has not written, or has
    /// written before that and knows it.
    state: AtomicU8,
    /// When the script began, and the time after which its worker is to be handed over next.
    began: Lock<(Instant, Duration)>,
}

impl Default for Control {
    fn default() -> Self {
        Self { state: AtomicU8::new(0), began: Lock::new((Instant::now(), HANDED_OVER)) }
    }
}

impl Control {
    /// Ends the script that runs, at its next instruction or step of a library, unless it has
    /// written. Returns whether it ends.
    pub fn kill(&self) -> bool {
        let ended = |state| {
            (!notice!("control.kill.sees_writes", state & WROTE != 0)).then_some(state | ENDED)
        };
        self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, ended).is_ok()
    }

    /// Ends the script that runs, although it may have written.
    pub fn cut(&self) {
        self.state.fetch_or(ENDED, Ordering::Relaxed);
    }

    /// Notes that the script is about to write. Returns `false` if it was ended: then it must not.
    pub fn begin_write(&self) -> bool {
        let written = |state| {
            (!notice!("control.kill.refuses_writes", state & ENDED != 0)).then_some(state | WROTE)
        };
        self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, written).is_ok()
    }

    /// Whether the script has written.
    pub fn has_written(&self) -> bool {
        self.state.load(Ordering::Relaxed) & WROTE != 0
    }

    /// Notes that a script begins.
    pub fn begin(&self) {
        self.state.store(0, Ordering::Relaxed);
        *self.began.lock() = (Instant::now(), HANDED_OVER);
    }

    /// Notes that the script has returned.
    pub fn finish(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// Whether the script was ended.
    pub fn is_killed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & ENDED != 0
    }

    /// Hands the worker over if the script has run for a while. On a busy machine the other thread may not begin
    /// during the pause, and the worker stays. Nothing says so, so this is repeated after twice the time, with a
    /// pause of a tenth of it.
    pub fn look_at_clock(&self) {
        let mut began = self.began.lock();
        let time = began.0.elapsed();
        if time > began.1 {
            began.1 = time * 2;
            drop(began);
            hand_over((time / 10).min(LONGEST_PAUSE));
        }
    }
}

/// Hands the worker of the runtime, with the connections that wait in it, to another thread.
fn hand_over(pause: Duration) {
    if tokio::runtime::Handle::try_current().is_ok() {
        tokio::task::block_in_place(|| std::thread::sleep(pause));
    }
}

/// The work of a function of a library, counted in steps.
#[derive(Debug, Default)]
pub struct Work {
    control: Arc<Control>,
    steps: usize,
}

impl Work {
    /// The work of a function that a script has called.
    pub fn of(lua: &Lua) -> Self {
        let control = lua.app_data_ref::<Arc<Control>>().map(|control| Arc::clone(&*control));
        Self { control: control.unwrap_or_default(), steps: 0 }
    }

    /// Looks at the clock before a stretch of about a millisecond.
    ///
    /// # Errors
    /// The script was ended.
    pub fn stretch(&self) -> Result<(), String> {
        self.control.look_at_clock();
        if self.control.is_killed() { Err(KILLED.to_owned()) } else { Ok(()) }
    }

    /// Counts a step.
    ///
    /// # Errors
    /// The script was ended.
    #[inline]
    pub fn step(&mut self) -> Result<(), String> {
        self.steps(1)
    }

    /// Steps since the last look at the clock.
    #[cfg(test)]
    pub fn counted(&self) -> usize {
        self.steps
    }

    /// Counts steps that are made at once.
    ///
    /// # Errors
    /// The script was ended.
    #[inline]
    pub fn steps(&mut self, count: usize) -> Result<(), String> {
        /// Steps between two looks at the clock: some tenths of a millisecond.
        const STEPS: usize = 4096;
        self.steps = self.steps.saturating_add(count);
        if self.steps >= STEPS {
            self.steps = 0;
            self.control.look_at_clock();
        }
        if self.control.is_killed() { Err(KILLED.to_owned()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script is killed or writes first; the other is refused.
    #[test]
    fn a_script_that_is_killed_has_not_written() {
        let control = Control::default();
        control.begin();
        assert!(control.kill() && !control.begin_write() && !control.has_written());
        control.begin();
        assert!(control.begin_write() && !control.kill() && !control.is_killed());
        for _ in 0..1000 {
            control.begin();
            let (killed, writes) = std::thread::scope(|scope| {
                let killed = scope.spawn(|| control.kill());
                let writes = control.begin_write();
                (killed.join().unwrap(), writes)
            });
            assert_ne!(killed, writes);
            assert_eq!((control.is_killed(), control.has_written()), (killed, writes));
        }
        control.cut();
        assert!(control.is_killed());
    }
}
