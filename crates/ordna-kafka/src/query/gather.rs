//! Scatter and gather of one query: which node is asked for which partition, and which answers are
//! used.
//!
//! A state machine without clock, threads or network: the caller passes in the time, the owner
//! table and the answers. `tests/model.rs` runs it under shuttle.
//!
//! # Invariants
//! 1. Each partition is counted from at most one answer. The rows of an answer cannot be told apart
//!    by partition. So an answer that overlaps earlier ones replaces them if it has all of their
//!    partitions, and is dropped otherwise.
//! 2. A partition without an answer is in flight, is waiting for a time that [`Gather::wake`]
//!    returns, or is lost. It is lost if every member has refused it for a reason that only a new
//!    owner table can change.
//!
//! # Protocol
//! The owner is asked first. If it fails, does not answer within `patience`, or is not known, all
//! other members are asked: a standby answers, the others refuse immediately. A member that failed
//! is asked again after a pause that doubles each time.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ordna::sync::fault;

use crate::node::OwnerTable;
use crate::query::wire::Refusal;

/// First pause before a member is asked again for a partition. It doubles up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(20);
/// Upper bound of the pause, so that a partition that has moved is found within this time.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The reason why a member gave no answer for a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionError {
    /// The member refused, for this reason.
    Refused(Refusal),
    /// The connection failed or could not be opened.
    Unreachable(String),
    /// The member rejected this node: password, certificate or permission.
    Denied(String),
    /// The member's reply is not a valid answer to the question.
    Garbled(String),
    /// The member did not answer in time.
    Silent,
    /// The member's rows may be older than the query allows.
    TooOld {
        /// Upper bound of the rows' age.
        age: Duration,
        /// The maximum age that the query allows.
        most: Duration,
    },
    /// No member is known to have the partition.
    NoOwner,
}

impl QuestionError {
    /// Returns whether the error is permanent until the owner table changes.
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
            Self::Garbled(why) => write!(f, "its answer is not valid: {why}"),
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
    /// The member that `trouble` is about; `None` if no member was asked.
    pub member: Option<String>,
    /// The last error of the partition's owner, or of another member if the owner reported none.
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
    /// The question's number, which its answer repeats.
    pub number: u64,
    /// The member to ask.
    pub member: String,
    /// The partitions to ask for, in ascending order.
    pub partitions: Vec<u32>,
}

/// A failed attempt to get a partition from one member.
#[derive(Debug)]
struct FailedAttempt {
    trouble: QuestionError,
    pause: Duration,
    until: Duration,
    /// Version of the owner table at the time of the attempt.
    version: u64,
}

#[derive(Debug, Default)]
struct WantedPartition {
    /// The question whose answer is used for this partition.
    answered: Option<u64>,
    /// The members that have been asked and have not answered, with the time of the question.
    in_flight: BTreeMap<String, Duration>,
    tried: BTreeMap<String, FailedAttempt>,
    /// The partition's owner when its state was last updated.
    owner: Option<String>,
}

/// The progress of one query: the answer, or the attempts so far, of each partition.
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
    /// Creates the state of a query over `partitions`. If a member has not answered within
    /// `patience`, the other members are asked too.
    pub fn new(partitions: impl IntoIterator<Item = u32>, patience: Duration) -> Self {
        let wanted =
            partitions.into_iter().map(|partition| (partition, WantedPartition::default()));
        let (asks, next, version, members) = (BTreeMap::new(), 0, 0, 0);
        Self { wanted: wanted.collect(), asks, next, patience, version, members }
    }

    /// Returns the questions to send now, at most one for each member. O(partitions · members) in
    /// the worst case.
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
                    // Members of other kinds have an empty address.
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

    /// Records the answer to a question; `parts` says for each of its partitions whether the answer
    /// has rows of it. Returns whether the answer is used, and the numbers of the earlier answers
    /// that it replaces.
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

    /// Records that a question failed.
    pub fn failed(&mut self, number: u64, trouble: &QuestionError, now: Duration) {
        let Some(ask) = self.asks.get(&number) else { return };
        let parts: Vec<_> = ask.partitions.iter().map(|p| (*p, Err(trouble.clone()))).collect();
        self.answered(number, &parts, now);
    }

    /// Returns whether each partition has an answer.
    pub fn is_complete(&self) -> bool {
        self.wanted.values().all(|wanted| wanted.answered.is_some())
    }

    /// Returns whether waiting longer cannot help: each partition either has an answer or is
    /// refused by all members for a permanent reason.
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

    /// Returns when to call [`ask`](Self::ask) again if no answer arrives earlier.
    pub fn wake(&self, now: Duration) -> Duration {
        let waiting = self.wanted.values().filter(|wanted| wanted.answered.is_none());
        let times = waiting.flat_map(|wanted| {
            let flights = wanted.in_flight.values().map(|asked| *asked + self.patience);
            flights.chain(wanted.tried.values().map(|tried| tried.until))
        });
        times.filter(|time| *time > now).min().unwrap_or(now + PAUSE)
    }

    /// Returns the partitions without an answer, with the reasons.
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
        // The owner's answer has both partitions and replaces the standby's.
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
        // Only the owner of the partition without an answer is asked.
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
        // A new owner table makes another attempt worthwhile.
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
        // The error names an owner that does not answer.
        gather.ask(&owners(1, &[("a", &[3])]), ms(0));
        assert_eq!(gather.missing()[0].to_string(), "partition 3 on a: it does not answer");
    }
}
