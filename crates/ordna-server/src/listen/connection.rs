//! One connection: reads bytes, executes the complete requests, and sends their replies in batches.
//!
//! The task of a connection checks at each read, at each write that waits, and between the steps of
//! a scan, whether the connection has to end.

use std::io::{Error, ErrorKind, Result};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ordna::sync::fault;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::execution::acknowledgement;
use crate::execution::command::{Awaited, CommandOutcome, CommandTable};
use crate::execution::dispatch;
use crate::execution::key_run::{self, Limits};
use crate::execution::large_reads;
use crate::execution::long_scan::LongScan;
use crate::keyspace::lock::Delayed;
use crate::keyspace::multi_get::MultiGet;
use crate::listen::waits::{ClientEnd, after, ended, late, next_push, place_in, until};
use crate::state::ServerState;
use crate::state::blocked::{Answer, Waiting};
use crate::state::clients::Client;
use crate::state::command_spec::{CommandFlags, CommandSpec, LockMode};
use crate::state::replication::Progress;
use crate::state::session::{ReplyMode, Session};
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::{Arguments, Requests};
use crate::wire::stream::Stream;

/// Size of unsent replies, in bytes, at which they are sent before the rest of a batch.
const SEND: usize = 256 << 10;
/// Number of commands of a batch whose keys are prefetched together: the number of cache misses
/// that a core can overlap.
const AHEAD: usize = 16;
/// Number of commands that are parsed ahead if the last ones named the same key. This is enough to
/// find the next key of a pipeline with a few commands for each key.
const FEW_AHEAD: usize = 4;
/// Number of commands of a batch after which other connections are served.
const TURN: usize = 1024;
/// Duration of the commands of a batch after which other connections are served, so a pipeline of
/// long commands yields after each. It is shorter than a delay that clients notice, and long
/// compared with the cost of yielding.
const TURN_TIME: Duration = Duration::from_micros(500);
/// Time for which a scan continues after its client has closed its sending side. The client may
/// still read, as `printf 'KEYS *\r\n' | nc -N` does.
const GRACE: Duration = Duration::from_secs(1);
/// Time within which a script that was ended must return.
const LAST_STEPS: Duration = Duration::from_secs(1);

/// A connection.
struct Connection<'a> {
    state: &'a ServerState,
    table: &'static CommandTable,
    client: Arc<Client>,
    stream: Stream,
    replies: Replies,
    /// Number of unsent replies after `settled`.
    unsent: usize,
    /// Size in bytes of the replies whose writes are durable enough to be acknowledged.
    settled: usize,
    /// Whether the commands whose keys were last prefetched together named only one key.
    names_one_key: bool,
}

/// Serves a connection until it ends.
pub async fn serve(
    state: Arc<ServerState>,
    table: &'static CommandTable,
    stream: Stream,
    client: Arc<Client>,
) {
    // Removes the client even if the task panics.
    struct Present<'a>(&'a ServerState, Arc<Client>);
    impl Drop for Present<'_> {
        fn drop(&mut self) {
            self.0.channels.leave(&self.1);
            self.0.clients.leave(&self.1);
            self.0.snapshots.end_of(self.1.id);
        }
    }
    let _present = Present(&state, client.clone());
    let mut session = Session::new(client.clone(), &state.acl);
    let replies = Replies::default();
    let peer = client.peer;
    let mut connection = Connection {
        state: &state,
        table,
        client,
        stream,
        replies,
        unsent: 0,
        settled: 0,
        names_one_key: false,
    };
    let ended = connection.converse(&mut session).await;
    state.stats.end_run(&mut session.calls);
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "connection ended");
    }
}

impl<'a> Connection<'a> {
    async fn converse(&mut self, session: &mut Session) -> Result<()> {
        let mut requests = Requests::default();
        let client = Arc::clone(&self.client);
        // The task registers at the first wait, so that a read that does not wait registers
        // nothing.
        let mut ended = ClientEnd { future: pin!(client.ended()), client: &client, waits: false };
        loop {
            let for_login = self.time_for_login(session);
            let only_requests =
                for_login.is_none() && !session.receives && session.monitor.is_none();
            // Available bytes come before the end of the client, whose check reads shared memory.
            let received = if only_requests {
                // The case of most clients: fewer futures are created and polled.
                tokio::select! {
                    biased;
                    received = self.stream.read_buf(requests.receive()) => received?,
                    () = &mut ended => return Ok(()),
                }
            } else {
                tokio::select! {
                    biased;
                    received = self.stream.read_buf(requests.receive()) => received?,
                    () = &mut ended => return Ok(()),
                    () = after(for_login) => return Err(late()),
                    line = next_push(session) => {
                        if let Some(line) = line {
                            self.replies.simple(&line);
                        }
                        self.send_messages().await?;
                        continue;
                    }
                }
            };
            if received == 0 {
                return Ok(());
            }
            let now = Instant::now();
            session.now = Some(now);
            self.client.see(now);
            self.state.stats.received(received);
            self.account(&requests);
            let continues = self.execute_all(session, &mut requests).await?;
            self.settle(session).await;
            self.send_messages().await?;
            self.replies.bytes.shrink_to(SEND);
            self.account(&requests);
            if !continues {
                let closing = self.stream.shutdown();
                return in_time(self.state, &self.client, 0, closing).await;
            }
            // A client that sends without a pause is never found waiting, so it is checked here.
            if self.time_for_login(session) == Some(Duration::ZERO) {
                return Err(late());
            }
            // Otherwise a client that never pauses could delay the end of the server.
            if self.client.is_ended() {
                return Ok(());
            }
        }
    }

    /// Returns the time that is left for a login, or `None` if the client has authenticated.
    fn time_for_login(&self, session: &Session) -> Option<Duration> {
        let waited = || session.anonymous_since.elapsed();
        let anonymous = session.user.is_none();
        anonymous.then(|| self.state.config.login_time.saturating_sub(waited()))
    }

    fn account(&self, requests: &Requests) {
        self.client.input.store(requests.size(), Ordering::Relaxed);
        self.client.unread.store(requests.unread(), Ordering::Relaxed);
        self.account_replies();
    }

    /// Counts the replies that wait for the client. Its requests were counted when they were
    /// received.
    fn account_replies(&self) {
        self.account_output(self.replies.bytes.capacity());
    }

    fn account_output(&self, bytes: usize) {
        self.client.output.store(bytes, Ordering::Relaxed);
        let limit = self.state.settings.clients_memory.size();
        self.state.clients.account(&self.client, limit);
    }

    /// Executes every complete command received. Returns `false` if the connection has to be
    /// closed.
    async fn execute_all(
        &mut self,
        session: &mut Session,
        requests: &mut Requests,
    ) -> Result<bool> {
        requests.limit(self.state.settings.query_limit.size());
        let (mut executed, mut executed_before_turn) = (0, 0);
        let (mut next_fetch, mut broken) = (0, None);
        let mut turn_ends = session.now.map(|began| began + TURN_TIME);
        loop {
            if executed >= next_fetch {
                next_fetch = executed + AHEAD;
                self.fetch_ahead(session, requests);
            }
            let next = match broken.take() {
                Some(error) => Err(error),
                None => requests.next(session.user.is_some()),
            };
            let arguments = match next {
                Ok(None) => return Ok(true),
                Ok(Some(arguments)) => arguments,
                Err(error) => {
                    if error.is_too_large() {
                        self.state.clients.closed_for_input.fetch_add(1, Ordering::Relaxed);
                    }
                    self.replies.error(&error.0);
                    return Ok(false);
                }
            };
            if self.state.may_be_paused() {
                let wait = self.wait_for_pause(session, arguments);
                if self.hold_up(wait).await.is_none() {
                    return Ok(false);
                }
                session.now = None;
            }
            if self.state.reserved.are_any() {
                let wait = self.wait_for_reserved(session, arguments);
                if self.hold_up(wait).await.is_none() {
                    return Ok(false);
                }
                session.now = None;
            }
            let mut delayed = None;
            if self.state.keyspace_lock().is_held_long() {
                let Some(waited) = self.hold_up(self.wait_for_script(arguments)).await else {
                    return Ok(false);
                };
                (delayed, session.now) = (waited, None);
            }
            executed += 1;
            if turn_ends.is_none() {
                let now = *session.now.get_or_insert_with(Instant::now);
                turn_ends = Some(now + TURN_TIME);
            }
            // A message that was published before this request was sent precedes its reply.
            session.deliver(&mut self.replies);
            let mut before = self.replies.bytes.len();
            let (state, table) = (self.state, self.table);
            let mut run = None;
            if self.names_one_key {
                let limits = Limits { commands: AHEAD, replies: SEND, time: turn_ends };
                let out = &mut self.replies;
                run = key_run::execute(state, table, session, requests, out, &limits);
            }
            let arguments = requests.current();
            let mut outcome = match run {
                Some(run) => {
                    executed += run.before;
                    self.unsent += run.before;
                    broken = run.error;
                    run.outcome
                }
                None => dispatch::execute(state, table, session, arguments, &mut self.replies),
            };
            if matches!(outcome, CommandOutcome::EndsRun) {
                before = self.replies.bytes.len();
                outcome = dispatch::execute(state, table, session, arguments, &mut self.replies);
            }
            drop(delayed);
            while matches!(outcome, CommandOutcome::AwaitsTurn | CommandOutcome::Paused) {
                session.now = None;
                let waited = match outcome {
                    CommandOutcome::Paused => {
                        self.hold_up(self.wait_for_pause(session, arguments)).await
                    }
                    _ => {
                        let turn = state.keyspace_lock().turn(state.settings.busy_time());
                        self.hold_up(turn).await.map(|turn| session.turn = turn)
                    }
                };
                if waited.is_none() {
                    return Ok(false);
                }
                outcome = dispatch::execute(state, table, session, arguments, &mut self.replies);
                // A command that was refused did not need its turn.
                session.turn = None;
            }
            let silent = match session.reply_mode {
                ReplyMode::On => false,
                ReplyMode::Off => true,
                ReplyMode::SkipNext => {
                    session.reply_mode = ReplyMode::SkipThis;
                    true
                }
                ReplyMode::SkipThis => {
                    session.reply_mode = ReplyMode::On;
                    true
                }
            };
            let silent = !std::mem::take(&mut session.pushed) && silent;
            if !matches!(outcome, CommandOutcome::Done) {
                self.state.stats.end_run(&mut session.calls);
                session.now = None;
            }
            if matches!(outcome, CommandOutcome::LongScan(_) | CommandOutcome::Lookup(_)) {
                self.settle(session).await;
                before = self.replies.bytes.len();
            }
            let mut replies = usize::from(!silent);
            if let CommandOutcome::Read(read) = outcome {
                let is_write = read.spec.is_write() && !fault!("large_writes.own_places");
                let places = match is_write {
                    true => &self.state.prepared_writes,
                    false => &self.state.reads,
                };
                let _place = place_in(places, &self.client).await?;
                let (state, table, out) = (self.state, self.table, &mut self.replies);
                outcome = tokio::task::block_in_place(|| {
                    large_reads::run(*read, state, table, session, out)
                });
                session.now = None;
            }
            match outcome {
                CommandOutcome::Done
                | CommandOutcome::Read(_)
                | CommandOutcome::AwaitsTurn
                | CommandOutcome::EndsRun
                | CommandOutcome::Paused => {}
                CommandOutcome::Close => {
                    self.unsent += replies;
                    return Ok(false);
                }
                CommandOutcome::LongScan(scan) => {
                    // The writes of the removal must become durable before its reply is sent.
                    session.wrote = scan.writes() && self.state.data_directory.is_some();
                    self.run_scan(*scan, silent).await?;
                    if !session.wrote {
                        // A part of the reply may already have been sent.
                        self.settled = self.replies.bytes.len();
                        replies = 0;
                    }
                }
                CommandOutcome::Lookup(lookup) => self.look_up(*lookup, silent).await?,
                // An error means that the thread has ended, and that the memory is freed.
                CommandOutcome::Freeing(freeing) => freeing.await.unwrap_or_default(),
                CommandOutcome::Task(task) => {
                    let _place = place_in(&self.state.tasks, &self.client).await?;
                    let (state, out) = (self.state, &mut self.replies);
                    tokio::task::block_in_place(|| task.run(state, None, out));
                }
                CommandOutcome::Delayed(time) => tokio::time::sleep(time).await,
                CommandOutcome::Blocked(waiting) => {
                    self.settle(session).await;
                    self.send_messages().await?;
                    before = self.replies.bytes.len();
                    self.wait_for_elements(session, requests, *waiting).await?;
                }
                CommandOutcome::Awaits(awaited) => {
                    self.settle(session).await;
                    self.send_messages().await?;
                    before = self.replies.bytes.len();
                    self.wait_for_state(session, requests, awaited).await?;
                }
            }
            if silent {
                self.replies.bytes.truncate(before.min(self.replies.bytes.len()));
            }
            self.unsent += replies;
            if self.replies.bytes.len() > SEND {
                self.settle(session).await;
                self.send().await?;
                session.now = None;
            }
            // `now` is the end of the last command.
            let is_long = session.now.zip(turn_ends).is_some_and(|(now, ends)| now > ends);
            if executed - executed_before_turn >= TURN || is_long {
                executed_before_turn = executed;
                // Does not wait for a script here, because the reply may have to be sent before the
                // script ends.
                tokio::task::yield_now().await;
                if self.client.is_ended() {
                    // The replies to the executed commands are still sent.
                    return Ok(false);
                }
                session.now = None;
            }
            if session.now.is_none() {
                turn_ends = None;
            }
        }
    }

    /// Waits until the command of the client is answered or its time is over, and writes the reply.
    /// Later commands are received and wait, too.
    async fn wait_for_elements(
        &mut self,
        session: &mut Session,
        requests: &mut Requests,
        mut waiting: Waiting,
    ) -> Result<()> {
        /// Interval at which a client whose time is over checks whether it is being served.
        const MOMENT: Duration = Duration::from_millis(1);
        let client = Arc::clone(&self.client);
        self.account(requests);
        let mut deadline = waiting.deadline;
        let answer = loop {
            tokio::select! {
                biased;
                // A wait is never dropped without an answer.
                answer = &mut waiting.answer => break answer.map_err(Error::other)?,
                () = client.ended() => return Err(ended()),
                () = until(deadline) => match waiting.give_up() {
                    true => break Answer::nothing(waiting.resp3),
                    false => deadline = Some(Instant::now() + MOMENT),
                },
                line = next_push(session) => {
                    if let Some(line) = line {
                        self.replies.simple(&line);
                    }
                    self.send_messages().await?;
                }
                error = self.receive_ahead(requests) => return Err(error),
            }
        };
        drop(waiting);
        session.wrote |= answer.wrote && self.state.data_directory.is_some();
        session.was_served |= answer.wrote;
        if answer.reply.starts_with(b"-") {
            self.state.errors.count(&answer.reply);
            let command = session.client.last_command.load(Ordering::Relaxed);
            self.state.stats.continued(command, Duration::ZERO, true);
        }
        self.replies.bytes.extend_from_slice(&answer.reply);
        self.account(requests);
        Ok(())
    }

    /// Waits until a state of the replication is there, or the time is over, and writes the reply.
    /// Later commands are received and wait, too.
    async fn wait_for_state(
        &mut self,
        session: &mut Session,
        requests: &mut Requests,
        awaited: Awaited,
    ) -> Result<()> {
        /// Longest interval at which the state is checked. Intervals begin at a millisecond, and
        /// double.
        const LONGEST: Duration = Duration::from_millis(128);
        let client = Arc::clone(&self.client);
        self.account(requests);
        let (mut interval, mut next) = (Duration::from_millis(1), None);
        while awaited.progress(self.state) == Progress::Pending
            && !self.state.stopping.load(Ordering::Relaxed)
        {
            let now = Instant::now();
            if awaited.deadline.is_some_and(|deadline| deadline <= now) {
                break;
            }
            let check = *next.get_or_insert(now + interval);
            let until_check = until(Some(awaited.deadline.map_or(check, |it| it.min(check))));
            tokio::select! {
                biased;
                () = client.ended() => return Err(ended()),
                () = until_check => {
                    interval = (2 * interval).min(LONGEST);
                    next = None;
                }
                line = next_push(session) => {
                    if let Some(line) = line {
                        self.replies.simple(&line);
                    }
                    self.send_messages().await?;
                }
                error = self.receive_ahead(requests) => return Err(error),
            }
        }
        awaited.finish(self.state, &mut self.replies);
        self.account(requests);
        Ok(())
    }

    /// Receives what a client sends while its command waits. Returns when the client has
    /// disconnected.
    async fn receive_ahead(&mut self, requests: &mut Requests) -> Error {
        /// Size in bytes of waiting requests above which no more are received until the command is
        /// answered.
        const MOST: usize = 1 << 20;
        /// Interval at which such a client is checked.
        const LOOK: Duration = Duration::from_secs(1);
        while requests.unread() < MOST {
            match self.stream.read_buf(requests.receive()).await {
                Ok(0) => return Error::new(ErrorKind::BrokenPipe, "the waiting client is gone"),
                Ok(received) => self.state.stats.received(received),
                Err(error) => return error,
            }
            self.account(requests);
        }
        while !self.stream.is_closed_by_client() {
            tokio::time::sleep(LOOK).await;
        }
        Error::new(ErrorKind::BrokenPipe, "the waiting client is gone")
    }

    /// Prefetches the memory of the keys of several commands, unless a script has locked the
    /// keyspace, for which no thread may wait.
    fn fetch_ahead(&mut self, session: &Session, requests: &Requests) {
        if self.state.keyspace_lock().is_held_long() {
            return;
        }
        let mut keys = [&[][..]; AHEAD];
        let differ = |keys: &[&[u8]]| keys.windows(2).any(|pair| pair[0] != pair[1]);
        if self.names_one_key {
            let found = requests.ahead(session.user.is_some(), &mut keys[..FEW_AHEAD]);
            self.names_one_key = !differ(&keys[..found]);
        }
        if self.names_one_key {
            // Commands on the same key find it in the cache after the first of them.
            return;
        }
        let found = requests.ahead(session.user.is_some(), &mut keys);
        if found < 2 {
            return;
        }
        self.names_one_key = !differ(&keys[..found]);
        // A worker thread of the runtime must not wait for a script.
        if !self.names_one_key
            && let Some(present) = self.state.keyspace_lock().try_shared()
        {
            present.get_many_with(&keys[..found], |_, _| ());
        }
    }

    /// Waits until the writes that the replies acknowledge are durable. If the log has failed, each
    /// unsent reply becomes an error.
    async fn settle(&mut self, session: &mut Session) {
        self.state.stats.end_run(&mut session.calls);
        let unsent = std::mem::take(&mut self.unsent);
        let was_served = std::mem::take(&mut session.was_served);
        if std::mem::take(&mut session.wrote)
            && let Err(error) = acknowledgement::wait_until_durable(self.state, was_served).await
        {
            let error = CommandError::from(error);
            self.replies.bytes.truncate(self.settled);
            (0..unsent).for_each(|_| self.replies.error(&error));
        }
        self.settled = self.replies.bytes.len();
    }

    /// Waits before a command begins. Returns `None` if the client was closed, so that the command
    /// must not begin.
    async fn hold_up<T>(&self, wait: impl Future<Output = T>) -> Option<T> {
        self.client.is_held_up.store(true, Ordering::Relaxed);
        let waited = tokio::select! {
            biased;
            () = self.client.ended() => None,
            waited = wait => Some(waited),
        };
        self.client.see(Instant::now());
        self.client.is_held_up.store(false, Ordering::Relaxed);
        waited
    }

    /// Waits while clients are paused, unless the command can end a pause.
    async fn wait_for_pause(&self, session: &Session, arguments: Arguments<'_>) {
        let spec = self.table.catalog.find(arguments.get(0)).map(|spec| spec.of_call(arguments));
        match spec {
            Some(spec) if spec.has(CommandFlags::IGNORES_PAUSE) => {}
            Some(spec) => self.state.paused(dispatch::may_write(self.table, session, spec)).await,
            None => self.state.paused(true).await,
        }
    }

    /// Waits while a key that the command would write is reserved.
    async fn wait_for_reserved(&self, session: &Session, arguments: Arguments<'_>) {
        let find = |call: Arguments<'_>| {
            self.table.catalog.find(call.get(0)).map(|spec| spec.of_call(call))
        };
        let executes = find(arguments).is_some_and(|spec| spec.has(CommandFlags::EXECUTES_QUEUE));
        let mut keys = Vec::new();
        let mut add = |call: Arguments<'_>| {
            let writes = |spec: &&CommandSpec| spec.is_write() || spec.has(CommandFlags::SCRIPT);
            let spec = find(call).filter(writes);
            let named = spec.into_iter().flat_map(|spec| spec.key_positions(call));
            keys.extend(named.map(|at| call.get(at).to_vec()));
        };
        match &session.transaction {
            None => add(arguments),
            Some(transaction) if executes => {
                transaction.queued.iter().for_each(|request| add(request.arguments()));
            }
            Some(_) => return,
        }
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        self.state.reserved.wait(&keys).await;
    }

    /// Waits while a script runs, until the command can be answered with an error. Commands that
    /// access no key do not wait, nor does a command that ends the script.
    async fn wait_for_script(&self, arguments: Arguments<'_>) -> Option<Delayed<'a>> {
        let state = self.state;
        let spec = self.table.catalog.find(arguments.get(0)).map(|spec| spec.of_call(arguments));
        let waits = |spec: &CommandSpec| {
            spec.has(CommandFlags::WAITS_FOR_SCRIPT)
                || spec.lock != LockMode::None && !spec.has(CommandFlags::KILLS_SCRIPT)
        };
        if !spec.is_some_and(waits) {
            return None;
        }
        let mut patience = state.settings.busy_time();
        if state.scripts.is_ending() {
            // A client that has just ended the script must not get the error that it still runs.
            let held = state.keyspace_lock().held_long_for().unwrap_or_default();
            patience = patience.max(held + LAST_STEPS);
        }
        Some(state.keyspace_lock().not_held_long(patience).await)
    }

    /// Lets other connections run. The result is held until this connection has continued.
    async fn turn(&self) -> Result<Option<Delayed<'a>>> {
        let state = self.state;
        tokio::task::yield_now().await;
        let mut delayed = None;
        if state.keyspace_lock().is_held_long() {
            delayed = Some(state.keyspace_lock().not_held_long(Duration::MAX).await);
        }
        if self.client.is_ended() { Err(ended()) } else { Ok(delayed) }
    }

    async fn run_scan(&mut self, mut scan: LongScan, silent: bool) -> Result<()> {
        let (mut noted, mut delayed) = (None, None);
        let mut closed: Option<Instant> = None;
        loop {
            let before = self.replies.bytes.len();
            let stepped = scan.step(self.state, None, &mut self.replies);
            drop(delayed);
            let over = match stepped {
                Ok(over) => over,
                Err(error) => {
                    tracing::error!(%error, "a scan is given up, and its connection closed");
                    return Err(Error::other(error));
                }
            };
            if silent {
                self.replies.bytes.truncate(before);
            }
            if over {
                return Ok(());
            }
            noted.get_or_insert_with(|| self.state.scans.note());
            if self.replies.bytes.len() > SEND {
                self.send().await?;
            }
            if scan.writes() && self.state.may_be_paused() {
                self.hold_up(self.state.paused(true)).await.ok_or_else(ended)?;
            }
            delayed = self.turn().await?;
            if closed.is_none() && self.stream.is_closed_by_client() {
                closed = Some(Instant::now());
            }
            if closed.is_some_and(|closed| closed.elapsed() > GRACE) {
                return Err(Error::new(ErrorKind::BrokenPipe, "the client of a scan is gone"));
            }
        }
    }

    async fn look_up(&mut self, mut lookup: MultiGet, silent: bool) -> Result<()> {
        let before = self.replies.bytes.len();
        let most = self.state.settings.reply_limit();
        loop {
            match lookup.step(most, &mut self.replies) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    self.replies.bytes.truncate(before);
                    self.replies.error(&error);
                    return Ok(());
                }
            }
            if silent {
                self.replies.bytes.truncate(before);
            }
            self.account_replies();
            drop(self.turn().await?);
        }
    }

    /// Sends all replies and the waiting messages. Long messages are not copied, because all
    /// subscribers share their bytes.
    async fn send_messages(&mut self) -> Result<()> {
        /// Size of a message in bytes from which on an additional system call costs less than a
        /// copy.
        const LONG: usize = 16 << 10;
        while let Some(message) = self.client.inbox.pop() {
            if message.bytes.len() < LONG {
                self.replies.push_encoded(&message.bytes);
            } else {
                let (begin, rest) = message.bytes.split_at(1);
                self.replies.push_encoded(begin);
                self.send().await?;
                self.write(rest, 0).await?;
            }
            if self.replies.bytes.len() > LONG {
                self.send().await?;
            }
        }
        self.send().await
    }

    /// Sends all replies. A client that does not read them in time is disconnected.
    async fn send(&mut self) -> Result<()> {
        if self.replies.bytes.is_empty() {
            return Ok(());
        }
        // Taken, so that they can be borrowed separately from the stream.
        let replies = std::mem::take(&mut self.replies.bytes);
        let sent = self.write(&replies, replies.capacity()).await;
        self.replies.bytes = replies;
        self.replies.bytes.clear();
        self.settled = 0;
        sent
    }

    /// Writes bytes. `held` is the memory in bytes that belongs to this client alone. A client that
    /// does not read in time is disconnected.
    async fn write(&mut self, bytes: &[u8], held: usize) -> Result<()> {
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = &bytes[sent..];
            let written = match self.stream.try_write(rest) {
                Some(written) => written?,
                None => {
                    self.account_output(held);
                    let writing = self.stream.write(rest);
                    in_time(self.state, &self.client, rest.len(), writing).await?
                }
            };
            if written == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
            sent += written;
        }
        self.state.stats.sent(sent);
        // Data that TLS has accepted, at most 64 KiB, may still wait for the socket.
        if matches!(self.stream, Stream::Tls(_)) {
            in_time(self.state, &self.client, sent, self.stream.flush()).await?;
        }
        Ok(())
    }
}

/// Writes to a client, unless it accepts nothing for too long or is told to end. `waiting` is the
/// number of bytes that it has to read.
async fn in_time<T>(
    state: &ServerState,
    client: &Client,
    waiting: usize,
    write: impl Future<Output = Result<T>>,
) -> Result<T> {
    let stall = state.config.stall;
    tokio::select! {
        biased;
        written = write => written,
        () = client.ended() => Err(ended()),
        () = tokio::time::sleep(stall) => {
            state.clients.closed_for_output.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(
                peer = %client.peer, waiting, seconds = stall.as_secs(),
                "closed: the client reads no reply"
            );
            Err(ErrorKind::TimedOut.into())
        }
    }
}
