//! The transactional producer of a primary.
//!
//! # Contract
//! Opening a [`Producer`] fences every former one with the same transactional id: their open
//! transaction is aborted, and none of theirs is committed later. A call of
//! [`commit`](Transport::commit) returns when the brokers have decided; while they are unavailable,
//! it waits.

use std::time::{Duration, Instant};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer as _};

use super::outbox::{Transport, TransportError};
use crate::broker::settings;

/// Maximum duration of a request to the brokers before it is repeated.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time in milliseconds after which the brokers abort an open transaction and fence its producer.
/// This is the default maximum of brokers. A primary ends if they are unavailable for longer. A
/// promotion does not wait for it.
const TRANSACTION_TIMEOUT: &str = "900000";
/// Maximum duration of a wait for the brokers before the producer checks whether to give up.
const STEP: Duration = Duration::from_millis(500);
/// Time for which the producer waits for space in its queue before it checks again.
const FULL: Duration = Duration::from_millis(10);

/// A transactional producer of one partition.
pub struct Producer {
    producer: BaseProducer,
    topic: String,
}

impl Producer {
    /// Opens the producer of a keyspace, which fences the former one. It uses partition 0 of the
    /// topic.
    ///
    /// # Errors
    /// Returns an error if the brokers do not answer in time, or a setting is wrong.
    pub fn open(
        brokers: &str,
        topic: &str,
        transactional_id: &str,
        extra: &[(String, String)],
        timeout: Duration,
    ) -> Result<Self, TransportError> {
        let until = Instant::now() + timeout;
        Self::open_until(brokers, topic, transactional_id, extra, || Instant::now() > until)
    }

    /// Works like [`open`](Self::open), but ends with an error when `gives_up` returns true.
    ///
    /// # Errors
    /// Returns an error if the brokers do not answer before that, or a setting is wrong.
    pub fn open_until(
        brokers: &str,
        topic: &str,
        transactional_id: &str,
        extra: &[(String, String)],
        gives_up: impl Fn() -> bool,
    ) -> Result<Self, TransportError> {
        let mut settings = settings(brokers, &[]);
        settings
            .set("transactional.id", transactional_id)
            .set("acks", "all")
            .set("linger.ms", "0")
            .set("compression.type", "lz4")
            .set("transaction.timeout.ms", TRANSACTION_TIMEOUT);
        // Settings of consumers, for which librdkafka would print a warning.
        for name in ["isolation.level", "enable.auto.commit", "enable.auto.offset.store"] {
            settings.remove(name);
        }
        for (name, value) in extra {
            settings.set(name, value);
        }
        let producer: BaseProducer =
            settings.create().map_err(|error| TransportError::Failed(error.to_string()))?;
        let producer = Self { producer, topic: topic.to_owned() };
        loop {
            match producer.producer.init_transactions(STEP) {
                // The next call waits for the same request.
                Err(KafkaError::Transaction(error)) if error.is_retriable() && !gives_up() => {}
                opened => {
                    opened.map_err(|error| producer.failed(&error))?;
                    return Ok(producer);
                }
            }
        }
    }

    /// Converts an error that ends the producer.
    fn failed(&self, error: &KafkaError) -> TransportError {
        let fatal = self.producer.client().fatal_error();
        let (code, reason) = match fatal {
            Some((code, reason)) => (Some(code), reason),
            None => (error.rdkafka_error_code(), error.to_string()),
        };
        match code {
            Some(
                RDKafkaErrorCode::Fenced
                | RDKafkaErrorCode::ProducerFenced
                | RDKafkaErrorCode::InvalidProducerEpoch,
            ) => TransportError::Fenced(reason),
            _ => TransportError::Failed(reason),
        }
    }

    /// Calls `step` until the brokers have decided.
    fn decided(
        &self,
        step: impl Fn(&BaseProducer) -> Result<(), KafkaError>,
    ) -> Result<(), KafkaError> {
        loop {
            match step(&self.producer) {
                Err(KafkaError::Transaction(error)) if error.is_retriable() => {}
                // A commit first waits for the deliveries, with the same time limit.
                Err(KafkaError::Flush(RDKafkaErrorCode::OperationTimedOut)) => {}
                done => return done,
            }
        }
    }

    /// Aborts the transaction after an error.
    fn abort(&self, error: &KafkaError) -> TransportError {
        match self.decided(|producer| producer.abort_transaction(PATIENCE)) {
            Ok(()) => TransportError::Retry(error.to_string()),
            Err(error) => self.failed(&error),
        }
    }
}

impl Transport for Producer {
    fn commit(&mut self, messages: &[Vec<u8>]) -> Result<(), TransportError> {
        let begun = self.producer.begin_transaction();
        begun.map_err(|error| self.failed(&error))?;
        for message in messages {
            let record: BaseRecord<'_, (), [u8]> =
                BaseRecord::to(&self.topic).partition(0).payload(message);
            let mut refused = self.producer.send(record).err();
            while let Some((error, record)) = refused {
                if error.rdkafka_error_code() != Some(RDKafkaErrorCode::QueueFull) {
                    return Err(self.abort(&error));
                }
                self.producer.poll(FULL);
                refused = self.producer.send(record).err();
            }
        }
        match self.decided(|producer| producer.commit_transaction(PATIENCE)) {
            Ok(()) => Ok(()),
            Err(KafkaError::Transaction(error)) if error.txn_requires_abort() => {
                Err(self.abort(&KafkaError::Transaction(error)))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }
}
