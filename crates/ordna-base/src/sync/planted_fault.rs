/// Whether the fault of this name is planted: always `false`, and no code at all, unless the crate
/// is built with `debug_assertions`, or with `--cfg faults`, which the models use.
///
/// Each fence, validation and recheck that a protocol rests on stands behind one such name, so
/// that `cargo xtask faults` can take it out and show which test notices. One build holds all
/// faults; the environment variable `ORDNA_FAULT` picks one when the process starts.
#[macro_export]
macro_rules! fault {
    ($name:literal) => {
        cfg!(any(debug_assertions, faults)) && $crate::sync::is_planted($name)
    };
}

/// A check on which a protocol rests: whether it holds. The planted fault of this name makes it
/// hold.
///
/// `check!("area.what", condition)`
#[macro_export]
macro_rules! check {
    ($name:literal, $holds:expr $(,)?) => {
        $crate::fault!($name) || $holds
    };
}

/// A condition that a protocol must notice. Under the planted fault of this name it is never
/// noticed.
///
/// `notice!("area.what", condition)`
#[macro_export]
macro_rules! notice {
    ($name:literal, $seen:expr $(,)?) => {
        !$crate::fault!($name) && $seen
    };
}

/// The ordering of an atomic access, by its name. The planted fault of this name relaxes it, which
/// a model has to notice.
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

/// Whether `ORDNA_FAULT` names this fault. No release build calls it.
#[inline]
pub fn is_planted(name: &str) -> bool {
    match PLANTED.get() {
        Some(None) => false,
        Some(Some(planted)) => planted == name,
        None => PLANTED.get_or_init(|| std::env::var("ORDNA_FAULT").ok()).as_deref() == Some(name),
    }
}
