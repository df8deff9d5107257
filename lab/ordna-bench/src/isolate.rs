//! A child process that begins with a copy of this process's memory.
//!
//! An index is measured in its own child process. If it aborts, faults or blocks, only its child
//! ends and not the run, and its allocations are counted separately. The keys and operations, which
//! were generated before, are shared copy-on-write.
//!
//! # Contract
//! `fork` copies only the calling thread. If another thread of the parent holds a lock at that
//! moment, the lock stays locked in the child forever. So [`Child::start`] must be called while no
//! other thread runs. Otherwise the child may block, and [`Child::ask`] ends it. (The allocator has
//! its own handlers for this.)

#![expect(unsafe_code, reason = "fork and what belongs to it")]

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A running child that answers requests, one line each. It is killed on drop.
pub struct Child {
    pid: libc::pid_t,
    requests: PipeWriter,
    replies: BufReader<PipeReader>,
}

/// The way in which a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// A signal ended the child.
    Signal(i32),
    /// The child ended with an exit code.
    Exit(i32),
    /// The child did not answer for this long, and was killed.
    Silent(Duration),
}

impl std::fmt::Display for Death {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Signal(libc::SIGSEGV) => f.write_str("it ended by a segmentation fault"),
            Self::Signal(libc::SIGABRT) => f.write_str("it aborted"),
            Self::Signal(libc::SIGKILL) => f.write_str("it was killed, perhaps for want of memory"),
            Self::Signal(signal) => write!(f, "it ended by signal {signal}"),
            Self::Exit(code) => write!(f, "it left the program with code {code}"),
            Self::Silent(limit) => write!(f, "it gave no answer within {} s", limit.as_secs()),
        }
    }
}

impl Child {
    /// Starts a child that calls `begin` once and then answers every request with the value that it
    /// returned.
    ///
    /// # Errors
    /// Errors of the system when it creates pipes or the process.
    pub fn start<S>(begin: impl FnOnce() -> S) -> std::io::Result<Self>
    where
        S: FnMut(&str) -> String,
    {
        let (their_requests, requests) = std::io::pipe()?;
        let (replies, their_replies) = std::io::pipe()?;
        // SAFETY: the child's memory is a copy, which is consistent for its only thread. Because
        // other threads do not exist in it, a lock may stay locked, see the contract.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(std::io::Error::last_os_error()),
            0 => {
                drop((requests, replies));
                let served = catch_unwind(AssertUnwindSafe(|| {
                    answer(begin, BufReader::new(their_requests), their_replies);
                }));
                // SAFETY: ends the process at once. Neither its buffers nor its exit handlers,
                // which are copies of the parent's, may run.
                unsafe { libc::_exit(i32::from(served.is_err())) }
            }
            pid => Ok(Self { pid, requests, replies: BufReader::new(replies) }),
        }
    }

    /// Returns the answer to a request, if it arrives in time.
    ///
    /// # Errors
    /// Returns how the child ended.
    pub fn ask(&mut self, request: &str, limit: Duration) -> Result<String, Death> {
        let mut reply = String::new();
        let sent = writeln!(self.requests, "{request}");
        if sent.is_ok() {
            if !self.answers_within(limit) {
                self.kill();
                return Err(Death::Silent(limit));
            }
            // A child that ends closes its end of the pipe. The line is then empty or incomplete.
            if self.replies.read_line(&mut reply).is_ok() && reply.ends_with('\n') {
                return Ok(reply);
            }
        }
        Err(self.end())
    }

    /// Waits until there is data to read, or the pipe is closed.
    fn answers_within(&self, limit: Duration) -> bool {
        let mut poll = libc::pollfd {
            fd: self.replies.get_ref().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let end = std::time::Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            let milliseconds = left.as_millis().min(i32::MAX as u128) as i32;
            // SAFETY: a single entry, which lives for the duration of the call.
            match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
                0 => return false,
                // Interrupted by a signal, for example when the size of the terminal changes.
                -1 if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {
                }
                _ => return true,
            }
        }
    }

    /// Stops all of its threads, until [`Child::go_on`], so that it uses no processor time.
    pub fn stand_still(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets its threads continue.
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        if self.pid > 0 {
            // SAFETY: the child has not been waited for, so the number still belongs to it.
            unsafe { libc::kill(self.pid, signal) };
        }
    }

    /// Returns its processor time so far in clock ticks, if the system reports it.
    pub fn ticks(&self) -> Option<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        // The fields after the name in brackets and ten more fields: utime stime.
        let fields = stat.rsplit_once(") ")?.1.split(' ').skip(11).take(2);
        Some(fields.filter_map(|field| field.parse::<u64>().ok()).sum())
    }

    fn kill(&self) {
        self.signal(libc::SIGKILL);
    }

    /// Waits for a child that has ended or is about to.
    fn end(&mut self) -> Death {
        let mut status = 0;
        // SAFETY: `status` lives for the duration of the call.
        let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
        if waited != self.pid {
            return Death::Exit(-1);
        }
        self.pid = 0;
        if libc::WIFSIGNALED(status) {
            Death::Signal(libc::WTERMSIG(status))
        } else {
            Death::Exit(libc::WEXITSTATUS(status))
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.pid > 0 {
            self.kill();
            self.end();
        }
    }
}

/// Runs the child, which answers requests.
fn answer<S>(begin: impl FnOnce() -> S, mut requests: impl BufRead, mut replies: impl Write)
where
    S: FnMut(&str) -> String,
{
    #[cfg(target_os = "linux")]
    // SAFETY: takes no pointer. Makes the system kill this process when the parent ends in any way.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)
    };
    let mut serve = begin();
    let mut line = String::new();
    while requests.read_line(&mut line).is_ok_and(|read| read > 0) {
        let reply = serve(line.trim_end());
        if writeln!(replies, "{reply}").is_err() {
            return;
        }
        line.clear();
    }
}
