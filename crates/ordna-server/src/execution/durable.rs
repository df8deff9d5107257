//! Durability of the server: the opening of its directory, backups, and when replies may be sent.
//!
//! # Contract
//! A reply of a write is sent once its record is as durable as `--log` says: under `always` on the
//! device, otherwise with the system, so that a crash of the process loses nothing acknowledged.
//! All writes of one command that has locked the keyspace exclusively (`EXEC`, `MSET`, `DEL` of several keys,
//! …) are one group of the log: after a crash they are there whole or not at all.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ordna::durability::{BackupError, BackupOptions, Durability, OpenOptions, Summary, SyncPolicy};

use crate::execution::command::{CommandOutcome, Context};
use crate::indexes::Indexes;
use crate::indexes::resume_file::Token;
use crate::keyspace::{Entries, Keyspace};
use crate::state::State;
use crate::state::command_spec::{CommandFlags, Spec};
use crate::state::persistence::Persistence;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

/// Between two lines about the progress of loading.
const TELL: Duration = Duration::from_secs(2);
/// Threads of a backup in the background: they give way to those that serve.
const WORKERS: usize = 1;

/// Whether a call may write. `EXEC` may if one of the commands that it executes may.
fn writes(context: &Context<'_>, spec: &Spec, arguments: Arguments<'_>) -> bool {
    if spec.has(CommandFlags::EXECUTES_QUEUE) {
        let catalog = &context.table.catalog;
        return context.session.transaction.as_ref().is_some_and(|transaction| {
            transaction.queued.iter().map(|request| request.arguments()).any(|arguments| {
                let number = catalog.number_of(arguments.get(0));
                number.is_some_and(|number| {
                    writes(context, catalog.all()[number].of_call(arguments), arguments)
                })
            })
        });
    }
    let only_reads = spec.has(CommandFlags::READS_WITHOUT_OPTIONS) && arguments.len() <= 2;
    spec.is_write() && !only_reads
}

/// Executes a command of a server with a directory.
pub fn call(
    context: &mut Context<'_>,
    number: usize,
    is_exclusive: bool,
    arguments: Arguments<'_>,
    out: &mut Replies,
) -> CommandOutcome {
    let spec = context.table.catalog.all()[number].of_call(arguments);
    if !writes(context, spec, arguments) {
        return context.call(number, arguments, out);
    }
    context.session.wrote = true;
    if let Err(error) = context.keys.check_log() {
        if spec.has(CommandFlags::EXECUTES_QUEUE) {
            context.session.end_transaction();
        }
        out.error(CommandError::from(error));
        return CommandOutcome::Done;
    }
    if !is_exclusive {
        return context.call(number, arguments, out);
    }
    // A handle of its own: FLUSHALL replaces the one in the context.
    let keys = Keyspace::clone(&context.keys);
    let before = out.bytes.len();
    keys.log_group(|| context.call(number, arguments, out)).unwrap_or_else(|error| {
        out.bytes.truncate(before);
        out.error(CommandError::from(error));
        CommandOutcome::Done
    })
}

/// Waits until everything written so far is as durable as it must be for its replies.
///
/// # Errors
/// The log has failed.
pub async fn settle(state: &State) -> Result<(), ordna::Error> {
    let Some(persistence) = &state.persistence else { return Ok(()) };
    let keys = Keyspace::clone(&state.keys());
    let (position, always) = (keys.log_position(), persistence.data.log == SyncPolicy::Always);
    if !always {
        // Connections that are ready run and append first: one write of the log serves them all.
        tokio::task::yield_now().await;
    }
    poll_fn(|context| match always {
        true => keys.poll_durable(position, context),
        false => keys.poll_flushed(position, context),
    })
    .await
}

/// Opens the directory and installs its content. Blocks: the caller's thread must serve no client.
///
/// # Errors
/// [`BackupError`]; the server then holds nothing.
pub fn load(state: &State, persistence: &Persistence) -> Result<(), BackupError> {
    let data = &persistence.data;
    let options = OpenOptions::new()
        .store(state.options())
        .sync(data.log)
        .repair(data.repair)
        .progress(&persistence.progress)
        .acknowledge_later();
    // A repair may drop from the log what the indexes' backup has.
    let replay = if data.repair { None } else { state.indexes.replay() };
    let options = match replay.clone() {
        Some(replay) => options.on_logged_key(move |key| replay.add(key)),
        None => options,
    };
    tracing::info!(dir = %data.dir.display(), "loading");
    let store = thread::scope(|scope| {
        let opening = scope.spawn(|| Entries::open(&data.dir, options));
        let mut quiet = Duration::ZERO;
        while !opening.is_finished() {
            const LOOK: Duration = Duration::from_millis(5);
            thread::sleep(LOOK);
            quiet += LOOK;
            if quiet >= TELL {
                quiet = Duration::ZERO;
                let progress = &persistence.progress;
                let (done, all) = (progress.entries(), progress.expected_entries());
                tracing::info!(entries = done, expected = all, "loading");
            }
        }
        opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let mut resume = None;
    if let Some(Durability { recovery, .. }) = store.durability() {
        resume = replay.and_then(|replay| replay.finish(&recovery.metadata));
        for cut in &recovery.log.cuts {
            let (file, offset) = (cut.path.display(), cut.offset);
            let (dropped, what) = (cut.dropped, &cut.what);
            if cut.was_durable {
                tracing::error!(%file, offset, dropped, "durable records were dropped: {what}");
            } else {
                tracing::warn!(%file, offset, dropped, "the log was torn and is cut: {what}");
            }
        }
        tracing::info!(
            entries = recovery.entries,
            log_records = recovery.log.records,
            seconds = recovery.took.as_secs_f64(),
            "loaded"
        );
    }
    state.install(Keyspace::of(store));
    if let Err(error) = state.indexes.restore(resume) {
        tracing::error!(%error, "the indexes are not restored");
    }
    persistence.loaded();
    Ok(())
}

/// Backs up now, on this thread; the indexes on one of their own, as they wait for commands.
///
/// # Errors
/// A text for the client.
pub fn save(
    keys: &Keyspace,
    persistence: &Persistence,
    indexes: &Arc<Indexes>,
) -> Result<Summary, CommandError> {
    if persistence.saving.swap(true, Ordering::AcqRel) {
        return Err("ERR Background save already in progress".into());
    }
    let (token, done) = back_up(keys, persistence, false);
    persistence.saving.store(false, Ordering::Release);
    if let (Some(token), Ok(_)) = (token, &done) {
        let (keys, indexes) = (keys.clone(), Arc::clone(indexes));
        let work = move || back_up_indexes(&indexes, &keys, &token);
        // Without a thread the next start builds the indexes again.
        let _ = thread::Builder::new().name("ordna indexes".to_owned()).spawn(work);
    }
    done
}

/// Backs up the indexes behind a backup of the keyspace.
fn back_up_indexes(indexes: &Indexes, keys: &Keyspace, token: &Token) {
    if let Err(error) = indexes.back_up(keys, token) {
        tracing::warn!(error, "the indexes are not backed up; a restart builds them again");
    }
}

/// Backs up the keyspace; returns what a backup of the indexes has to name.
fn back_up(
    keys: &Keyspace,
    persistence: &Persistence,
    background: bool,
) -> (Option<Token>, Result<Summary, CommandError>) {
    let mut token = [0; 16];
    let token = getrandom::fill(&mut token).is_ok().then_some(token);
    let data = &persistence.data;
    let options = BackupOptions::new().background(background);
    let options = options.keep(data.keep).compression(data.compression);
    let options = match token {
        Some(token) => options.metadata(move || token.to_vec()),
        None => options,
    };
    let options = if background { options.workers(WORKERS) } else { options };
    let done = keys.backup(&options);
    match &done {
        Ok(summary) => {
            persistence.saves.fetch_add(1, Ordering::Relaxed);
            tracing::info!(
                path = %summary.path.display(), entries = summary.entries, bytes = summary.bytes,
                seconds = summary.took.as_secs_f64(), "backed up"
            );
        }
        Err(error) => tracing::error!(%error, "the backup failed; the previous one is untouched"),
    }
    (token, done.map_err(|error| format!("ERR {error}").into()))
}

/// Begins a backup on a thread of its own.
///
/// # Errors
/// A text for the client.
pub fn save_in_background(
    keys: Keyspace,
    persistence: &Arc<Persistence>,
    indexes: &Arc<Indexes>,
) -> Result<(), CommandError> {
    if persistence.saving.swap(true, Ordering::AcqRel) {
        return Err("ERR Background save already in progress".into());
    }
    let (shared, indexes) = (Arc::clone(persistence), Arc::clone(indexes));
    let work = move || {
        // The result is kept in the store's state, and logged.
        if let (Some(token), Ok(_)) = back_up(&keys, &shared, true) {
            back_up_indexes(&indexes, &keys, &token);
        }
        shared.saving.store(false, Ordering::Release);
    };
    let started = thread::Builder::new().name("ordna bgsave".to_owned()).spawn(work);
    started.map(drop).map_err(|error| {
        persistence.saving.store(false, Ordering::Release);
        format!("ERR no thread for the backup: {error}").into()
    })
}

/// Answer of `SAVE` and its kin without a directory.
pub const NO_DIRECTORY: &str =
    "ERR this server keeps its keys in memory only; start it with --dir to save them";

/// Between two looks at the log's size and the time.
const WATCH: Duration = Duration::from_secs(1);
/// From a backup that failed to the next one for the same reason.
const RETRY: Duration = Duration::from_secs(60);

/// Backs up from time to time, if anything was written, and when the log has grown long. Tells of a
/// log that fails, and that works again.
pub async fn back_up_regularly(state: Arc<State>) {
    let Some(persistence) = &state.persistence else { return };
    let (every, most) = (persistence.data.backup_every, persistence.data.backup_log);
    let (mut last, mut failed) = (Instant::now(), false);
    let look = every.map_or(WATCH, |every| every.min(WATCH));
    loop {
        tokio::time::sleep(look).await;
        let keys = Keyspace::clone(&state.keys());
        let Some(told) = keys.durability() else { continue };
        match (&told.failure, failed) {
            (Some(reason), false) => tracing::error!(%reason, "the log failed; writes are refused"),
            (None, true) => tracing::info!("the log works again; writes are accepted"),
            _ => {}
        }
        failed = told.failure.is_some();
        let since = last.elapsed();
        let is_time = every.is_some_and(|every| since >= every) && told.since_backup > 0;
        let is_long = most > 0 && told.since_backup >= most as u64;
        let may_retry = told.last_error.is_none() || since >= RETRY;
        if is_time || is_long && may_retry && told.running.is_none() {
            last = Instant::now();
            if let Err(error) = save_in_background(keys, persistence, &state.indexes) {
                tracing::warn!(%error, "no backup this time");
            }
        }
    }
}
