//! One connection: reads, executes what is complete, answers, in that order and in batches.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::clients::Client;
use crate::commands::{self, Outcome, Transaction, Watched};
use crate::reply::Replies;
use crate::request::Requests;
use crate::state::State;
use crate::walk::Walk;

/// Replies are sent before they grow beyond this, if more of a batch is to come.
const SEND: usize = 256 << 10;
/// Commands of one batch after which other connections get their turn.
const TURN: usize = 1024;

/// What a connection knows of itself.
pub struct Session {
    pub client: Arc<Client>,
    pub authenticated: bool,
    /// What was said since MULTI.
    pub transaction: Option<Transaction>,
    pub watched: Vec<Watched>,
}

/// Serves a connection until it ends.
pub async fn serve(
    state: Arc<State>,
    mut stream: TcpStream,
    peer: SocketAddr,
    stop: watch::Receiver<bool>,
) {
    let id = state.next_client_id();
    let Some(client) = state.clients.enter(id, peer, state.config.max_clients) else {
        state.refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // The client may be gone already; there is nobody else to tell.
        let _ = stream.write_all(b"-ERR max number of clients reached\r\n").await;
        return;
    };
    // Leaves even if the task panics.
    struct Present<'a>(&'a State, u64);
    impl Drop for Present<'_> {
        fn drop(&mut self) {
            self.0.clients.leave(self.1);
        }
    }
    let _present = Present(&state, id);
    let authenticated = state.password().is_none();
    let mut session = Session { client, authenticated, transaction: None, watched: Vec::new() };
    if let Err(error) = converse(&state, &mut session, &mut stream, stop).await {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

async fn converse(
    state: &State,
    session: &mut Session,
    stream: &mut TcpStream,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut requests = Requests::default();
    let mut replies = Replies::default();
    loop {
        // Bytes that are there come before the stop, which costs a look at what all connections share.
        let received = tokio::select! {
            biased;
            received = stream.read_buf(requests.receive()) => received?,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        };
        if received == 0 {
            return Ok(());
        }
        let go_on = execute_all(state, session, stream, &mut requests, &mut replies).await?;
        if !replies.bytes.is_empty() {
            stream.write_all(&replies.bytes).await?;
            replies.bytes.clear();
            replies.bytes.shrink_to(SEND);
        }
        if !go_on {
            return stream.shutdown().await;
        }
        // So that a client that never pauses cannot hold up the stop.
        if stop.has_changed().unwrap_or(true) {
            return Ok(());
        }
    }
}

/// Executes every complete command received; `false` if the connection is to be closed.
async fn execute_all(
    state: &State,
    session: &mut Session,
    stream: &mut TcpStream,
    requests: &mut Requests,
    replies: &mut Replies,
) -> std::io::Result<bool> {
    let mut executed = 0;
    let go_on = loop {
        let outcome = match requests.next(session.authenticated) {
            Ok(None) => break true,
            Ok(Some(arguments)) => commands::execute(state, session, arguments, replies),
            Err(error) => {
                replies.error(&error.0);
                break false;
            }
        };
        executed += 1;
        match outcome {
            Outcome::Done => {}
            Outcome::Close => break false,
            Outcome::Walk(walk) => run(state, *walk, replies).await,
            // If nobody tells, it is freed too.
            Outcome::Freeing(freeing) => freeing.await.unwrap_or_default(),
        }
        if replies.bytes.len() > SEND {
            stream.write_all(&replies.bytes).await?;
            replies.bytes.clear();
        }
        if executed % TURN == 0 {
            tokio::task::yield_now().await;
        }
    };
    state.commands.add(executed as i64);
    Ok(go_on)
}

async fn run(state: &State, mut walk: Walk, replies: &mut Replies) {
    let mut noted = None;
    loop {
        let stepped = walk.step(&state.keys(), state.config.max_reply);
        match stepped {
            Ok(true) => return walk.reply(replies),
            Ok(false) => {
                noted.get_or_insert_with(|| state.walks.note());
                tokio::task::yield_now().await;
            }
            Err(error) => return replies.error(&error),
        }
    }
}
