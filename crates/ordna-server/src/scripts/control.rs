//! Control of a running script: ends it, and hands its thread over to the connections that wait for
//! it.
//!
//! The hook of the Lua state checks a [`Control`] every hundred instructions. Functions of
//! libraries execute no Lua instructions, so their loops check it through [`Work`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use mlua::Lua;
use ordna::sync::{Lock, notice};

/// Bit that is set when the script has written or is about to write.
const WROTE: u8 = 1;
/// Bit that is set when the script was ended.
const ENDED: u8 = 2;

/// Error text of a script that was ended.
pub const KILLED: &str = "Script killed by user with SCRIPT KILL.";
/// Time after which the worker of the runtime is first handed over to another thread, so that the
/// connections of this worker are served.
const HANDED_OVER: Duration = Duration::from_millis(10);
/// Maximum time that a script pauses to let the other thread start.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// State of a running script, shared with other threads.
#[derive(Debug)]
pub struct Control {
    /// The bits `WROTE` and `ENDED`. They share one word, so that if both are set, the script wrote
    /// before it was ended.
    state: AtomicU8,
    /// When the script began, and the time after which its worker is handed over again.
    began: Lock<(Instant, Duration)>,
}

impl Default for Control {
    fn default() -> Self {
        Self { state: AtomicU8::new(0), began: Lock::new((Instant::now(), HANDED_OVER)) }
    }
}

impl Control {
    /// Ends the running script at its next instruction or step of a library, unless it has written.
    /// Returns whether it ends.
    pub fn kill(&self) -> bool {
        let ended = |state| {
            (!notice!("control.kill.sees_writes", state & WROTE != 0)).then_some(state | ENDED)
        };
        self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, ended).is_ok()
    }

    /// Ends the running script, even if it has written.
    pub fn cut(&self) {
        self.state.fetch_or(ENDED, Ordering::Relaxed);
    }

    /// Records that the script is about to write. Returns `false` if the script was ended and must
    /// not write.
    pub fn begin_write(&self) -> bool {
        let written = |state| {
            (!notice!("control.kill.refuses_writes", state & ENDED != 0)).then_some(state | WROTE)
        };
        self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, written).is_ok()
    }

    /// Returns whether the script has written.
    pub fn has_written(&self) -> bool {
        self.state.load(Ordering::Relaxed) & WROTE != 0
    }

    /// Records that a script begins.
    pub fn begin(&self) {
        self.state.store(0, Ordering::Relaxed);
        *self.began.lock() = (Instant::now(), HANDED_OVER);
    }

    /// Records that the script has returned.
    pub fn finish(&self) {
        self.state.store(0, Ordering::Relaxed);
    }

    /// Returns whether the script was ended.
    pub fn is_killed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & ENDED != 0
    }

    /// Hands the worker over if the script has run for a while. On a busy machine, the other thread
    /// may not start during the pause; then the worker is not handed over, and this thread does not
    /// learn of it. So the attempt is repeated after twice the time, with a pause of a tenth of
    /// that time.
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

/// Hands the worker of the runtime, with the connections that wait on it, over to another thread.
fn hand_over(pause: Duration) {
    if tokio::runtime::Handle::try_current().is_ok() {
        tokio::task::block_in_place(|| std::thread::sleep(pause));
    }
}

/// Counts the steps of a function of a library.
#[derive(Debug, Default)]
pub struct Work {
    control: Arc<Control>,
    steps: usize,
}

impl Work {
    /// Creates the count for a function that a script has called.
    pub fn of(lua: &Lua) -> Self {
        let control = lua.app_data_ref::<Arc<Control>>().map(|control| Arc::clone(&*control));
        Self { control: control.unwrap_or_default(), steps: 0 }
    }

    /// Checks the clock before a piece of work of about a millisecond.
    ///
    /// # Errors
    /// Returns [`KILLED`] if the script was ended.
    pub fn stretch(&self) -> Result<(), String> {
        self.control.look_at_clock();
        if self.control.is_killed() { Err(KILLED.to_owned()) } else { Ok(()) }
    }

    /// Counts one step.
    ///
    /// # Errors
    /// Returns [`KILLED`] if the script was ended.
    #[inline]
    pub fn step(&mut self) -> Result<(), String> {
        self.steps(1)
    }

    /// Returns the number of steps since the last check of the clock.
    #[cfg(test)]
    pub fn counted(&self) -> usize {
        self.steps
    }

    /// Counts several steps that are executed at once.
    ///
    /// # Errors
    /// Returns [`KILLED`] if the script was ended.
    #[inline]
    pub fn steps(&mut self, count: usize) -> Result<(), String> {
        /// Number of steps between two checks of the clock: some tenths of a millisecond.
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

    /// A script is either killed or writes, whichever comes first; the other is refused.
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
