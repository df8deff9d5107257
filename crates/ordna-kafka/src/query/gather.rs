//! Which node is asked for which partition, and which answers count.
//!
//! A state machine without clock, threads or network; the caller gives it the time, the owner table
//! and the answers. `tests/model.rs` runs it under shuttle.
//!
//! # Invariants
//! 1. Each partition counts from one answer at most. An answer that holds a partition of an earlier
//!    answer replaces it if it has all of its partitions, and is dropped otherwise: rows of an
//!    answer cannot be told apart by partition.
//! 2. A partition without an answer is in flight, waits for a time that [`Gather::wake`] knows, or
//!    is lost: all members refuse for a reason that lasts as long as the owner table.
//!
//! # Protocol
//! The owner is asked first. If it failed, has no answer within the patience, or is not known, all
//! other members are asked: a standby answers, the others refuse at once. A member that failed is
//! asked again after a pause that doubles.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ordna::sync::fault;

use crate::node::OwnerTable;
use crate::query::wire::Refusal;

/// The pause before a member is asked again for a partition; doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(20);
/// No pause is longer: a partition that has moved is found within this time.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Why a member gave no answer for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionError {
    /// The member says why.
    Refused(Refusal),
    /// No connection, or it broke.
    Unreachable(String),
    /// The member does not accept this node: password, certificate or permission.
    Denied(String),
    /// The member's answer cannot be the answer to the question.
    Garbled(String),
    /// The member did not answer in time.
    Silent,
    /// The member's rows may be older than the query allows.
    TooOld {
        /// Upper bound of their age.
        age: Duration,
        /// The age that the query allows.
        most: Duration,
    },
    /// No member is known to have the partition.
    NoOwner,
}

impl QuestionError {
    /// Whether asking again cannot help while the owner table stays.
    fn lasts(&self) -> bool {
        matches!(self, Self::Denied(_) | Self::Garbled(_))
    }
}

impl fmt::Display for QuestionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(Refusal::NotHeld) => f.write_str("it does not hold the partition"),
            Self::Refused(Refusal::Restoring { done, of }) => {
                write!(f, "it restores the partition: {done} of {of} records")
            }
            Self::Refused(Refusal::Late) => f.write_str("it is behind the state asked for"),
            Self::Refused(Refusal::Query(why) | Refusal::Failed(why)) => f.write_str(why),
            Self::Unreachable(why) => write!(f, "it cannot be reached: {why}"),
            Self::Denied(why) => write!(f, "it does not accept this node: {why}"),
            Self::Garbled(why) => write!(f, "its answer makes no sense: {why}"),
            Self::Silent => f.write_str("it does not answer"),
            Self::TooOld { age: Duration::MAX, most } => write!(
                f,
                "the age of its rows is not known, and MAXAGE is {most:.1?}: it has not yet read up \
                 to an end of the partition that the brokers reported"
            ),
            Self::TooOld { age, most } => write!(
                f,
                "its rows may be {age:.1?} old, and MAXAGE is {most:.1?}: so long ago the brokers \
                 last reported an end of the partition that it has read up to"
            ),
            Self::NoOwner => f.write_str("no node is known to have the partition"),
        }
    }
}

/// A partition without an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingPartition {
    /// The partition.
    pub partition: u32,
    /// The member whose trouble is told; none if no member was asked.
    pub member: Option<String>,
    /// The last trouble of its owner, or of another member.
    pub trouble: QuestionError,
}

impl fmt::Display for MissingPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {}", self.partition)?;
        if let Some(member) = &self.member {
            write!(f, " on {member}")?;
        }
        write!(f, ": {}", self.trouble)
    }
}

/// A question to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Its number; the answer names it.
    pub number: u64,
    /// The member.
    pub member: String,
    /// The partitions, in order.
    pub partitions: Vec<u32>,
}

/// A member that failed to answer for a partition.
#[derive(Debug)]
struct FailedAttempt {
    trouble: QuestionError,
    pause: Duration,
    until: Duration,
    /// The owner table then.
    version: u64,
}

#[derive(Debug, Default)]
struct WantedPartition {
    /// The question whose answer counts.
    answered: Option<u64>,
    /// When each member was asked that has not answered.
    in_flight: BTreeMap<String, Duration>,
    tried: BTreeMap<String, FailedAttempt>,
    /// The owner when the partition was last looked at.
    owner: Option<String>,
}

/// The partitions of a query, on their way to an answer each.
#[derive(Debug)]
pub struct Gather {
    wanted: BTreeMap<u32, WantedPartition>,
    asks: BTreeMap<u64, Question>,
    next: u64,
    patience: Duration,
    version: u64,
    members: usize,
}

impl Gather {
    /// All of these partitions are wanted. A member that has no answer for `patience` is not waited
    /// for alone.
    pub fn new(partitions: impl IntoIterator<Item = u32>, patience: Duration) -> Self {
        let wanted =
            partitions.into_iter().map(|partition| (partition, WantedPartition::default()));
        let (asks, next, version, members) = (BTreeMap::new(), 0, 0, 0);
        Self { wanted: wanted.collect(), asks, next, patience, version, members }
    }

    /// The questions to send now, one for each member. O(partitions · members) at worst.
    pub fn ask(&mut self, owners: &OwnerTable, now: Duration) -> Vec<Question> {
        let nodes = owners.members.iter().filter(|member| !member.address.is_empty());
        (self.version, self.members) = (owners.version, nodes.count());
        let owner_of: BTreeMap<u32, &str> = owners
            .members
            .iter()
            .flat_map(|member| member.partitions.iter().map(|p| (*p, member.address.as_str())))
            .collect();
        let mut targets: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for (partition, wanted) in &mut self.wanted {
            if wanted.answered.is_some() {
                continue;
            }
            let owner = owner_of.get(partition).copied();
            wanted.owner = owner.map(str::to_owned);
            let may_ask = |member: &str| {
                let rests = |tried: &FailedAttempt| match tried.trouble.lasts() {
                    true => tried.version == owners.version,
                    false => tried.until > now,
                };
                !wanted.in_flight.contains_key(member)
                    && !wanted.tried.get(member).is_some_and(rests)
            };
            let is_waited_for = |owner: &str| {
                let asked = wanted.in_flight.get(owner);
                asked.is_some_and(|asked| now < *asked + self.patience || fault!("moves.patience"))
            };
            match owner {
                Some(owner) if may_ask(owner) => targets.entry(owner).or_default().push(*partition),
                Some(owner) if is_waited_for(owner) => {}
                _ => {
                    let others = owners.members.iter().map(|member| member.address.as_str());
                    // A member of another kind has no address.
                    let others = others.filter(|other| !other.is_empty() && Some(*other) != owner);
                    for other in others.filter(|other| may_ask(other)) {
                        targets.entry(other).or_default().push(*partition);
                    }
                }
            }
        }
        let mut asks = Vec::with_capacity(targets.len());
        for (member, partitions) in targets {
            self.next += 1;
            let ask = Question { number: self.next, member: member.to_owned(), partitions };
            for partition in &ask.partitions {
                if let Some(wanted) = self.wanted.get_mut(partition) {
                    wanted.in_flight.insert(ask.member.clone(), now);
                }
            }
            self.asks.insert(ask.number, ask.clone());
            asks.push(ask);
        }
        asks
    }

    /// Notes the answer to a question: for each of its partitions whether the answer has rows of
    /// it. Returns whether the answer counts, and the numbers of those that do no more.
    pub fn answered(
        &mut self,
        number: u64,
        parts: &[(u32, Result<(), QuestionError>)],
        now: Duration,
    ) -> (bool, Vec<u64>) {
        let Some(ask) = self.asks.remove(&number) else { return (false, Vec::new()) };
        let held: BTreeSet<u32> =
            parts.iter().filter(|(_, state)| state.is_ok()).map(|(p, _)| *p).collect();
        for (partition, state) in parts {
            let Some(wanted) = self.wanted.get_mut(partition) else { continue };
            wanted.in_flight.remove(&ask.member);
            match state {
                Ok(()) => drop(wanted.tried.remove(&ask.member)),
                Err(trouble) => {
                    let before = wanted.tried.get(&ask.member).map(|tried| tried.pause);
                    let pause = before.map_or(PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE));
                    let (trouble, version) = (trouble.clone(), self.version);
                    let tried = FailedAttempt { trouble, pause, until: now + pause, version };
                    wanted.tried.insert(ask.member.clone(), tried);
                }
            }
        }
        let answers = held.iter().filter_map(|p| self.wanted.get(p)?.answered);
        let replaced: BTreeSet<u64> = answers.collect();
        let covers = |old: &u64| {
            let mut of_old = self.wanted.iter().filter(|(_, wanted)| wanted.answered == Some(*old));
            of_old.all(|(partition, _)| held.contains(partition))
        };
        if held.is_empty() || !replaced.iter().all(covers) {
            return (false, Vec::new());
        }
        for partition in &held {
            if let Some(wanted) = self.wanted.get_mut(partition) {
                wanted.answered = Some(number);
            }
        }
        let replaced = if fault!("model.replaces") { BTreeSet::new() } else { replaced };
        (true, replaced.into_iter().collect())
    }

    /// Notes that no answer came to a question.
    pub fn failed(&mut self, number: u64, trouble: &QuestionError, now: Duration) {
        let Some(ask) = self.asks.get(&number) else { return };
        let parts: Vec<_> = ask.partitions.iter().map(|p| (*p, Err(trouble.clone()))).collect();
        self.answered(number, &parts, now);
    }

    /// Whether each partition has an answer.
    pub fn is_complete(&self) -> bool {
        self.wanted.values().all(|wanted| wanted.answered.is_some())
    }

    /// Whether nothing is to be waited for: all have an answer, or those that lack one are refused
    /// by all members for good.
    pub fn is_over(&self) -> bool {
        self.wanted.values().all(|wanted| {
            let refuses =
                |tried: &&FailedAttempt| tried.trouble.lasts() && tried.version == self.version;
            let is_lost = self.members > 0
                && wanted.in_flight.is_empty()
                && wanted.tried.values().filter(refuses).count() >= self.members;
            wanted.answered.is_some() || is_lost
        })
    }

    /// When to [`ask`](Self::ask) again, if no answer comes before.
    pub fn wake(&self, now: Duration) -> Duration {
        let waiting = self.wanted.values().filter(|wanted| wanted.answered.is_none());
        let times = waiting.flat_map(|wanted| {
            let flights = wanted.in_flight.values().map(|asked| *asked + self.patience);
            flights.chain(wanted.tried.values().map(|tried| tried.until))
        });
        times.filter(|time| *time > now).min().unwrap_or(now + PAUSE)
    }

    /// The partitions without an answer, and why.
    pub fn missing(&self) -> Vec<MissingPartition> {
        let mut missing = Vec::new();
        for (partition, wanted) in &self.wanted {
            if wanted.answered.is_some() {
                continue;
            }
            let owner = wanted.owner.as_ref();
            let of_owner = owner.and_then(|owner| Some((owner, &wanted.tried.get(owner)?.trouble)));
            let silent = owner.filter(|owner| wanted.in_flight.contains_key(*owner));
            let told = |(_, tried): &(&String, &FailedAttempt)| {
                tried.trouble != QuestionError::Refused(Refusal::NotHeld)
            };
            let of_other = wanted.tried.iter().find(told).map(|(m, tried)| (m, &tried.trouble));
            let found =
                of_owner.or(silent.map(|owner| (owner, &QuestionError::Silent))).or(of_other);
            missing.push(MissingPartition {
                partition: *partition,
                member: found.map(|(member, _)| member.clone()),
                trouble: found.map_or(QuestionError::NoOwner, |(_, trouble)| trouble.clone()),
            });
        }
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Member;

    fn owners(version: u64, members: &[(&str, &[u32])]) -> OwnerTable {
        let member = |(address, partitions): &(&str, &[u32])| Member {
            address: (*address).to_owned(),
            partitions: partitions.to_vec(),
        };
        OwnerTable { partitions: 4, members: members.iter().map(member).collect(), version }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn shown(asks: &[Question]) -> Vec<(&str, &[u32])> {
        asks.iter().map(|ask| (ask.member.as_str(), &ask.partitions[..])).collect()
    }

    const NOT_HELD: Result<(), QuestionError> = Err(QuestionError::Refused(Refusal::NotHeld));

    #[test]
    fn the_owner_is_asked_first_and_others_when_it_fails_or_is_slow() {
        let table = owners(1, &[("a", &[0, 1]), ("b", &[2]), ("c", &[])]);
        let mut gather = Gather::new(0..3, ms(100));
        let asks = gather.ask(&table, ms(0));
        assert_eq!(shown(&asks), [("a", &[0, 1][..]), ("b", &[2])]);
        assert!(gather.ask(&table, ms(50)).is_empty(), "each is asked once");
        assert_eq!(gather.answered(asks[1].number, &[(2, Ok(()))], ms(60)), (true, vec![]));
        assert_eq!(gather.wake(ms(60)), ms(100));
        let hedges = gather.ask(&table, ms(100));
        assert_eq!(shown(&hedges), [("b", &[0, 1][..]), ("c", &[0, 1])]);
        // A standby of one of the two partitions answers.
        let parts = [(0, NOT_HELD), (1, Ok(()))];
        assert_eq!(gather.answered(hedges[1].number, &parts, ms(110)), (true, vec![]));
        assert!(!gather.is_complete());
        // The owner's answer has both, and takes its place.
        let parts = [(0, Ok(())), (1, Ok(()))];
        let replaced = vec![hedges[1].number];
        assert_eq!(gather.answered(asks[0].number, &parts, ms(120)), (true, replaced));
        assert!(gather.is_complete() && gather.is_over());
    }

    #[test]
    fn an_answer_that_shares_a_partition_with_another_does_not_count_beside_it() {
        let table = owners(1, &[("a", &[0, 1, 2]), ("b", &[])]);
        let mut gather = Gather::new(0..3, ms(10));
        let first = gather.ask(&table, ms(0));
        let second = gather.ask(&table, ms(10));
        let parts = [(0, Ok(())), (1, Ok(())), (2, NOT_HELD)];
        assert!(gather.answered(second[0].number, &parts, ms(20)).0);
        let parts = [(0, NOT_HELD), (1, Ok(())), (2, Ok(()))];
        assert_eq!(gather.answered(first[0].number, &parts, ms(21)), (false, vec![]));
        // The one that lacks an answer is asked alone.
        assert_eq!(shown(&gather.ask(&table, ms(30))), [("a", &[2][..])]);
    }

    #[test]
    fn pauses_grow_and_a_new_owner_is_asked_at_once() {
        let mut gather = Gather::new([0], ms(1000));
        let table = owners(1, &[("a", &[0])]);
        let mut now = ms(0);
        for pause in [20, 40, 80, 160, 320, 500, 500] {
            let asks = gather.ask(&table, now);
            gather.answered(asks[0].number, &[(0, NOT_HELD)], now);
            assert!(gather.ask(&table, now + ms(pause - 1)).is_empty());
            now += ms(pause);
            assert_eq!(gather.wake(now - ms(1)), now);
        }
        gather.ask(&table, now);
        let moved = owners(2, &[("a", &[]), ("b", &[0])]);
        assert_eq!(shown(&gather.ask(&moved, now)), [("b", &[0][..])]);
    }

    #[test]
    fn a_partition_that_all_refuse_for_good_is_not_waited_for() {
        let table = owners(1, &[("a", &[0]), ("b", &[])]);
        let mut gather = Gather::new([0], ms(1000));
        let asks = gather.ask(&table, ms(0));
        gather.failed(asks[0].number, &QuestionError::Denied("WRONGPASS".to_owned()), ms(0));
        assert!(!gather.is_over(), "a standby may have it");
        let asks = gather.ask(&table, ms(0));
        gather.failed(asks[0].number, &QuestionError::Garbled("?".to_owned()), ms(0));
        assert!(gather.is_over() && !gather.is_complete());
        assert!(gather.ask(&table, ms(10_000)).is_empty());
        let missing = gather.missing();
        assert_eq!(
            missing[0].to_string(),
            "partition 0 on a: it does not accept this node: WRONGPASS"
        );
        // Another table is another hope.
        let asks = gather.ask(&owners(2, &[("a", &[0]), ("b", &[])]), ms(10_000));
        assert_eq!(shown(&asks), [("a", &[0][..])]);
        assert!(!gather.is_over());
    }

    #[test]
    fn without_a_table_no_node_is_asked_and_the_partition_is_named() {
        let mut gather = Gather::new([3], ms(1000));
        assert!(gather.ask(&OwnerTable::default(), ms(0)).is_empty() && !gather.is_over());
        let missing = gather.missing();
        assert_eq!((missing[0].partition, &missing[0].trouble), (3, &QuestionError::NoOwner));
        // An owner that does not answer is named.
        gather.ask(&owners(1, &[("a", &[3])]), ms(0));
        assert_eq!(gather.missing()[0].to_string(), "partition 3 on a: it does not answer");
    }
}
