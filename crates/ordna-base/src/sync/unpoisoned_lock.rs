//! Locks without poisoning.
//!
//! A panic of a caller's closure leaves every structure here usable, because the protected data is
//! changed in complete steps. So it does not matter whether a former holder panicked.

use std::sync::PoisonError;

use super::lock;

/// A mutex whose guard is returned even if a former holder panicked.
///
/// ```
/// use ordna_base::sync::Lock;
///
/// let sum = Lock::new(1);
/// *sum.lock() += 2;
/// assert_eq!(sum.into_inner(), 3);
/// ```
#[derive(Debug, Default)]
pub struct Lock<T>(lock::Mutex<T>);

impl<T> Lock<T> {
    /// Creates an unlocked lock.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new(value: T) -> Self {
        Self(lock::Mutex::new(value))
    }

    /// Creates an unlocked lock.
    #[cfg(any(loom, shuttle))]
    pub fn new(value: T) -> Self {
        Self(lock::Mutex::new(value))
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub fn lock(&self) -> lock::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<lock::MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// Returns a reference to the value. No lock is needed, because there is no other reference.
    #[cfg(not(loom))]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value. No lock is needed, because there is no other reference.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::Lock;

    #[test]
    fn a_panic_does_not_close_the_lock() {
        let lock = Lock::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            *lock.lock() = 2;
            panic!("while the lock is held");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 2);
        assert!(lock.try_lock().is_some());
    }
}
