//! The id of a topic, which the safe interface of rdkafka does not expose.
//!
//! # Contract
//! Any thread can call [`topic_id`]. The functions of librdkafka are thread-safe for one client.
#![expect(unsafe_code, reason = "librdkafka is a library in C")]

use std::ffi::{CString, c_char, c_int};
use std::time::Duration;

use rdkafka::bindings as c;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::types::RDKafka;

/// An object of librdkafka and the function that frees it.
struct ClientObject<T>(*mut T, unsafe extern "C" fn(*mut T));

impl<T> Drop for ClientObject<T> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the pointer was returned by the constructor that belongs to this function,
            // and nobody else frees it.
            unsafe { self.1(self.0) }
        }
    }
}

/// Returns the 16 bytes of a topic's id; `None` if the topic does not exist. Another topic with the
/// same name has another id.
///
/// # Errors
/// No broker answered in time.
pub fn topic_id(
    client: *mut RDKafka,
    topic: &str,
    timeout: Duration,
) -> Result<Option<u128>, String> {
    let millis = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX).max(1);
    let name = CString::new(topic).map_err(|error| error.to_string())?;
    let mut names = [name.as_ptr()];
    let mut reason: [c_char; 256] = [0; 256];
    // SAFETY: the caller's client is valid during this call. Each object is freed after those that
    // use it, as `ClientObject`s are dropped in reverse order. The results are read while their
    // event exists.
    unsafe {
        let queue = ClientObject(c::rd_kafka_queue_new(client), c::rd_kafka_queue_destroy);
        let topics = c::rd_kafka_TopicCollection_of_topic_names(names.as_mut_ptr(), 1);
        let topics = ClientObject(topics, c::rd_kafka_TopicCollection_destroy);
        let kind = c::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS;
        let options = c::rd_kafka_AdminOptions_new(client, kind);
        let options = ClientObject(options, c::rd_kafka_AdminOptions_destroy);
        let (text, size) = (reason.as_mut_ptr(), reason.len());
        c::rd_kafka_AdminOptions_set_request_timeout(options.0, millis, text, size);
        c::rd_kafka_DescribeTopics(client, topics.0, options.0, queue.0);
        let event = c::rd_kafka_queue_poll(queue.0, millis.saturating_add(1000));
        let event = ClientObject(event, c::rd_kafka_event_destroy);
        if event.0.is_null() {
            return Err("no broker answered".to_owned());
        }
        let code = RDKafkaErrorCode::from(c::rd_kafka_event_error(event.0));
        if code != RDKafkaErrorCode::NoError {
            return Err(code.to_string());
        }
        let result = c::rd_kafka_event_DescribeTopics_result(event.0);
        if result.is_null() {
            return Err("the broker does not describe topics".to_owned());
        }
        let mut count = 0;
        let topics = c::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        if topics.is_null() || count == 0 {
            return Ok(None);
        }
        let error = c::rd_kafka_TopicDescription_error(*topics);
        match RDKafkaErrorCode::from(c::rd_kafka_error_code(error)) {
            RDKafkaErrorCode::NoError => {}
            RDKafkaErrorCode::UnknownTopicOrPartition | RDKafkaErrorCode::UnknownTopic => {
                return Ok(None);
            }
            code => return Err(code.to_string()),
        }
        let id = c::rd_kafka_TopicDescription_topic_id(*topics);
        if id.is_null() {
            return Err("the broker gives topics no ids".to_owned());
        }
        let high = c::rd_kafka_Uuid_most_significant_bits(id).cast_unsigned();
        let low = c::rd_kafka_Uuid_least_significant_bits(id).cast_unsigned();
        match u128::from(high) << 64 | u128::from(low) {
            0 => Err("the broker gives topics no ids".to_owned()),
            id => Ok(Some(id)),
        }
    }
}
