//! The part of the Python package `ordna` that is compiled.

mod arrays;
mod arrow;
mod bulk;
mod chunks;
mod core;
mod error;
mod joining;
mod key;
mod numbers;
mod plain;
mod range;
mod shapes;
mod sorted;
mod source;
mod transaction;
mod value;

/// Memory allocator of the module. Records of short keys take a third less than with the allocator
/// of the C library, which adds 8 bytes to each piece of memory.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The compiled part of the package `ordna`.
#[pyo3::pymodule]
mod _ordna {
    #[pymodule_export]
    use crate::arrow::Column;
    #[pymodule_export]
    use crate::bulk::{get_many, put_many, scan};
    #[pymodule_export]
    use crate::chunks::Chunks;
    #[pymodule_export]
    use crate::core::{_after_fork, Core};
    #[pymodule_export]
    use crate::error::Conflict;
    #[pymodule_export]
    use crate::range::Range;
    #[pymodule_export]
    use crate::sorted::{Sorted, Stretches};
    #[pymodule_export]
    use crate::transaction::Transaction;

    /// Version of the package.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
