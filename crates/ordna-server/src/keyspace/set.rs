//! Sets: members without an order that is visible to users.
//!
//! A small set is one record with its members in ascending order. In a large set, each member is an
//! element without a value (see [`names`](super::collections::names)).

use std::ops::ControlFlow;

use crate::keyspace::collections::Body;
use crate::keyspace::collections::names::{MOST_NAME, Named, too_long};
use crate::keyspace::members::Members;
use crate::keyspace::sample::{Draws, Sampled, Visit};
use crate::wire::error::CommandError;
use crate::wire::request::number;

/// Ratio of the sizes of two sets up to which they are merged. Above it, each member of the smaller
/// set is looked up in the larger one.
pub const MERGED: usize = 16;

/// A set that a command reads.
#[derive(Debug, Clone, Copy)]
pub struct SetView<'b, 'a>(pub &'b Body<'a>);

impl SetView<'_, '_> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn contains(&self, member: &[u8]) -> bool {
        match self.0 {
            Body::Packed(packed) => packed.search(member).is_ok(),
            Body::Large(large) => large.get_named(member, |_| ()).is_some(),
        }
    }

    /// Visits the members until `visit` breaks.
    pub fn visit(&self, mut visit: impl FnMut(&[u8]) -> ControlFlow<()>) {
        match self.0 {
            Body::Packed(packed) => {
                let _ = packed.iter().try_for_each(visit);
            }
            Body::Large(large) => large.visit_named(0, |member, _| visit(member)),
        }
    }

    /// Returns the members, or `None` if they have more than `most` bytes.
    pub fn members(&self, most: usize) -> Option<Members> {
        let (mut members, mut left) = (Members::default(), Some(most));
        let mut fits = |len: usize| {
            left = left.and_then(|left| left.checked_sub(len + Members::OVERHEAD));
            left.is_some()
        };
        match self.0 {
            Body::Packed(packed) => {
                packed
                    .iter()
                    .filter(|member| fits(member.len()))
                    .for_each(|name| members.push(name));
                members.sort();
            }
            Body::Large(large) => large.visit_parts(|part| {
                if !fits(part.len().saturating_sub(4)) {
                    return ControlFlow::Break(());
                }
                members.push_part(part);
                ControlFlow::Continue(())
            }),
        }
        left.map(|_| members)
    }

    /// Keeps those of `members` that are in this set or, if not `wanted`, those that are not. O(s
    /// log n), where s is the size of the smaller set, or O(n) if both are about equally large.
    pub fn retain(&self, members: &mut Members, wanted: bool) {
        match self.0 {
            Body::Large(large) if self.len() / MERGED <= members.len() => {
                let mut merge = members.merge(wanted);
                large.visit_parts(|part| match merge.meet(part) {
                    true => ControlFlow::Continue(()),
                    false => ControlFlow::Break(()),
                });
                merge.end();
            }
            _ => members.retain(|member| self.contains(member) == wanted),
        }
    }
}

impl Sampled for SetView<'_, '_> {
    fn len(&self) -> usize {
        SetView::len(self)
    }

    fn visit(&self, visit: &mut Visit<'_>) {
        SetView::visit(self, |member| visit(member, &[]));
    }

    fn one(&self, draws: &mut Draws) -> Option<Named> {
        match self.0 {
            Body::Packed(_) => None,
            Body::Large(large) => large.random_named(&mut |end| draws.below(end)),
        }
    }
}

/// Adds a member; returns whether it is new.
///
/// # Errors
/// The member is too long.
pub fn add(body: &mut Body<'_>, member: &[u8]) -> Result<bool, CommandError> {
    if member.len() > MOST_NAME {
        return Err(too_long(member.len()));
    }
    Ok(match body {
        Body::Packed(packed) => {
            let place = packed.search(member);
            if let Err(at) = place {
                if !packed.is_converted() && number(member).is_none() {
                    packed.convert();
                }
                packed.insert(at, member);
            }
            place.is_err()
        }
        Body::Large(large) => {
            let is_new = large.get_named(member, |_| ()).is_none();
            if is_new {
                large.put_named(member, &[], true);
                large.head.count += 1;
            }
            is_new
        }
    })
}

/// Removes a member; returns whether it was present.
pub fn remove(body: &mut Body<'_>, member: &[u8]) -> bool {
    match body {
        Body::Packed(packed) => {
            let place = packed.search(member);
            if let Ok(at) = place {
                packed.remove(at);
            }
            place.is_ok()
        }
        Body::Large(large) => {
            let was_there = large.get_named(member, |_| ()).is_some();
            if was_there {
                large.remove_named(member);
                large.head.count -= 1;
            }
            was_there
        }
    }
}
