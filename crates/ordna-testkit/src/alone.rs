//! Indexes for one thread, put behind a lock, so that the suite can hold them to the contract too.

/// Declares a type that wraps an index for one thread in a mutex and is an
/// [`OrderedIndex`](ordna_base::OrderedIndex).
///
/// The brackets hold the wrapped type's parameters behind `K` and `V`, first as they are declared,
/// then as they are named:
///
/// ```ignore
/// ordna_testkit::alone!(Alone [P: Protocol] [P] ArtNone);
/// ```
#[macro_export]
macro_rules! alone {
    ($name:ident [$($declared:tt)*] [$($named:ident),*] $index:ident) => {
        struct $name<K: ordna_base::Key + ?Sized, V: ordna_base::Value + ?Sized, $($declared)*>(
            std::sync::Mutex<$index<K, V, $($named),*>>,
        );

        impl<K: ordna_base::Key + ?Sized, V: ordna_base::Value + ?Sized, $($declared)*>
            $name<K, V, $($named),*>
        {
            fn new(index: $index<K, V, $($named),*>) -> Self {
                Self(std::sync::Mutex::new(index))
            }

            fn lock(&self) -> std::sync::MutexGuard<'_, $index<K, V, $($named),*>> {
                self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
            }
        }

        impl<K: ordna_base::Key + ?Sized, V: ordna_base::Value + ?Sized, $($declared)*> ordna_base::OrderedIndex
            for $name<K, V, $($named),*>
        {
            type Key = K;
            type Value = V;

            fn get_with<R>(&self, key: &K, read: impl FnOnce(&V) -> R) -> Option<R> {
                self.lock().get_with(key, read)
            }

            fn modify<T, F>(&self, key: &K, change: F) -> Result<(), ordna_base::Error>
            where
                T: std::borrow::Borrow<V>,
                F: FnMut(Option<&V>) -> ordna_base::Change<T>,
            {
                self.lock().modify(key, change)
            }

            fn walk(
                &self,
                (lower, upper): ordna_base::index::Bounds<'_, K>,
                direction: ordna_base::Direction,
                _limit: usize,
                visit: impl FnMut(&K, &V) -> std::ops::ControlFlow<()>,
            ) {
                self.lock().visit(lower, upper, direction, visit);
            }

            fn pin(&self) -> Option<ordna_base::reclaim::Guard<'_>> {
                None
            }

            fn approximate_len(&self) -> usize {
                self.lock().len()
            }

            fn memory_usage(&self) -> ordna_base::MemoryUsage {
                self.lock().memory_usage()
            }

            fn validate(&self) -> Result<ordna_base::Audit, ordna_base::Violation> {
                self.lock().validate()
            }

            fn get_many_with<Q: std::borrow::Borrow<K>>(
                &self,
                keys: &[Q],
                each: impl FnMut(usize, Option<&V>),
            ) {
                self.lock().get_many_with(keys, each);
            }
        }
    };
}
