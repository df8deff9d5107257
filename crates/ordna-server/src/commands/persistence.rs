//! SAVE, BGSAVE, LASTSAVE, BGREWRITEAOF, and the section of `INFO` on persistence.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ordna::durability::SyncPolicy;

use crate::execution::backups::{NO_DIRECTORY, last_backup_ms, save, save_in_background};
use crate::execution::command::{Command, CommandOutcome, Context, Result, SERVER_INFO, Task};
use crate::keyspace::Keyspace;
use crate::state::ServerState;
use crate::state::command_spec::{CommandFlags, NO_KEY};
use crate::state::data_directory::DataDirectory;
use crate::statistics::event_logs::unix_millis;
use crate::wire::error::CommandError;
use crate::wire::reply::Replies;
use crate::wire::request::Arguments;

const BACKUP: CommandFlags =
    CommandFlags::ADMIN.or(CommandFlags::NOSCRIPT).or(CommandFlags::NO_ASYNC_LOADING);

pub const COMMANDS: &[Command] = &[
    Command::new(
        "bgrewriteaof",
        1,
        BACKUP,
        NO_KEY,
        "Makes a backup in the background and starts a new log.",
        rewrite,
    ),
    Command::new("bgsave", -1, BACKUP, NO_KEY, "Makes a backup in the background.", bgsave),
    Command::new(
        "lastsave",
        1,
        SERVER_INFO.or(CommandFlags::FAST),
        NO_KEY,
        "Returns the Unix time of the last backup in seconds.",
        lastsave,
    )
    .also_in(&["admin", "dangerous"]),
    Command::new(
        "save",
        1,
        BACKUP,
        NO_KEY,
        "Makes a backup, and replies when it is complete.",
        foreground,
    )
    .with(CommandFlags::NO_MULTI),
];

fn directory<'a>(context: &Context<'a>) -> Result<&'a Arc<DataDirectory>> {
    context.state.data_directory.as_ref().ok_or_else(|| NO_DIRECTORY.into())
}

fn in_background(context: &Context<'_>) -> Result<()> {
    let keys = Keyspace::clone(&context.keys);
    save_in_background(keys, directory(context)?, &context.state.indexes)
}

fn foreground(context: &mut Context<'_>, arguments: Arguments<'_>, _: &mut Replies) -> Result {
    directory(context)?;
    if context.session.executing {
        return Err("ERR Command not allowed inside a transaction".into());
    }
    Ok(CommandOutcome::Task(Task::new(arguments, back_up)))
}

/// Backs up without the lock of the keyspace, so that only this client waits.
fn back_up(
    state: &ServerState,
    _: Option<&Keyspace>,
    _: Arguments<'_>,
    out: &mut Replies,
) -> Result<()> {
    let persistence = state.data_directory.as_ref().ok_or(NO_DIRECTORY)?;
    let keys = Keyspace::clone(&state.keys());
    save(&keys, persistence, &state.indexes)?;
    out.simple("OK");
    Ok(())
}

fn bgsave(context: &mut Context<'_>, arguments: Arguments<'_>, out: &mut Replies) -> Result {
    if arguments.len() > 2
        || arguments.len() == 2 && !arguments.get(1).eq_ignore_ascii_case(b"schedule")
    {
        return Err(CommandError::Syntax);
    }
    in_background(context)?;
    out.simple("Background saving started");
    Ok(CommandOutcome::Done)
}

fn rewrite(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    in_background(context)?;
    out.simple("Background append only file rewriting started");
    Ok(CommandOutcome::Done)
}

fn lastsave(context: &mut Context<'_>, _: Arguments<'_>, out: &mut Replies) -> Result {
    out.integer(last_save(context.state, &context.keys) as i64);
    Ok(CommandOutcome::Done)
}

/// Returns the time in seconds of the last backup, of the loaded one, or of the start.
fn last_save(state: &ServerState, keys: &Keyspace) -> u64 {
    let last = keys.store().durability().and_then(|told| last_backup_ms(&told));
    let started = state.data_directory.as_ref().map_or(0, |persistence| persistence.started_ms);
    last.unwrap_or(started) / 1000
}

/// Returns the section of `INFO`: Redis' fields, and those of Ordna.
pub fn section(state: &ServerState, keys: &Keyspace) -> String {
    let mut lines = String::new();
    let mut line = |name: &str, value: String| {
        lines.push_str(&format!("{name}:{value}\r\n"));
    };
    let flag = |yes: bool| u8::from(yes).to_string();
    let status = |good: bool| if good { "ok" } else { "err" }.to_owned();
    let Some(persistence) = &state.data_directory else {
        // Nothing is saved, but exporters expect the fields.
        let fields = [
            ("loading", "0"),
            ("async_loading", "0"),
            ("rdb_changes_since_last_save", "0"),
            ("rdb_bgsave_in_progress", "0"),
            ("rdb_last_save_time", "0"),
            ("rdb_last_bgsave_status", "ok"),
            ("rdb_last_bgsave_time_sec", "-1"),
            ("rdb_current_bgsave_time_sec", "-1"),
            ("rdb_saves", "0"),
            ("aof_enabled", "0"),
            ("aof_rewrite_in_progress", "0"),
            ("aof_last_write_status", "ok"),
        ];
        fields.into_iter().for_each(|(field, value)| line(field, value.to_owned()));
        return lines;
    };
    let loading = persistence.is_loading();
    line("loading", flag(loading));
    line("async_loading", flag(false));
    if loading {
        let progress = &persistence.progress;
        let (done, all) = (progress.bytes(), progress.expected_bytes());
        line("loading_start_time", (persistence.started_ms / 1000).to_string());
        line("loading_total_bytes", all.to_string());
        line("loading_loaded_bytes", done.to_string());
        // The expected bytes are an estimate.
        let percent = (done as f64 / all.max(1) as f64 * 100.0).min(100.0);
        line("loading_loaded_perc", format!("{percent:.2}"));
    }
    let Some(told) = keys.store().durability() else { return lines };
    let running = told.running.as_ref();
    let seconds = |since: &Instant| since.elapsed().as_secs().to_string();
    line("rdb_changes_since_last_save", told.records_since_backup.to_string());
    line("rdb_bgsave_in_progress", flag(persistence.saving.load(Ordering::Acquire)));
    line("rdb_last_save_time", last_save(state, keys).to_string());
    line("rdb_last_bgsave_status", status(told.last_error.is_none()));
    let last = told.last.as_ref().map(|(summary, _)| summary);
    line(
        "rdb_last_bgsave_time_sec",
        last.map_or("-1".to_owned(), |summary| summary.took.as_secs().to_string()),
    );
    line(
        "rdb_current_bgsave_time_sec",
        running.map_or("-1".to_owned(), |(_, since)| seconds(since)),
    );
    line("rdb_saves", persistence.saves.load(Ordering::Relaxed).to_string());
    line("aof_enabled", flag(true));
    line("aof_rewrite_in_progress", flag(false));
    line("aof_last_write_status", status(told.failure.is_none()));
    line("aof_current_size", told.since_backup.to_string());
    line("aof_buffer_length", (told.appended - told.synced.min(told.appended)).to_string());
    let policy = match told.sync {
        SyncPolicy::Always => "always",
        SyncPolicy::Never => "no",
        _ => "everysec",
    };
    line("ordna_log", policy.to_owned());
    line("ordna_log_position", told.appended.to_string());
    line("ordna_log_durable_position", told.synced.to_string());
    line("ordna_log_fsyncs", told.syncs.to_string());
    line("ordna_log_failures", told.failures.to_string());
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("max", 1.0)] {
        line(
            &format!("ordna_log_fsync_usec_{name}"),
            told.sync_times.percentile(share).to_string(),
        );
    }
    line("ordna_log_bytes_since_backup", told.since_backup.to_string());
    line("ordna_log_error", told.failure.as_deref().unwrap_or_default().to_owned());
    let progress = running.map(|(progress, _)| progress);
    line("ordna_backup_entries", progress.map_or(0, |it| it.entries()).to_string());
    line("ordna_backup_bytes", progress.map_or(0, |it| it.bytes()).to_string());
    let path = last.map_or(String::new(), |summary| summary.path.display().to_string());
    line("ordna_backup_path", path);
    line("ordna_backup_error", told.last_error.as_deref().unwrap_or_default().to_owned());
    let age = last_backup_ms(&told).map(|ended| unix_millis().saturating_sub(ended) / 1000);
    line("ordna_backup_age_sec", age.map_or("-1".to_owned(), |age| age.to_string()));
    let recovered = told.recovery;
    line("ordna_loaded_entries", recovered.entries.to_string());
    line("ordna_loaded_log_records", recovered.log.records.to_string());
    let cuts = &recovered.log.cuts;
    line("ordna_loaded_log_cuts", cuts.len().to_string());
    let dropped: u64 = cuts.iter().map(|cut| cut.dropped).sum();
    line("ordna_loaded_log_dropped_bytes", dropped.to_string());
    let durable = cuts.iter().filter(|cut| cut.was_durable).count();
    line("ordna_loaded_log_durable_cuts", durable.to_string());
    lines
}
