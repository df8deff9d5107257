//! Loading the data directory at the start, and backups of the keyspace and its indexes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use ordna::Store;
use ordna::durability::{BackupError, BackupOptions, Durability, OpenOptions, Summary};

use crate::indexes::Indexes;
use crate::indexes::resume_file::Token;
use crate::keyspace::Keyspace;
use crate::state::ServerState;
use crate::state::data_directory::DataDirectory;
use crate::wire::error::CommandError;

/// Interval between log lines about the progress of loading.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);
/// Delay before the backup of a flushed keyspace is retried with the keyspace that replaced it. A
/// flush takes a few milliseconds.
const REPLACED_DELAY: Duration = Duration::from_millis(5);
/// Number of such attempts. Each fails only if a client flushes again at that moment.
const REPLACED_ATTEMPTS: u32 = 200;
/// Number of threads of a background backup. One, so that commands keep the other cores.
const BACKGROUND_WORKERS: usize = 1;

/// Opens the data directory and installs its contents. Commands wait until the caller ends the
/// [loading](DataDirectory::loaded). Blocks, so a thread that serves clients must not call this.
///
/// # Errors
/// [`BackupError`]; the keyspace stays empty.
pub fn load(state: &ServerState, persistence: &DataDirectory) -> Result<(), BackupError> {
    let data = &persistence.data;
    let options = OpenOptions::new()
        .store(state.options())
        .sync(persistence.sync_policy())
        .repair(data.repair)
        .reserve(data.reserve)
        .storage(Arc::clone(&data.storage))
        .progress(&persistence.progress)
        // The server has its own schedule, and backs up its indexes, too.
        .checkpoint_after(u64::MAX)
        .acknowledge_later();
    // A repair may drop records from the log that the backup of the indexes contains.
    let replay = if data.repair { None } else { state.indexes.replay() };
    let options = match replay.clone() {
        Some(replay) => options.on_logged_keys(move |keys| replay.add(keys)),
        None => options,
    };
    tracing::info!(dir = %data.dir.display(), "loading");
    warn_of_redis_files(&data.dir);
    let store = thread::scope(|scope| {
        let opening = scope.spawn(|| Store::<[u8], [u8]>::open(&data.dir, options));
        let mut quiet = Duration::ZERO;
        while !opening.is_finished() {
            const LOOK: Duration = Duration::from_millis(5);
            thread::sleep(LOOK);
            quiet += LOOK;
            if quiet >= PROGRESS_INTERVAL {
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
    let keyspace = Keyspace::of_opened(store).map_err(|error| error.in_directory(&data.dir))?;
    state.install(keyspace);
    // `CONFIG SET appendfsync` may have changed the policy during the load.
    if let Err(error) = state.keys().store().set_sync_policy(persistence.sync_policy()) {
        tracing::error!(%error, "the log cannot be synced");
    }
    if let Err(error) = state.indexes.restore(resume) {
        tracing::error!(%error, "the indexes are not restored");
    }
    Ok(())
}

/// Logs a warning for each file of Redis in the data directory: a user may expect its keys.
fn warn_of_redis_files(dir: &Path) {
    const MOVING: &str = "docs/how-to/from-redis.md says how to copy the keys of a running Redis";
    for name in ["dump.rdb", "appendonlydir", "appendonly.aof"] {
        if dir.join(name).exists() {
            tracing::warn!("{name} is of Redis and is ignored; {MOVING}");
        }
    }
}

/// A backup in progress. It ends even if its thread panics.
struct Saving<'a>(&'a DataDirectory);

impl Drop for Saving<'_> {
    fn drop(&mut self) {
        self.0.saving.store(false, Ordering::Release);
    }
}

/// Backs up the keyspace on this thread, and then the indexes on a separate thread, because a
/// backup of the indexes waits for commands in progress.
///
/// # Errors
/// Another backup is in progress, or this one failed.
pub fn save(
    keys: &Keyspace,
    persistence: &DataDirectory,
    indexes: &Arc<Indexes>,
) -> Result<Summary, CommandError> {
    if persistence.saving.swap(true, Ordering::AcqRel) {
        return Err("ERR Background save already in progress".into());
    }
    let saving = Saving(persistence);
    let (token, done) = back_up(keys, persistence, false);
    let done = done.map_err(command_error);
    drop(saving);
    if let (Some(token), Ok(_)) = (token, &done) {
        let (keys, indexes) = (keys.clone(), Arc::clone(indexes));
        let work = move || back_up_indexes(&indexes, &keys, &token);
        // Without a thread, the next start rebuilds the indexes.
        let _ = thread::Builder::new().name("ordna indexes".to_owned()).spawn(work);
    }
    done
}

/// Backs up the indexes after a backup of the keyspace.
fn back_up_indexes(indexes: &Indexes, keys: &Keyspace, token: &Token) {
    if let Err(error) = indexes.back_up(keys, token) {
        tracing::warn!(error, "the indexes are not backed up; a restart builds them again");
    }
}

/// Backs up the keyspace. Returns the token that the matching backup of the indexes stores.
fn back_up(
    keys: &Keyspace,
    persistence: &DataDirectory,
    background: bool,
) -> (Option<Token>, Result<Summary, BackupError>) {
    let mut token = [0; 16];
    let token = getrandom::fill(&mut token).is_ok().then_some(token);
    let data = &persistence.data;
    let options = BackupOptions::new().background(background);
    let options = options.keep(data.keep).compression(data.compression);
    let options = match token {
        Some(token) => options.metadata(move || token.to_vec()),
        None => options,
    };
    let options = if background { options.workers(BACKGROUND_WORKERS) } else { options };
    let done = keys.store().backup(&options);
    match &done {
        Ok(summary) => {
            persistence.saves.fetch_add(1, Ordering::Relaxed);
            tracing::info!(
                path = %summary.path.display(), entries = summary.entries, bytes = summary.bytes,
                seconds = summary.took.as_secs_f64(), "backed up"
            );
        }
        Err(BackupError::Replaced) => {}
        Err(error) => tracing::error!(%error, "the backup failed; the previous one is untouched"),
    }
    (token, done)
}

fn command_error(error: BackupError) -> CommandError {
    format!("ERR {error}").into()
}

/// Backs up the keyspace in the background, or the one that has replaced it after a flush. Returns
/// the keyspace that was backed up, and the token for the backup of the indexes.
fn back_up_current(
    mut keys: Keyspace,
    persistence: &DataDirectory,
    indexes: &Indexes,
) -> Option<(Keyspace, Token)> {
    for _ in 0..REPLACED_ATTEMPTS {
        match back_up(&keys, persistence, true) {
            (_, Err(BackupError::Replaced)) => {
                thread::sleep(REPLACED_DELAY);
                keys = indexes.current_keyspace()?;
            }
            (token, done) => return done.ok().and(token).map(|token| (keys, token)),
        }
    }
    let error = BackupError::Replaced;
    tracing::error!(%error, "the backup failed; the previous one is untouched");
    None
}

/// Starts a backup on a separate thread.
///
/// # Errors
/// Another backup is in progress, or the thread could not be started.
pub fn save_in_background(
    keys: Keyspace,
    persistence: &Arc<DataDirectory>,
    indexes: &Arc<Indexes>,
) -> Result<(), CommandError> {
    if persistence.saving.swap(true, Ordering::AcqRel) {
        return Err("ERR Background save already in progress".into());
    }
    let (shared, indexes) = (Arc::clone(persistence), Arc::clone(indexes));
    let work = move || {
        let _saving = Saving(&shared);
        // The result is recorded in the store's state and logged.
        if let Some((keys, token)) = back_up_current(keys, &shared, &indexes) {
            back_up_indexes(&indexes, &keys, &token);
        }
    };
    let started = thread::Builder::new().name("ordna bgsave".to_owned()).spawn(work);
    started.map(drop).map_err(|error| {
        persistence.saving.store(false, Ordering::Release);
        format!("ERR no thread for the backup: {error}").into()
    })
}

/// Returns the time when the last backup ended, or when the loaded one was taken, in milliseconds
/// since 1970, or `None` if there is no backup.
pub fn last_backup_ms(told: &Durability) -> Option<u64> {
    let loaded = Some(told.recovery.taken_ms).filter(|taken| *taken > 0);
    told.last.as_ref().map(|(_, ended)| *ended).or(loaded)
}

/// The error of `SAVE`, `BGSAVE` and similar commands on a server without a data directory.
pub const NO_DIRECTORY: &str =
    "ERR this server keeps its keys in memory only; start it with --dir to save them";

/// Interval at which the size of the log and the time are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before a backup that the log's size required is retried after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(60);

/// Longest delay before a backup that a failed log required is retried. A backup writes all keys,
/// so attempts on a full disk must be rare.
const LONGEST_REPAIR_DELAY: Duration = Duration::from_secs(600);

/// Schedule of backups after a failure of the log: immediately, and then with increasing delays
/// until a backup succeeds. A backup makes the log work again and frees the space of the former
/// log.
struct LogRepair {
    /// Number of failures after which a backup has succeeded.
    repaired: u64,
    /// The last attempt: its time, the number of failures before it, and the number of backups
    /// before it.
    attempt: Option<(Instant, u64, u64)>,
    delay: Duration,
}

impl LogRepair {
    fn new() -> Self {
        Self { repaired: 0, attempt: None, delay: CHECK_INTERVAL }
    }

    /// Returns whether to back up now. `backups` is the number of successful ones so far.
    fn is_due(&mut self, failures: u64, backups: u64, now: Instant) -> bool {
        if let Some((_, after, before)) = self.attempt
            && backups > before
        {
            *self = Self { repaired: after, ..Self::new() };
        }
        let waits = self.attempt.is_some_and(|(began, ..)| now - began < self.delay);
        if failures == self.repaired || waits {
            return false;
        }
        if self.attempt.is_some() {
            self.delay = (self.delay * 2).min(LONGEST_REPAIR_DELAY);
        }
        self.attempt = Some((now, failures, backups));
        true
    }
}

/// Backs up at intervals if anything was written, when the log has grown beyond its limit, and when
/// the log has failed. Reports when the log fails and when it works again.
pub async fn back_up_regularly(state: Arc<ServerState>) {
    let Some(persistence) = &state.data_directory else { return };
    let most = persistence.data.backup_log;
    let (mut last, mut failed) = (Instant::now(), false);
    let mut repair = LogRepair::new();
    loop {
        let schedule = persistence.schedule.lock().clone();
        let shortest = schedule.iter().map(|rule| rule.every).min();
        tokio::time::sleep(shortest.unwrap_or(CHECK_INTERVAL).min(CHECK_INTERVAL)).await;
        let keys = Keyspace::clone(&state.keys());
        let Some(told) = keys.store().durability() else { continue };
        match (&told.failure, failed) {
            (Some(reason), false) => tracing::error!(%reason, "the log failed; writes are refused"),
            (None, true) => tracing::info!("the log works again; writes are accepted"),
            _ => {}
        }
        failed = told.failure.is_some();
        let since = last.elapsed();
        let is_time = schedule.iter().any(|rule| {
            // The log may have records of a former run, which the counter does not include.
            let written = told.records_since_backup.max(u64::from(told.since_backup > 0));
            since >= rule.every && written >= rule.changes
        });
        let is_long = most > 0 && told.since_backup >= most as u64;
        let may_retry = told.last_error.is_none() || since >= RETRY_DELAY;
        let saves = persistence.saves.load(Ordering::Relaxed);
        let repairs = told.running.is_none() && repair.is_due(told.failures, saves, Instant::now());
        if repairs || is_time || is_long && may_retry && told.running.is_none() {
            last = Instant::now();
            if let Err(error) = save_in_background(keys, persistence, &state.indexes) {
                tracing::warn!(%error, "no backup this time");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_log_is_repaired_with_growing_delays_until_a_backup_succeeds() {
        let (mut repair, mut now) = (LogRepair::new(), Instant::now());
        assert!(!repair.is_due(0, 3, now));
        // The delays between failing attempts, checked each second.
        let mut delays = Vec::new();
        assert!(repair.is_due(1, 3, now));
        for _ in 0..12 {
            let mut waited = 0;
            loop {
                now += CHECK_INTERVAL;
                waited += 1;
                if repair.is_due(1, 3, now) {
                    break;
                }
            }
            delays.push(waited);
        }
        assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        assert!(!repair.is_due(1, 4, now + LONGEST_REPAIR_DELAY), "a backup succeeded");
        // A failure of the log during the backup requires another one.
        assert!(repair.is_due(2, 4, now + LONGEST_REPAIR_DELAY));
        assert!(repair.is_due(3, 5, now + LONGEST_REPAIR_DELAY));
    }
}
