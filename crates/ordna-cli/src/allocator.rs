//! The allocator of the program.

#![expect(unsafe_code, reason = "an option of the allocator has no safe wrapper")]

use libmimalloc_sys::{mi_option_set, mi_option_t};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The option `mi_option_purge_delay` of `mimalloc.h`, in milliseconds.
const PURGE_DELAY: mi_option_t = 15;

/// Makes the allocator return free pages to the system at once. By default it does so at a later
/// allocation, which an idle server does not make: a deleted value would stay resident.
pub fn return_pages_at_once() {
    // SAFETY: sets a word of the allocator; may be called at any time.
    unsafe { mi_option_set(PURGE_DELAY, 0) }
}
