//! The owner table, as obtained from the group's coordinator.

use crate::node::{Member, OwnerTable};

/// Prefix of the client id of a node's membership. The node's address follows it, so the address is
/// part of the metadata that the coordinator has of each member.
pub const CLIENT: &str = "ordna@";

/// A member as the coordinator describes it.
#[derive(Debug, Clone, Copy)]
pub struct DescribedMember<'a> {
    /// The client id of the member.
    pub client_id: &'a str,
    /// The assignment of the member, encoded by the group's leader.
    pub assignment: &'a [u8],
}

/// Returns the owner table of a topic with this number of partitions. A member that is not an index
/// node has no address.
pub fn owners(topic: &str, partitions: u32, members: &[DescribedMember<'_>]) -> OwnerTable {
    let member = |described: &DescribedMember<'_>| Member {
        address: described.client_id.strip_prefix(CLIENT).unwrap_or_default().to_owned(),
        partitions: assigned(topic, described.assignment).unwrap_or_default(),
    };
    let mut members: Vec<Member> = members.iter().map(member).collect();
    members.sort_by(|a, b| a.address.cmp(&b.address));
    OwnerTable { partitions, members, version: 0 }
}

/// Returns the partitions of a topic in an assignment of the consumer protocol; `None` if it is
/// truncated.
///
/// An assignment consists of a version, the number of topics, and for each topic its name, the
/// number of its partitions, and the partitions. Integers are big-endian, and the length of a
/// string has two bytes.
fn assigned(topic: &str, assignment: &[u8]) -> Option<Vec<u32>> {
    let mut rest = assignment;
    let mut take = |bytes: usize| {
        let (taken, behind) = rest.split_at_checked(bytes)?;
        rest = behind;
        Some(taken)
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
    let mut found = Vec::new();
    take(2)?;
    let topics = number(take(4)?);
    for _ in 0..topics {
        let length = number(take(2)?) as usize;
        let is_ours = take(length)? == topic.as_bytes();
        let count = number(take(4)?);
        for _ in 0..count {
            let partition = number(take(4)?);
            if is_ours {
                found.push(partition);
            }
        }
    }
    found.sort_unstable();
    Some(found)
}

/// Returns the addresses of the members that keep a warm copy of a partition, in addition to its
/// owner. These are the members with the highest hashes of address and partition, so only few
/// copies move when a member joins or leaves.
pub fn standbys(owners: &OwnerTable, partition: u32, copies: usize) -> Vec<&str> {
    let owner = owners.owner(partition).map(|member| member.address.as_str());
    let others = owners.members.iter().map(|member| member.address.as_str());
    let mut others: Vec<&str> =
        others.filter(|address| !address.is_empty() && Some(*address) != owner).collect();
    others.sort_by_key(|address| {
        let mut bytes = address.as_bytes().to_vec();
        bytes.extend_from_slice(&partition.to_be_bytes());
        std::cmp::Reverse(ordna::checksum::crc32(&bytes))
    });
    others.truncate(copies);
    others
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes an assignment like Kafka's clients.
    fn assignment(topics: &[(&str, &[u32])]) -> Vec<u8> {
        let mut bytes = vec![0, 1];
        bytes.extend((topics.len() as u32).to_be_bytes());
        for (topic, partitions) in topics {
            bytes.extend((topic.len() as u16).to_be_bytes());
            bytes.extend(topic.as_bytes());
            bytes.extend((partitions.len() as u32).to_be_bytes());
            partitions.iter().for_each(|partition| bytes.extend(partition.to_be_bytes()));
        }
        bytes.extend([0xFF; 4]);
        bytes
    }

    #[test]
    fn partitions_of_the_topic_and_no_other() {
        let bytes = assignment(&[("else", &[9]), ("t", &[3, 1]), ("", &[])]);
        assert_eq!(assigned("t", &bytes), Some(vec![1, 3]));
        assert_eq!(assigned("none", &bytes), Some(vec![]));
        for cut in 0..bytes.len() - 4 {
            assert_eq!(assigned("t", &bytes[..cut]), None, "cut at {cut}");
        }
    }

    #[test]
    fn a_member_that_leaves_moves_its_own_copies_only() {
        let bytes = assignment(&[("t", &[0])]);
        let names: Vec<String> = (0..5).map(|at| format!("{CLIENT}h:{at}")).collect();
        let described = |name| DescribedMember { client_id: name, assignment: &[] };
        let mut members: Vec<_> = names.iter().map(|name| described(name.as_str())).collect();
        members[0].assignment = &bytes;
        let all = owners("t", 8, &members);
        assert_eq!(all.owner(0).unwrap().address, "h:0");
        members.pop();
        let fewer = owners("t", 8, &members);
        for partition in 0..8 {
            let (before, after) = (standbys(&all, partition, 2), standbys(&fewer, partition, 2));
            assert!(before.len() == 2 && after.len() == 2);
            assert!(before.iter().all(|one| *one == "h:4" || after.contains(one)));
            assert!(partition > 0 || !before.contains(&"h:0"));
        }
    }
}
