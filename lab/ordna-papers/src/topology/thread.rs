//! The processor on which the calling thread runs, and the NUMA node from which its memory comes.
//!
//! Each function is one system call. If the system lacks the call or refuses it, the result reports
//! that, and nothing changes.

#![cfg_attr(target_os = "linux", expect(unsafe_code, reason = "system calls"))]

/// Maximum number of processors that are considered: the capacity of glibc's `cpu_set_t`.
const MOST_CPUS: usize = 1024;

/// Returns the processor on which the calling thread runs, or 0 if the system does not report it.
#[cfg(target_os = "linux")]
pub(super) fn current_cpu() -> usize {
    // SAFETY: the call takes no arguments.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Returns the processors on which the calling thread may run, or `None` if the system does not
/// report them.
#[cfg(target_os = "linux")]
pub(super) fn allowed_cpus() -> Option<Vec<usize>> {
    // SAFETY: a set of processors is a plain array of bits.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call receives the size of the set.
    let failed = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    // SAFETY: the number is below the capacity of the set.
    let has = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    (failed == 0).then(|| (0..MOST_CPUS).filter(has).collect())
}

/// Restricts the calling thread to these processors. Returns whether that succeeded.
#[cfg(target_os = "linux")]
pub(super) fn run_on(cpus: &[usize]) -> bool {
    // SAFETY: a set of processors is a plain array of bits.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu < MOST_CPUS) {
        // SAFETY: the number is below the capacity of the set.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: the call receives the size of the set, and only reads it.
    unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) == 0 }
}

/// Makes the system take the memory that the calling thread touches first from `node`, as long as
/// the node has free memory. Returns whether that succeeded.
#[cfg(target_os = "linux")]
pub(super) fn prefer_memory_of(node: usize) -> bool {
    let mut nodes = [0_u64; MOST_CPUS / 64];
    let Some(word) = nodes.get_mut(node / 64) else { return false };
    *word = 1 << (node % 64);
    // The system expects one more than the number of bits.
    let (mode, most) = (libc::MPOL_PREFERRED, MOST_CPUS + 1);
    // SAFETY: the call reads only the given number of bits, all of which are in the array.
    unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, nodes.as_ptr(), most) == 0 }
}

/// Returns whether the system lets this process choose the node of its memory.
#[cfg(target_os = "linux")]
pub(super) fn may_place_memory() -> bool {
    let none = std::ptr::null::<u64>();
    // SAFETY: without a place for the result, the call writes nothing.
    unsafe { libc::syscall(libc::SYS_get_mempolicy, none, none, 0, none, 0) == 0 }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    pub(in super::super) fn current_cpu() -> usize {
        0
    }
    pub(in super::super) fn allowed_cpus() -> Option<Vec<usize>> {
        None
    }
    pub(in super::super) fn run_on(_: &[usize]) -> bool {
        false
    }
    pub(in super::super) fn prefer_memory_of(_: usize) -> bool {
        false
    }
    pub(in super::super) fn may_place_memory() -> bool {
        false
    }
}
#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::*;

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Returns the node of the page that holds the byte, as the system reports it.
    fn node_of_page(byte: &u8) -> i64 {
        let page = std::ptr::from_ref(byte);
        let mut status = -1_i32;
        let nowhere = std::ptr::null::<i32>();
        // SAFETY: the call gets one page and writes one status; without target nodes it moves
        // nothing.
        let failed = unsafe {
            libc::syscall(libc::SYS_move_pages, 0, 1, &raw const page, nowhere, &raw mut status, 0)
        };
        if failed == 0 { status.into() } else { failed }
    }

    #[test]
    fn memory_touched_first_by_a_bound_thread_is_of_its_node() {
        if !may_place_memory() {
            eprintln!("not tested: the system refuses get_mempolicy");
            return;
        }
        std::thread::spawn(|| {
            assert!(prefer_memory_of(0));
            let mut policy = -1_i32;
            let mut nodes = [0_u64; MOST_CPUS / 64];
            let none = std::ptr::null::<u64>();
            // SAFETY: the call receives the sizes of both variables.
            let failed = unsafe {
                let places = (&raw mut policy, nodes.as_mut_ptr());
                libc::syscall(libc::SYS_get_mempolicy, places.0, places.1, MOST_CPUS, none, 0)
            };
            assert_eq!((failed, policy, nodes[0]), (0, libc::MPOL_PREFERRED, 1));
            let fresh = vec![7_u8; 8 << 20];
            assert_eq!(node_of_page(&fresh[4 << 20]), 0);
            assert!(!prefer_memory_of(MOST_CPUS) && !prefer_memory_of(MOST_CPUS - 1));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_bound_thread_runs_where_it_was_told() {
        std::thread::spawn(|| {
            let allowed = allowed_cpus().unwrap();
            for cpu in &allowed {
                assert!(run_on(&[*cpu]));
                assert_eq!((allowed_cpus(), current_cpu()), (Some(vec![*cpu]), *cpu));
            }
            assert!(!run_on(&[]) && !run_on(&[MOST_CPUS]));
        })
        .join()
        .unwrap();
    }
}
