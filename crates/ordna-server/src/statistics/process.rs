//! Memory and processor time of this process, as the system reports them, or 0 if it does not.

use std::fs::read_to_string;

/// Returns the resident memory of the process in bytes.
pub fn resident_bytes() -> u64 {
    status("/proc/self/status", "VmRSS:") * 1024
}

/// Returns the memory of the machine in bytes.
pub fn system_memory() -> u64 {
    status("/proc/meminfo", "MemTotal:") * 1024
}

/// Returns the number in the line of a file that begins with `name`.
fn status(file: &str, name: &str) -> u64 {
    let text = read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Returns the processor time in seconds, in user mode and in the kernel.
pub fn cpu_seconds() -> (f64, f64) {
    /// Unit of these fields on Linux, per second.
    const TICKS: f64 = 100.0;
    let text = read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the process, in parentheses, may contain spaces and parentheses.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let field = |at: usize| rest.split_whitespace().nth(at).and_then(|text| text.parse().ok());
    let seconds = |at: usize| field(at).unwrap_or(0.0) / TICKS;
    (seconds(11), seconds(12))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_system_reports_memory_and_time() {
        let block = vec![1_u8; 8 << 20];
        let (resident, system) = (resident_bytes(), system_memory());
        assert!((8 << 20..system).contains(&resident), "{resident} of {system}");
        assert!(system > 64 << 20 && block.iter().all(|byte| *byte == 1));
        let busy = std::time::Instant::now();
        while cpu_seconds() <= (0.0, 0.0) {
            assert!(busy.elapsed().as_secs() < 20, "no processor time is reported");
        }
    }
}
