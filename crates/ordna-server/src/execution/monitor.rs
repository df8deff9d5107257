//! The lines of `MONITOR`.

use crate::execution::command::Context;
use crate::state::command_spec::{CommandFlags, CommandSpec};
use crate::statistics::event_logs::{shorten, unix_micros};
use crate::wire::request::Arguments;

/// Maximum number of bytes of a command's arguments in a line of MONITOR, because thousands of
/// lines may wait for a slow monitor.
const MONITORED_BYTES: usize = 4 << 10;
/// Replacement of an argument that MONITOR does not show.
const REDACTED: &str = " \"(redacted)\"";

/// Returns the line that tells a slow monitor how many lines it has missed. It has the form of a
/// command, so that clients can parse it.
pub fn lost_lines(count: u64) -> String {
    let now = unix_micros();
    let (seconds, micros) = (now / 1_000_000, now % 1_000_000);
    format!("{seconds}.{micros:06} [0 ordna:0] \"{count} commands were not shown\"")
}

impl Context<'_> {
    /// Sends the call, without its secrets, to the clients that monitor.
    #[cold]
    pub(super) fn show_monitors(&self, spec: &CommandSpec, arguments: Arguments<'_>) {
        let now = unix_micros();
        let mut line =
            format!("{}.{:06} [0 {}]", now / 1_000_000, now % 1_000_000, self.session.client.peer);
        // Hides all arguments of AUTH, and those of the option AUTH of HELLO.
        let mut hidden =
            if spec.has(CommandFlags::SECRET) && spec.name != "hello" { usize::MAX } else { 0 };
        let mut left = MONITORED_BYTES;
        for (at, argument) in arguments.iter_from(0).enumerate() {
            if left == 0 {
                line.push_str(&format!(" ... ({} more arguments)", arguments.len() - at));
                break;
            }
            if at > 0 && hidden > 0 {
                hidden -= 1;
                left -= left.min(REDACTED.len());
                line.push_str(REDACTED);
                continue;
            }
            if spec.name == "hello" && at > 1 && argument.eq_ignore_ascii_case(b"auth") {
                hidden = 2;
            }
            line.push_str(" \"");
            let (shown, more) = shorten(argument, left);
            for byte in shown {
                match byte {
                    b'\'' => line.push('\''),
                    0x07 => line.push_str("\\a"),
                    0x08 => line.push_str("\\b"),
                    byte => line.extend(byte.escape_ascii().map(char::from)),
                }
            }
            line.push('"');
            if more > 0 {
                line.push_str(&format!("... ({more} more bytes)"));
            }
            // Empty arguments take room, too.
            left = left.saturating_sub(shown.len() + 3);
        }
        // The send fails if no client monitors.
        let _ = self.state.monitors.send(line.into());
    }
}
