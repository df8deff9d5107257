//! Figures of the system about this process; zeros where the system has none.

use std::fs::read_to_string;

/// Bytes of memory that the process has resident.
pub fn resident_bytes() -> u64 {
    status("/proc/self/status", "VmRSS:") * 1024
}

/// Bytes of memory of the machine.
pub fn system_memory() -> u64 {
    status("/proc/meminfo", "MemTotal:") * 1024
}

/// The number in a line that begins so.
fn status(file: &str, name: &str) -> u64 {
    let text = read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Seconds of processor time: in user mode, and in the kernel.
pub fn cpu_seconds() -> (f64, f64) {
    /// Linux counts in hundredths of a second here, whatever its own clock.
    const TICKS: f64 = 100.0;
    let text = read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the process, in parentheses, may hold anything.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |at: usize| rest.split_whitespace().nth(at).and_then(|text| text.parse().ok());
    let seconds = |at: usize| field(at).unwrap_or(0.0) / TICKS;
    (seconds(11), seconds(12))
}
