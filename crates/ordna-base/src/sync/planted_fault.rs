//! Named switches that disable one check or ordering each, to show which test notices.

/// Returns whether the fault of this name is planted. Without `debug_assertions` or `--cfg faults`,
/// which the models use, it is the constant `false` and compiles to nothing.
///
/// Each fence, validation and recheck that a protocol depends on has such a name, so that `cargo
/// xtask faults` can disable it and show which test fails. One build contains all faults; the
/// environment variable `ORDNA_FAULT` selects one when the process starts.
#[macro_export]
macro_rules! fault {
    ($name:literal) => {
        cfg!(any(debug_assertions, faults)) && $crate::sync::is_planted($name)
    };
}

/// Returns `condition`, or `true` while the fault of this name is planted: the protocol then skips
/// a check that it depends on.
///
/// `check!("area.what", condition)`
#[macro_export]
macro_rules! check {
    ($name:literal, $holds:expr $(,)?) => {
        $crate::fault!($name) || $holds
    };
}

/// Returns `condition`, or `false` while the fault of this name is planted: the protocol then
/// misses a condition that it must notice.
///
/// `notice!("area.what", condition)`
#[macro_export]
macro_rules! notice {
    ($name:literal, $seen:expr $(,)?) => {
        !$crate::fault!($name) && $seen
    };
}

/// The ordering of an atomic access, or `Relaxed` while the fault of this name is planted. A model
/// must then fail.
///
/// `order!("area.what", Release)`
#[macro_export]
macro_rules! order {
    ($name:literal, $order:ident) => {
        if $crate::fault!($name) {
            $crate::sync::atomic::Ordering::Relaxed
        } else {
            $crate::sync::atomic::Ordering::$order
        }
    };
}

static PLANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();

/// Returns whether `ORDNA_FAULT` names this fault. Release builds never call it.
#[inline]
pub fn is_planted(name: &str) -> bool {
    match PLANTED.get() {
        Some(None) => false,
        Some(Some(planted)) => planted == name,
        None => PLANTED.get_or_init(|| std::env::var("ORDNA_FAULT").ok()).as_deref() == Some(name),
    }
}
