//! Leader epochs, which the safe interface of rdkafka does not expose, and the comparison of a
//! position with the brokers' history of epochs (KIP-320).
//!
//! # Contract
//! Any thread can call any function. The functions of librdkafka are thread-safe for one client. A
//! list of partitions is used by one thread at a time.
//!
//! # Protocol
//! Every record carries the epoch of the leader under which it was written. For each epoch, the
//! current leader knows at which offset that epoch ends in its own log. If this offset is below a
//! position whose last record has the epoch, the log was truncated before the position, and its
//! present records are different ones. librdkafka makes this comparison when a consumer seeks to an
//! offset with an epoch, and reports a difference as an error of the partition.
#![expect(unsafe_code, reason = "librdkafka is a library in C")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_int};
use std::time::{Duration, Instant};

use rdkafka::bindings as c;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::BorrowedMessage;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use crate::epoch_history::EpochMark;

/// Returns the epoch under which a record was written; -1 if its broker does not know epochs.
pub fn of_record(message: &BorrowedMessage<'_>) -> i32 {
    // SAFETY: the message is valid as long as the reference.
    unsafe { c::rd_kafka_message_leader_epoch(message.ptr()) }
}

/// Returns the epoch of each partition of a list, in its order; -1 for partitions without one.
pub fn of_list(list: &TopicPartitionList) -> Vec<i32> {
    let mut epochs = Vec::with_capacity(list.count());
    // SAFETY: the list has `cnt` elements at `elems`. Nobody changes it during the call, as there
    // is a shared reference to it, and only `set` below changes it through one.
    unsafe {
        let list = &*list.ptr();
        for at in 0..usize::try_from(list.cnt).unwrap_or(0) {
            epochs.push(c::rd_kafka_topic_partition_get_leader_epoch(list.elems.add(at)));
        }
    }
    epochs
}

/// Sets the epoch of a partition of a list, if the list has the partition.
pub fn set(list: &mut TopicPartitionList, topic: &str, partition: u32, epoch: i32) {
    let Ok(topic) = CString::new(topic) else { return };
    // SAFETY: the list is borrowed exclusively, and the element that is found belongs to it.
    unsafe {
        let found =
            c::rd_kafka_topic_partition_list_find(list.ptr(), topic.as_ptr(), partition as i32);
        if !found.is_null() {
            c::rd_kafka_topic_partition_set_leader_epoch(found, epoch);
        }
    }
}

/// Seeks to the offsets and epochs of a list. Returns the partitions that the consumer does not
/// fetch yet, or no longer fetches.
fn seek(consumer: &BaseConsumer, list: &TopicPartitionList, timeout: Duration) -> Vec<u32> {
    let millis = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX).max(1);
    // SAFETY: client and list are valid as long as the references, and the error is destroyed only
    // once.
    let is_done = unsafe {
        let error = c::rd_kafka_seek_partitions(consumer.client().native_ptr(), list.ptr(), millis);
        if !error.is_null() {
            c::rd_kafka_error_destroy(error);
        }
        error.is_null()
    };
    let failed = list.elements().into_iter().filter(|at| !is_done || at.error().is_err());
    failed.filter_map(|at| u32::try_from(at.partition()).ok()).collect()
}

/// Returns the partition of the next record, end or error of a consumer, and whether it is an error
/// that says that the position cannot be read.
fn next_event(consumer: &BaseConsumer, timeout: Duration) -> Option<(u32, bool)> {
    let millis = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: the client is valid as long as the reference. The message is read before it is
    // destroyed, and destroyed only once.
    let (partition, error) = unsafe {
        let message = c::rd_kafka_consumer_poll(consumer.client().native_ptr(), millis);
        if message.is_null() {
            return None;
        }
        let found = ((*message).partition, (*message).err);
        c::rd_kafka_message_destroy(message);
        found
    };
    use RDKafkaErrorCode::{AutoOffsetReset, NoError, OffsetOutOfRange, PartitionEOF};
    let is_lost = match RDKafkaErrorCode::from(error) {
        NoError | PartitionEOF => false,
        AutoOffsetReset | OffsetOutOfRange => true,
        // An error of a broker or a connection. librdkafka tries again.
        _ => return None,
    };
    Some((u32::try_from(partition).ok()?, is_lost))
}

/// Returns, for each partition, whether the brokers' history still contains its mark. Creates a
/// consumer for this.
///
/// # Errors
/// The brokers did not answer for all partitions in time. Then nothing is known.
pub fn compare(
    settings: &ClientConfig,
    topic: &str,
    marks: &BTreeMap<u32, EpochMark>,
    timeout: Duration,
) -> Result<BTreeMap<u32, bool>, String> {
    let mut found = BTreeMap::new();
    if marks.is_empty() {
        return Ok(found);
    }
    let until = Instant::now() + timeout;
    let late = || "the history of leader epochs was not compared in time".to_owned();
    let mut settings = settings.clone();
    settings
        // librdkafka requires a group id of every consumer. This one joins no group.
        .set("group.id", "ordna-compare")
        .set("auto.offset.reset", "error")
        .set("enable.partition.eof", "true")
        .set("fetch.message.max.bytes", "1024")
        .set("fetch.wait.max.ms", "20");
    let consumer: BaseConsumer = settings.create().map_err(|error| error.to_string())?;
    let mut list = TopicPartitionList::new();
    for (partition, mark) in marks {
        let offset = Offset::Offset(i64::try_from(mark.seq).unwrap_or(i64::MAX));
        let added = list.add_partition_offset(topic, *partition as i32, offset);
        added.map_err(|error| error.to_string())?;
        set(&mut list, topic, *partition, mark.epoch);
    }
    consumer.assign(&list).map_err(|error| error.to_string())?;
    // The assignment alone may start to fetch without a comparison. The seek drops the events of
    // that fetch.
    let mut started = false;
    while !started {
        let missing = seek(&consumer, &list, Duration::from_millis(500));
        started = missing.iter().all(|partition| found.contains_key(partition));
        if !started && Instant::now() >= until {
            return Err(late());
        }
        // If the position is out of range, the fetch ends, and a seek is no longer possible.
        if !started
            && let Some((partition, true)) = next_event(&consumer, Duration::from_millis(10))
        {
            found.insert(partition, false);
        }
    }
    while found.len() < marks.len() {
        if let Some((partition, is_lost)) = next_event(&consumer, Duration::from_millis(20)) {
            found.entry(partition).or_insert(!is_lost);
        }
        if Instant::now() >= until {
            return Err(late());
        }
    }
    Ok(found)
}
