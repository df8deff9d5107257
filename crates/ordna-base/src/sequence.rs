//! Growable sequences in one buffer: fixed-size elements, and byte strings back to back.

/// A growable sequence of `T` in one buffer.
pub trait Sequence<T: ?Sized>: Default + Send + Sync {
    /// Returns the number of elements.
    fn len(&self) -> usize;
    /// Returns whether the sequence has no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Reserves memory for `more` elements if their size is known.
    fn reserve(&mut self, more: usize);
    /// Returns the total size of the elements in bytes.
    fn byte_len(&self) -> usize;
    /// Appends a copy of `item`.
    fn push(&mut self, item: &T);
    /// Removes all elements from position `len` on.
    fn truncate(&mut self, len: usize);
    /// Returns the element at position `at`.
    fn get(&self, at: usize) -> Option<&T>;
}

impl<T: Copy + Send + Sync> Sequence<T> for Vec<T> {
    fn len(&self) -> usize {
        self.len()
    }
    fn reserve(&mut self, more: usize) {
        self.reserve(more);
    }
    #[inline]
    fn byte_len(&self) -> usize {
        size_of_val(self.as_slice())
    }
    #[inline]
    fn push(&mut self, item: &T) {
        self.push(*item);
    }
    fn truncate(&mut self, len: usize) {
        self.truncate(len);
    }
    #[inline]
    fn get(&self, at: usize) -> Option<&T> {
        <[T]>::get(self, at)
    }
}

/// Byte strings back to back in one buffer.
#[derive(Debug, Default, Clone)]
pub struct FlatBytes {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Sequence<[u8]> for FlatBytes {
    fn len(&self) -> usize {
        self.ends.len()
    }
    fn reserve(&mut self, more: usize) {
        self.ends.reserve(more);
    }
    #[inline]
    fn byte_len(&self) -> usize {
        self.bytes.len()
    }
    #[inline]
    fn push(&mut self, item: &[u8]) {
        self.bytes.extend_from_slice(item);
        self.ends.push(self.bytes.len());
    }
    fn truncate(&mut self, len: usize) {
        self.ends.truncate(len);
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
    }
    #[inline]
    fn get(&self, at: usize) -> Option<&[u8]> {
        let end = *self.ends.get(at)?;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        Some(&self.bytes[start..end])
    }
}
