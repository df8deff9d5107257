//! Operations of an index that another index executes.

/// Implements operations of [`OrderedIndex`](ordna_base::OrderedIndex) with those of another index:
/// `forward!(self, &self.inner; get_with, pin)`.
#[macro_export]
macro_rules! forward {
    ($self:ident, $inner:expr; $($name:ident),+ $(,)?) => {
        $($crate::forward!(@$name $self $inner);)+
    };
    (@get_with $self:ident $inner:expr) => {
        fn get_with<R>(&$self, key: &Self::Key, read: impl FnOnce(&Self::Value) -> R) -> Option<R> {
            $inner.get_with(key, read)
        }
    };
    (@modify $self:ident $inner:expr) => {
        fn modify<T, F>(&$self, key: &Self::Key, change: F) -> Result<(), ordna_base::Error>
        where
            T: std::borrow::Borrow<Self::Value>,
            F: FnMut(Option<&Self::Value>) -> ordna_base::Change<T>,
        {
            $inner.modify(key, change)
        }
    };
    (@scan_with $self:ident $inner:expr) => {
        fn scan_with(
            &$self,
            bounds: ordna_base::index::Bounds<'_, Self::Key>,
            direction: ordna_base::Direction,
            limit: usize,
            visit: impl FnMut(&Self::Key, &Self::Value) -> std::ops::ControlFlow<()>,
        ) {
            $inner.scan_with(bounds, direction, limit, visit);
        }
    };
    (@get_many_with $self:ident $inner:expr) => {
        fn get_many_with<Q: std::borrow::Borrow<Self::Key>>(
            &$self,
            keys: &[Q],
            each: impl FnMut(usize, Option<&Self::Value>),
        ) {
            $inner.get_many_with(keys, each);
        }
    };
    (@pin $self:ident $inner:expr) => {
        fn pin(&$self) -> Option<ordna_base::reclaim::Guard<'_>> {
            $inner.pin()
        }
    };
    (@approximate_len $self:ident $inner:expr) => {
        fn approximate_len(&$self) -> usize {
            $inner.approximate_len()
        }
    };
    (@memory_usage $self:ident $inner:expr) => {
        fn memory_usage(&$self) -> ordna_base::MemoryUsage {
            $inner.memory_usage()
        }
    };
    (@check_invariants $self:ident $inner:expr) => {
        fn check_invariants(&$self) -> Result<ordna_base::InvariantReport, ordna_base::Violation> {
            $inner.check_invariants()
        }
    };
}
