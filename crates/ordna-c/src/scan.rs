//! Ranges and scans.

#![expect(unsafe_code, reason = "calls the caller's function")]

use std::ffi::{c_int, c_void};
use std::ops::Bound;

use ordna::index::Source;
use ordna::{Direction, Entries};

use crate::status::{Failure, OrdnaSlice, OrdnaStatus};

/// Entries read ahead of the callback: at first, and at most. Their bytes are bounded by
/// [`ordna::index::READ_AHEAD_BYTES`].
pub(crate) const CHUNKS: (usize, usize) = (16, 1024);

/// Whether one end of a range exists and belongs to the range.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrdnaBound {
    /// The range has no limit on this side.
    Unbounded = 0,
    /// The key at this end belongs to the range.
    Included = 1,
    /// The key at this end does not belong to the range.
    Excluded = 2,
}

/// A range of keys, with the direction and the maximum length of a scan over it. A structure of
/// zeros is the range of all keys in ascending order.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct OrdnaRange {
    /// Lower end. Ignored if `lower_bound` is `ORDNA_BOUND_UNBOUNDED`.
    pub lower: OrdnaSlice,
    /// Upper end. Ignored if `upper_bound` is `ORDNA_BOUND_UNBOUNDED`.
    pub upper: OrdnaSlice,
    /// Kind of the lower end: an `OrdnaBound`.
    pub lower_bound: c_int,
    /// Kind of the upper end: an `OrdnaBound`.
    pub upper_bound: c_int,
    /// Whether the scan is in descending order.
    pub reverse: bool,
    /// Maximum number of entries that a scan visits; 0 means no limit.
    pub limit: usize,
}

/// Callback that receives an entry. The slices are valid during the call only. A result other than
/// 0 ends the scan. The callback must return normally: no exception and no `longjmp` may leave it.
pub type OrdnaVisit =
    Option<unsafe extern "C" fn(context: *mut c_void, key: OrdnaSlice, value: OrdnaSlice) -> c_int>;

/// The bounds of a scan, in the bytes of the keys.
pub(crate) type KeyRange = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn by_ref(range: &KeyRange) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (range.0.as_ref().map(Vec::as_slice), range.1.as_ref().map(Vec::as_slice))
}

impl OrdnaRange {
    /// # Safety
    /// The slices of ends that count are readable.
    pub(crate) unsafe fn key_range(&self) -> Result<KeyRange, Failure> {
        let end = |slice: OrdnaSlice, bound: c_int| {
            // SAFETY: the caller guarantees what the called function requires.
            let key = || unsafe { slice.bytes() }.map(<[u8]>::to_vec);
            match bound {
                0 => Ok(Bound::Unbounded),
                1 => key().map(Bound::Included),
                2 => key().map(Bound::Excluded),
                _ => Err(Failure::invalid("a bound is 0, 1 or 2")),
            }
        };
        Ok((end(self.lower, self.lower_bound)?, end(self.upper, self.upper_bound)?))
    }
}

/// The range of a scan, its direction and limit.
pub(crate) struct RangeScan {
    pub range: KeyRange,
    pub reverse: bool,
    pub limit: usize,
}

impl RangeScan {
    /// # Safety
    /// `range` is null (all keys) or readable, as are its slices.
    pub unsafe fn of(range: *const OrdnaRange) -> Result<Self, Failure> {
        // SAFETY: the caller guarantees what the called function requires.
        let Some(range) = (unsafe { range.as_ref() }) else {
            return Ok(Self::new((Bound::Unbounded, Bound::Unbounded), false, 0));
        };
        // SAFETY: the caller guarantees what the called function requires.
        Ok(Self::new(unsafe { range.key_range() }?, range.reverse, range.limit))
    }

    pub fn prefix(prefix: &[u8], reverse: bool, limit: usize) -> Self {
        let end = ordna::key::prefix_end(prefix).map_or(Bound::Unbounded, Bound::Excluded);
        Self::new((Bound::Included(prefix.to_vec()), end), reverse, limit)
    }

    fn new(range: KeyRange, reverse: bool, limit: usize) -> Self {
        Self { range, reverse, limit: if limit == 0 { usize::MAX } else { limit } }
    }

    pub fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        by_ref(&self.range)
    }

    /// Reads in chunks and calls `visit` between them, so the callback runs outside of the store.
    ///
    /// # Safety
    /// `visit` is a function as [`OrdnaVisit`] says, and `context` is what it expects.
    pub unsafe fn run<S: Source<Key = [u8], Value = [u8]>>(
        mut self,
        source: &S,
        visit: OrdnaVisit,
        context: *mut c_void,
    ) -> Result<OrdnaStatus, Failure> {
        let visit = visit.ok_or_else(|| Failure::invalid("the callback is null"))?;
        let direction = if self.reverse { Direction::Descending } else { Direction::Ascending };
        let (mut entries, mut chunk) = (Entries::new(), CHUNKS.0);
        while self.limit > 0 {
            let wanted = chunk.min(self.limit);
            entries.clear();
            let (lower, upper) = by_ref(&self.range);
            let more = source.read_ahead(lower, upper, direction, wanted, &mut entries);
            for (key, value) in entries.iter() {
                // SAFETY: the caller guarantees that the function can be called. The slices are
                // valid.
                let ended =
                    unsafe { visit(context, OrdnaSlice::new(key), OrdnaSlice::new(value)) } != 0;
                if ended {
                    return Ok(OrdnaStatus::Stopped);
                }
            }
            let Some((last, _)) = entries.last().filter(|_| more) else { break };
            let behind = Bound::Excluded(last.to_vec());
            if self.reverse {
                self.range.1 = behind
            } else {
                self.range.0 = behind
            }
            self.limit -= entries.len();
            chunk = (chunk * 2).min(CHUNKS.1);
        }
        Ok(OrdnaStatus::Ok)
    }
}
