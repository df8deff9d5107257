//! The state of one connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ordna::sync::{fault, point};
use tokio::sync::broadcast;

use crate::keyspace::lock::Turn;
use crate::keyspace::watches::Watch;
use crate::state::acl::Acl;
use crate::state::acl::user::User;
use crate::state::clients::Client;
use crate::state::scripts::Script;
use crate::statistics::command_stats::CallRun;
use crate::wire::reply::Replies;
use crate::wire::request::OwnedRequest;

/// Commands queued since `MULTI`.
#[derive(Default)]
pub struct Transaction {
    pub queued: Vec<OwnedRequest>,
    /// Bytes of the queued commands.
    pub bytes: usize,
    /// Estimated size in bytes of its writes, and the number of those that copy a value.
    pub needed: usize,
    pub copies: usize,
    /// Whether one of the commands may hold the keyspace for a long time.
    pub runs_long: bool,
    /// Whether a command was refused, so that `EXEC` will refuse the transaction.
    pub broken: bool,
}

/// A watched key, with its state when the watch began.
pub struct Watched {
    pub watch: Watch,
    pub was_present: bool,
}

/// The mode that `CLIENT REPLY` set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplyMode {
    #[default]
    On,
    Off,
    /// The next command has no reply.
    SkipNext,
    /// This command has no reply.
    SkipThis,
}

/// The state of one connection.
pub struct Session {
    pub client: Arc<Client>,
    /// The user, or `None` if the client has not authenticated.
    pub user: Option<Arc<User>>,
    /// The time since when the client has been without authentication.
    pub anonymous_since: Instant,
    /// Version of the ACL from which `user` was read.
    pub acl_version: u64,
    pub transaction: Option<Transaction>,
    pub watched: HashMap<Arc<[u8]>, Watched>,
    /// Memory of the watched keys, in bytes.
    pub watched_bytes: usize,
    pub reply_mode: ReplyMode,
    /// Receives the lines of `MONITOR`.
    pub monitor: Option<broadcast::Receiver<Arc<str>>>,
    /// Whether the client has ever subscribed, so that messages may wait for it.
    pub receives: bool,
    /// Whether the last command has written messages, which `CLIENT REPLY OFF` does not suppress.
    pub pushed: bool,
    /// Number of wrong passwords. A right one in between does not reset it.
    pub guesses: u32,
    /// Whether `EXEC` is executing queued commands.
    pub executing: bool,
    /// Whether the reply of the last script is an error that the statistics have already counted.
    pub error_is_counted: bool,
    /// Whether a command since the last replies may have written.
    pub wrote: bool,
    /// Whether one of these writes was made by another client's command, which served this client.
    pub was_served: bool,
    /// The current time, if it has just been read.
    pub now: Option<Instant>,
    /// The number of the last command.
    pub last_command: usize,
    /// Calls of the last command that are not counted yet.
    pub calls: CallRun,
    /// The turn of the command in execution, if it had to wait for one.
    pub turn: Option<Turn>,
    /// The script of the command in execution, if it was compiled before the keyspace was locked.
    pub script: Option<Result<Arc<Script>, String>>,
}

impl Session {
    /// Creates the session of a new connection, as the user that needs no password.
    pub fn new(client: Arc<Client>, acl: &Acl) -> Self {
        // Read before the user: if the ACL changes in between, the user is read again before the
        // next command.
        let early = (!fault!("concurrent.connect.version_first")).then(|| acl.version());
        let user = acl.welcome();
        point("acl.connect.user_read");
        let acl_version = early.unwrap_or_else(|| acl.version());
        let mut session = Self {
            anonymous_since: client.since,
            client,
            user: None,
            acl_version,
            transaction: None,
            watched: HashMap::new(),
            watched_bytes: 0,
            reply_mode: ReplyMode::On,
            monitor: None,
            receives: false,
            pushed: false,
            guesses: 0,
            executing: false,
            error_is_counted: false,
            wrote: false,
            was_served: false,
            now: None,
            last_command: 0,
            calls: CallRun::default(),
            turn: None,
            script: None,
        };
        session.become_user(user);
        session
    }

    pub fn become_user(&mut self, user: Option<Arc<User>>) {
        let name = user.as_ref().map_or("default", |user| user.name.as_str());
        name.clone_into(&mut self.client.info().user);
        if self.user.is_some() && user.is_none() {
            self.anonymous_since = Instant::now();
        }
        self.user = user;
    }

    /// Reads the user again. Returns `false` if it was deleted.
    pub fn refresh_user(&mut self, acl: &Acl) -> bool {
        // Read before the user, as in `new`.
        self.acl_version = acl.version();
        let Some(user) = &self.user else { return true };
        let Some(user) = acl.user(&user.name) else { return false };
        self.user = Some(user);
        true
    }

    /// Writes the messages that wait for the client.
    #[inline]
    pub fn deliver(&mut self, out: &mut Replies) {
        if self.receives {
            while let Some(message) = self.client.inbox.pop() {
                out.push_encoded(&message.bytes);
            }
        }
    }

    /// Returns whether the client may only change its subscriptions, because it has some and speaks
    /// RESP2.
    pub fn only_subscribes(&self, out: &Replies) -> bool {
        self.receives && !out.resp3 && self.client.inbox.is_subscribed()
    }

    /// Ends all watches.
    pub fn unwatch(&mut self) {
        self.watched.clear();
        self.watched_bytes = 0;
    }

    /// Ends the transaction and its watches.
    pub fn end_transaction(&mut self) -> Option<Transaction> {
        self.unwatch();
        let transaction = self.transaction.take();
        self.publish_transaction();
        transaction
    }

    /// Publishes the size of the transaction to `CLIENT LIST` and the memory limit.
    pub fn publish_transaction(&self) {
        let queued = self.transaction.as_ref();
        let bytes = queued.map_or(0, |transaction| transaction.bytes) + self.watched_bytes;
        self.client.queued.store(bytes, Ordering::Relaxed);
        let mut info = self.client.info();
        info.queued = queued.map_or(-1, |transaction| transaction.queued.len() as i64);
        info.watched = self.watched.len();
    }
}
