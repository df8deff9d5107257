//! What a connection waits for besides its socket.

use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::execution::monitor::lost_lines;
use crate::state::clients::Client;
use crate::state::session::Session;

/// Waits for the end of a client. Registers the task only once, because all its wakers are the
/// same.
pub struct ClientEnd<'a, F> {
    pub future: Pin<&'a mut F>,
    pub client: &'a Client,
    pub waits: bool,
}

impl<F: Future<Output = ()>> Future for ClientEnd<'_, F> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.waits && !self.client.is_ended() {
            return Poll::Pending;
        }
        self.waits = true;
        self.future.as_mut().poll(context)
    }
}

/// Waits for a permit for a task that may block its thread.
pub async fn place_in<'a>(places: &'a Semaphore, client: &Client) -> Result<SemaphorePermit<'a>> {
    tokio::select! {
        biased;
        place = places.acquire() => place.map_err(Error::other),
        () = client.ended() => Err(ended()),
    }
}

pub fn ended() -> Error {
    Error::new(ErrorKind::ConnectionAborted, "the connection was told to end")
}

/// Resolves at a time, or never if it is `None`.
pub async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Resolves after a duration, or never if it is `None`.
pub async fn after(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

pub fn late() -> Error {
    Error::new(ErrorKind::TimedOut, "the client has not authenticated in time")
}

/// Resolves when there is something for a client that it did not request: a line of `MONITOR`, or
/// `None` for messages.
pub async fn next_push(session: &mut Session) -> Option<Arc<str>> {
    let messages = async {
        match session.receives {
            true => session.client.inbox.arrived().await,
            false => std::future::pending().await,
        }
    };
    tokio::select! {
        () = messages => None,
        line = next_line(&mut session.monitor) => Some(line),
    }
}

/// Returns the next line of `MONITOR`, or one that reports missed lines. Never resolves for a
/// client that does not monitor.
async fn next_line(monitor: &mut Option<Receiver<Arc<str>>>) -> Arc<str> {
    let Some(monitor) = monitor else { return std::future::pending().await };
    match monitor.recv().await {
        Ok(line) => line,
        Err(RecvError::Lagged(lost)) => lost_lines(lost).into(),
        Err(RecvError::Closed) => std::future::pending().await,
    }
}
