//! Members of sets for unions, intersections and differences.

use std::cmp::Ordering;

use ordna::checksum::crc32c;

/// Bytes of the checksum in front of a member.
const CHECKSUM: usize = 4;

/// A member, by its position in the text of all members.
#[derive(Debug, Clone, Copy)]
struct Member {
    /// The checksum of the member and its first four bytes, which decide most comparisons.
    head: u64,
    start: usize,
    len: usize,
}

/// Members in the order of a large set, that is, by CRC-32C and name (see
/// [`names`](super::collections::names)). They share one allocation.
#[derive(Debug, Default)]
pub struct Members {
    text: Vec<u8>,
    members: Vec<Member>,
}

/// Returns the first eight bytes of a part: a checksum and the beginning of a member.
fn head_of(part: &[u8]) -> u64 {
    match part.first_chunk() {
        Some(head) => u64::from_be_bytes(*head),
        None => part.iter().rev().fold(0, |head, byte| head >> 8 | u64::from(*byte) << 56),
    }
}

impl Members {
    /// Bytes of memory that a member takes in addition to its text.
    pub const OVERHEAD: usize = size_of::<Member>();

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the bytes of the members.
    pub fn bytes(&self) -> usize {
        self.members.iter().map(|member| member.len + Self::OVERHEAD).sum()
    }

    fn name(&self, member: &Member) -> &[u8] {
        self.text.get(member.start..member.start + member.len).unwrap_or_default()
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.members.iter().map(|member| self.name(member))
    }

    /// Appends a member, given as the part of its element: its checksum and its name.
    pub fn push_part(&mut self, part: &[u8]) {
        let name = part.get(CHECKSUM..).unwrap_or_default();
        let (start, len) = (self.text.len(), name.len());
        self.text.extend_from_slice(name);
        self.members.push(Member { head: head_of(part), start, len });
    }

    /// Appends a member.
    pub fn push(&mut self, name: &[u8]) {
        let mut part = crc32c(name).to_be_bytes().to_vec();
        part.extend_from_slice(name);
        self.push_part(&part);
    }

    /// Appends the members of another set. [`sort`](Self::sort) must be called afterwards.
    pub fn append(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        let moved = self.text.len();
        self.text.extend_from_slice(&other.text);
        let moved = |member: Member| Member { start: member.start + moved, ..member };
        self.members.extend(other.members.into_iter().map(moved));
    }

    /// Sorts the members and removes duplicates.
    pub fn sort(&mut self) {
        let mut members = std::mem::take(&mut self.members);
        let compare = |a: &Member, b: &Member| {
            a.head.cmp(&b.head).then_with(|| self.name(a).cmp(self.name(b)))
        };
        // The sort merges runs that are already sorted.
        members.sort_by(compare);
        members.dedup_by(|a, b| compare(a, b).is_eq());
        self.members = members;
        let used: usize = self.members.iter().map(|member| member.len).sum();
        if used < self.text.len() / 2 {
            self.compact(used);
        }
    }

    /// Frees the memory of text that belongs to no member.
    fn compact(&mut self, used: usize) {
        let text = std::mem::replace(&mut self.text, Vec::with_capacity(used));
        for member in &mut self.members {
            let start = self.text.len();
            let name = text.get(member.start..member.start + member.len);
            self.text.extend_from_slice(name.unwrap_or_default());
            member.start = start;
        }
    }

    /// Keeps the members for which `keeps` holds.
    pub fn retain(&mut self, mut keeps: impl FnMut(&[u8]) -> bool) {
        let mut members = std::mem::take(&mut self.members);
        members.retain(|member| keeps(self.name(member)));
        self.members = members;
    }

    /// Begins a comparison with a set whose parts are passed in order.
    pub fn merge(&mut self, wanted: bool) -> Merge<'_> {
        Merge { members: self, wanted, at: 0, kept: 0 }
    }
}

/// Keeps the members that another set has or, if not `wanted`, those that it does not have.
#[derive(Debug)]
pub struct Merge<'a> {
    members: &'a mut Members,
    wanted: bool,
    /// The first member not compared yet.
    at: usize,
    /// Number of members kept; they come first.
    kept: usize,
}

impl Merge<'_> {
    /// Processes the next part of the other set. Returns whether there are members left to compare.
    pub fn meet(&mut self, part: &[u8]) -> bool {
        let head = head_of(part);
        while let Some(member) = self.members.members.get(self.at).copied() {
            let order = member.head.cmp(&head).then_with(|| {
                self.members.name(&member).cmp(part.get(CHECKSUM..).unwrap_or_default())
            });
            if order == Ordering::Greater {
                return true;
            }
            if order.is_eq() == self.wanted {
                self.keep(member);
            }
            self.at += 1;
            if order.is_eq() {
                break;
            }
        }
        self.at < self.members.len()
    }

    fn keep(&mut self, member: Member) {
        self.members.members[self.kept] = member;
        self.kept += 1;
    }

    /// Ends the comparison: the other set has no more parts, or its other parts do not matter.
    pub fn end(mut self) {
        while !self.wanted && self.at < self.members.len() {
            self.keep(self.members.members[self.at]);
            self.at += 1;
        }
        self.members.members.truncate(self.kept);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Generates names, some of which have equal heads and differ by a zero or a fifth byte.
    fn names() -> impl Strategy<Value = BTreeSet<Vec<u8>>> {
        let name = prop_oneof![
            proptest::collection::vec(prop_oneof![Just(0), Just(b'a'), any::<u8>()], 0..7),
            "[a-c]{0,3}".prop_map(String::into_bytes),
        ];
        proptest::collection::btree_set(name, 0..60)
    }

    fn members(names: &BTreeSet<Vec<u8>>) -> Members {
        let mut members = Members::default();
        names.iter().for_each(|name| members.push(name));
        members.sort();
        members
    }

    fn set(members: &Members) -> BTreeSet<Vec<u8>> {
        members.iter().map(<[u8]>::to_vec).collect()
    }

    proptest! {
        #[test]
        fn sets_are_united_and_merged(one in names(), other in names(), wanted: bool) {
            let mut merged = members(&one);
            let mut merge = merged.merge(wanted);
            for name in members(&other).iter() {
                let part = [&crc32c(name).to_be_bytes(), name].concat();
                if !merge.meet(&part) {
                    break;
                }
            }
            merge.end();
            let keeps = |name: &&Vec<u8>| other.contains(*name) == wanted;
            let expected: BTreeSet<Vec<u8>> = one.iter().filter(keeps).cloned().collect();
            prop_assert_eq!((set(&merged), merged.len()), (expected.clone(), expected.len()));
            let mut kept = members(&one);
            kept.retain(|name| other.contains(name) == wanted);
            prop_assert!(kept.iter().eq(merged.iter()));
            let mut all = members(&one);
            all.append(members(&other));
            all.sort();
            let expected: BTreeSet<Vec<u8>> = one.union(&other).cloned().collect();
            prop_assert_eq!((set(&all), all.len()), (expected.clone(), expected.len()));
            (0..9).for_each(|_| all.append(members(&other)));
            all.sort();
            prop_assert_eq!((set(&all), all.len()), (expected.clone(), expected.len()));
            let used: usize = expected.iter().map(Vec::len).sum();
            prop_assert!(all.text.len() <= 2 * used + 1);
            prop_assert!(all.bytes() >= all.len() * Members::OVERHEAD);
        }
    }

    /// Parts with the same checksum are compared by name, also if one name is a prefix of the
    /// other.
    #[test]
    fn equal_heads_are_compared_by_name() {
        let part = |name: &[u8]| [&[1, 2, 3, 4], name].concat();
        let mut members = Members::default();
        for name in [&b"abcd"[..], b"abcde", b"abcdf"] {
            members.push_part(&part(name));
        }
        let mut merge = members.merge(true);
        assert!(merge.meet(&part(b"abc")) && merge.meet(&part(b"abcd\0")));
        assert!(merge.meet(&part(b"abcde")) && !merge.meet(&part(b"abcdg")));
        merge.end();
        assert_eq!(members.iter().collect::<Vec<_>>(), [b"abcde"]);
    }
}
