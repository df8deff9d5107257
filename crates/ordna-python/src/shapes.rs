//! The types of the keys of a store, which must not contain keys that Python cannot compare.
//!
//! # Contract
//! A key is accepted if Python could compare it with every other key of the store. The shape of a
//! key is the sequence of its types, with marks around tuples. Two shapes agree if no keys of
//! them can have different types where they first differ.
//!
//! While all shapes agree, it is enough to check the shapes. Otherwise the two neighbours of a new
//! key decide. They share the longest prefix with it, and all keys of the store can be compared
//! with each other. So if the new key cannot be compared with some key, it cannot be compared with
//! one of its neighbours.
//!
//! A shape is remembered after the write of a new key succeeds, and forgotten when the store is
//! empty. So two threads that insert keys of different types at the same time may both succeed.

use std::sync::{PoisonError, RwLock};

use ordna::tuple::{Decode, Reader, Value, code};
use smallvec::SmallVec;

/// The types of a key, in order.
pub type Shape = SmallVec<[u8; 16]>;

pub const NONE: u8 = 1;
pub const BOOL: u8 = 2;
pub const INT: u8 = 3;
pub const FLOAT: u8 = 4;
pub const STR: u8 = 5;
pub const BYTES: u8 = 6;
pub const DATE: u8 = 7;
pub const TIME: u8 = 8;
pub const LOCAL: u8 = 9;
pub const UTC: u8 = 10;
pub const DELTA: u8 = 11;
pub const TUPLE: u8 = 12;
pub const END: u8 = 0;

/// Maximum number of shapes that are remembered. If there are more, neighbours decide.
const SHAPES: usize = 16;

#[derive(Clone, Default)]
struct Known {
    shapes: Vec<Shape>,
    /// Whether the store may contain keys whose shapes are not in the list, or do not agree.
    mixed: bool,
}

/// The shapes of the keys of a store.
#[derive(Default)]
pub struct Shapes(RwLock<Known>);

/// The result of checking the shape of a new key.
#[derive(PartialEq, Eq)]
pub enum Verdict {
    /// The store contains a key of this shape.
    Known,
    /// The shape agrees with all others. The caller must call [`Shapes::remember`].
    Agrees,
    /// The neighbours decide. If they allow the key, the caller must call [`Shapes::remember`].
    AskNeighbours,
}

/// Returns whether Python can compare keys that first differ in these types.
fn comparable(a: u8, b: u8) -> bool {
    let is_number = |group| matches!(group, INT | FLOAT);
    a == b || a == END || b == END || is_number(a) && is_number(b)
}

/// Returns whether keys of these shapes can always be compared. Two `None` are equal, so they never
/// decide a comparison.
fn agree(a: &[u8], b: &[u8]) -> bool {
    for (a, b) in a.iter().zip(b) {
        if !comparable(*a, *b) {
            return false;
        }
        if *a == END || *b == END {
            // One of the tuples ends here. If both do, the loop continues.
            if a != b {
                return true;
            }
        }
    }
    true
}

impl Known {
    fn check(&self, shape: &[u8]) -> Verdict {
        if self.mixed {
            return Verdict::AskNeighbours;
        }
        if self.shapes.iter().any(|other| other.as_slice() == shape) {
            return Verdict::Known;
        }
        let all_agree = self.shapes.iter().all(|other| agree(other, shape));
        let fits = all_agree && self.shapes.len() < SHAPES;
        if fits { Verdict::Agrees } else { Verdict::AskNeighbours }
    }
}

impl Shapes {
    /// Checks whether a key of this shape can be added.
    pub fn check(&self, shape: &[u8]) -> Verdict {
        self.0.read().unwrap_or_else(PoisonError::into_inner).check(shape)
    }

    /// Remembers the shape of a key that was added to the store.
    pub fn remember(&self, shape: &[u8]) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match known.check(shape) {
            Verdict::Known => {}
            Verdict::Agrees => known.shapes.push(shape.into()),
            Verdict::AskNeighbours => known.mixed = true,
        }
    }

    /// Returns whether neighbours decide.
    pub fn is_mixed(&self) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).mixed
    }

    /// Returns a copy that later writes do not change.
    pub fn frozen(&self) -> Self {
        Self(RwLock::new(self.0.read().unwrap_or_else(PoisonError::into_inner).clone()))
    }

    /// Lets neighbours decide from now on.
    pub fn accept_mixed(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).mixed = true;
    }

    /// Forgets all shapes. The caller has found that the store is empty.
    pub fn clear(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Known::default();
    }

    /// Returns whether all keys have this shape.
    pub fn is_only(&self, shape: &[u8]) -> bool {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        matches!(known.shapes.as_slice(), [only] if !known.mixed && only.as_slice() == shape)
    }

    /// Returns the shape of all keys, or an empty shape if they do not all have the same one.
    pub fn only(&self) -> Shape {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner);
        match known.shapes.as_slice() {
            [only] if !known.mixed => only.clone(),
            _ => Shape::new(),
        }
    }
}

/// Returns whether Python can compare two keys, that is, whether the types at their first
/// difference can be compared.
pub fn can_compare(a: &[u8], b: &[u8]) -> bool {
    let group = |first: Option<u8>| match first {
        Some(code::FALSE | code::TRUE) => Some(code::FALSE),
        Some(code::NEGATIVE_INFINITY..=code::NAN) => Some(code::ZERO),
        other => other,
    };
    let (mut left, mut right) = (Reader::new(a), Reader::new(b));
    loop {
        let (from, code) = (left.position(), left.peek());
        if group(code) != group(right.peek()) {
            let ends =
                [left.peek(), right.peek()].map(|code| matches!(code, None | Some(code::END)));
            return ends != [false, false];
        }
        let Some(code) = code else { return true };
        if matches!(code, code::TUPLE | code::END) {
            // Both have it: `peek` saw it.
            let _ = (left.byte("a mark"), right.byte("a mark"));
            continue;
        }
        let read = (Value::decode(&mut left), Value::decode(&mut right));
        let same = a.get(from..left.position()) == b.get(from..right.position());
        if !same || read.0.is_err() || read.1.is_err() {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_agree_if_no_types_can_meet() {
        assert!(agree(&[INT], &[FLOAT]));
        assert!(!agree(&[INT], &[STR]));
        assert!(!agree(&[TUPLE, INT, END], &[INT]));
        assert!(agree(&[TUPLE, INT, END], &[TUPLE, INT, STR, END]));
        assert!(!agree(&[TUPLE, INT, NONE, END], &[TUPLE, INT, STR, END]));
        assert!(agree(&[TUPLE, TUPLE, END, INT, END], &[TUPLE, TUPLE, INT, END, STR, END]));
    }

    #[test]
    fn keys_compare_by_the_types_where_they_first_differ() {
        use ordna::tuple::encode;
        let can = |a: &[u8], b: &[u8]| can_compare(a, b) && can_compare(b, a);
        assert!(can(&encode(&1), &encode(&2)) && !can(&encode(&1), &encode("a")));
        assert!(can(&encode(&(1, "a")), &encode(&(2, 5))));
        assert!(!can(&encode(&(1, "a")), &encode(&(1, 5))));
        assert!(can(&encode(&(1, None::<u8>, 2)), &encode(&(1, None::<u8>, 3))));
        assert!(!can(&encode(&(1, None::<u8>)), &encode(&(1, 3))));
        assert!(can(&encode(&(1,)), &encode(&(1, 3))) && !can(&encode(&true), &encode(&1)));
        assert!(!can(&encode(&(1, (2, 3))), &encode(&(1, (2, "a")))));
    }

    #[test]
    fn the_list_is_bounded_and_forgets() {
        let shapes = Shapes::default();
        for length in 0..SHAPES {
            let shape = vec![TUPLE; length + 1];
            assert!(shapes.check(&shape) == Verdict::Agrees);
            shapes.remember(&shape);
            assert!(shapes.check(&shape) == Verdict::Known);
        }
        assert!(shapes.check(&[TUPLE; 40]) == Verdict::AskNeighbours);
        shapes.clear();
        shapes.remember(&[INT]);
        assert!(shapes.check(&[STR]) == Verdict::AskNeighbours);
        let frozen = shapes.frozen();
        shapes.remember(&[STR]);
        assert!(shapes.is_mixed() && !frozen.is_mixed());
        let shapes = frozen;
        assert_eq!(shapes.only().as_slice(), [INT]);
    }
}
