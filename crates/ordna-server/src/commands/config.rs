//! `CONFIG`: GET, SET, REWRITE, RESETSTAT.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ordna::durability::SyncPolicy;

use crate::execution::command::{ADMIN, Command, CommandOutcome, Result, SERVER_INFO, help, ok};
use crate::keyspace::Keyspace;
use crate::keyspace::collections::packed::{MOST_INTEGERS, MOST_STRINGS};
use crate::keyspace::glob::Pattern;
use crate::keyspace::hash::{LIST_BYTES, LIST_FIELDS};
use crate::state::ServerState;
use crate::state::command_spec::CommandFlags;
use crate::state::data_directory::SaveRule;
use crate::state::events::Classes;
use crate::state::settings::{
    BufferLimits, EvictionPolicy, LOG_LEVELS, OLD_NAME_OF_BUSY, POLICIES, Setting, parse_bytes,
};
use crate::state::tls::TlsFiles;
use crate::state::{config_file, durable_file};
use crate::wire::error::CommandError;
use crate::wire::request::number;

pub const COMMANDS: &[Command] = &[Command::container(
    "config",
    "Reads and sets configuration: GET, SET, REWRITE, RESETSTAT.",
    CONFIG,
)];

const CONFIG: &[Command] = &[
    Command::sub("config|get", -3, ADMIN, |context, arguments, out| {
        let (mut wanted, mut others) = (BTreeMap::new(), values(context.state));
        for text in arguments.iter_from(2) {
            // Patterns are compiled one at a time, and not at all once all settings are found.
            if others.is_empty() {
                break;
            }
            let pattern = Pattern::new(&text.to_ascii_lowercase());
            wanted.extend(others.extract_if(.., |name, _| pattern.matches(name.as_bytes())));
        }
        out.map(wanted.len());
        for (name, value) in wanted {
            out.bulk(name.as_bytes());
            out.bulk(value.as_bytes());
        }
        Ok(CommandOutcome::Done)
    }),
    Command::sub("config|set", -4, ADMIN, |context, arguments, out| {
        if !arguments.len().is_multiple_of(2) {
            return Err(CommandError::Syntax);
        }
        let names = arguments.iter_from(2).step_by(2);
        let pairs: Vec<_> = names.zip(arguments.iter_from(3).step_by(2)).collect();
        set_all(context.state, &context.keys, &pairs)?;
        ok(out)
    })
    .with(CommandFlags::SECRET),
    Command::sub("config|resetstat", 2, ADMIN, |context, _, out| {
        context.state.reset_statistics(&context.keys);
        ok(out)
    }),
    Command::sub("config|rewrite", 2, ADMIN, |context, _, out| {
        rewrite(context.state)?;
        ok(out)
    }),
    Command::sub("config|help", 2, SERVER_INFO, |_, _, out| {
        help(
            out,
            "CONFIG",
            &[
                "GET <pattern> [<pattern> ...]",
                "RESETSTAT",
                "REWRITE",
                "SET <setting> <value> [<setting> <value> ...]",
            ],
        )
    }),
];

/// The names of [`SyncPolicy`] in `appendfsync`, in the order in which Redis names them.
const SYNC_POLICIES: [(&str, SyncPolicy); 3] = [
    ("everysec", SyncPolicy::EverySecond),
    ("always", SyncPolicy::Always),
    ("no", SyncPolicy::Never),
];

/// Settings that clients ask for and that `CONFIG SET` cannot change. Each value describes how the
/// server behaves.
const FIXED: &[(&str, &str)] = &[
    ("aof-load-truncated", "yes"),
    ("cluster-enabled", "no"),
    ("daemonize", "no"),
    ("databases", "1"),
    ("enable-debug-command", "no"),
    ("hz", "1"),
    ("list-compress-depth", "0"),
    // The default of Redis; `OBJECT ENCODING` of a list does not depend on it.
    ("list-max-listpack-size", "-2"),
    ("list-max-ziplist-size", "-2"),
    ("latency-tracking", "yes"),
    ("logfile", ""),
    ("masterauth", ""),
    ("min-replicas-to-write", "0"),
    ("no-appendfsync-on-rewrite", "no"),
    ("pidfile", ""),
    ("rdbchecksum", "yes"),
    ("replica-read-only", "yes"),
    ("replicaof", ""),
    ("slave-read-only", "yes"),
    ("slaveof", ""),
    ("stop-writes-on-bgsave-error", "no"),
    ("unixsocket", ""),
];

/// Returns all settings with their current values.
fn values(state: &ServerState) -> BTreeMap<&'static str, String> {
    let config = &state.config;
    let persistence = state.data_directory.as_ref();
    let data = persistence.map(|persistence| &persistence.data);
    let policy = persistence.map_or(SyncPolicy::EverySecond, |it| it.sync_policy());
    let policy = SYNC_POLICIES.iter().find(|(_, known)| *known == policy);
    let schedule = persistence.map_or_else(Vec::new, |it| it.schedule.lock().clone());
    let rule = |rule: &SaveRule| format!("{} {}", rule.every.as_secs().max(1), rule.changes);
    let level = LOG_LEVELS.get(state.settings.log_level.load(Ordering::Relaxed));
    let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
    let path = |path: Option<&std::path::Path>| {
        path.map_or_else(String::new, |path| path.display().to_string())
    };
    let tls = state.tls.as_ref().map(|tls| tls.config());
    let tls = tls.as_ref();
    let all_channels = state.acl.all_channels.load(Ordering::Relaxed);
    let mut all: BTreeMap<&'static str, String> = [
        ("acl-pubsub-default", CHANNEL_DEFAULTS[usize::from(all_channels)].to_owned()),
        ("aclfile", path(config.acl_file.as_deref())),
        ("appendonly", yes(data.is_some())),
        ("appendfsync", policy.map_or("everysec", |(name, _)| name).to_owned()),
        ("bind", state.address.ip().to_string()),
        ("client-output-buffer-limit", state.settings.buffer_limits.lock().to_string()),
        ("collectors", config.collectors.to_string()),
        ("dir", path(data.map(|data| data.dir.as_path()))),
        ("hash-max-listpack-entries", LIST_FIELDS.to_string()),
        ("hash-max-listpack-value", LIST_BYTES.to_string()),
        ("hash-max-ziplist-entries", LIST_FIELDS.to_string()),
        ("hash-max-ziplist-value", LIST_BYTES.to_string()),
        ("set-max-intset-entries", MOST_INTEGERS.to_string()),
        ("zset-max-listpack-entries", MOST_STRINGS.to_string()),
        ("zset-max-listpack-value", LIST_BYTES.to_string()),
        ("zset-max-ziplist-entries", MOST_STRINGS.to_string()),
        ("zset-max-ziplist-value", LIST_BYTES.to_string()),
        (OLD_NAME_OF_BUSY, state.settings.busy.get().to_string()),
        ("loglevel", level.map_or("notice", |(name, _)| name).to_owned()),
        ("maxmemory-policy", state.settings.policy().name().to_owned()),
        ("notify-keyspace-events", state.events.classes().letters()),
        ("port", state.address.port().to_string()),
        ("proto-max-bulk-len", ordna::value::MAX_LEN.to_string()),
        ("protected-mode", yes(!config.insecure)),
        (
            "rdbcompression",
            yes(data.is_some_and(|data| data.compression != ordna::durability::Compression::None)),
        ),
        ("requirepass", state.acl.password()),
        ("save", schedule.iter().map(rule).collect::<Vec<_>>().join(" ")),
        ("tls-ca-cert-file", path(tls.and_then(|tls| tls.client_authorities.as_deref()))),
        ("tls-cert-file", path(tls.map(|tls| tls.certificate.as_path()))),
        ("tls-key-file", path(tls.map(|tls| tls.key.as_path()))),
        (
            "tls-port",
            tls.and_then(|tls| tls.bind.first()).map_or(0, std::net::SocketAddr::port).to_string(),
        ),
    ]
    .into_iter()
    .collect();
    all.extend(FIXED.iter().map(|(name, value)| (*name, (*value).to_owned())));
    all.extend(state.settings.all().map(|setting| (setting.name, setting.get().to_string())));
    all
}

/// The values of `acl-pubsub-default`.
const CHANNEL_DEFAULTS: [&str; 2] = ["resetchannels", "allchannels"];

/// A validated change of `CONFIG SET`.
enum Change<'a> {
    /// The setting already has the value.
    None,
    Number(&'a Setting, i64),
    BufferLimits(BufferLimits),
    LogLevel(usize),
    Password(&'a str),
    Policy(EvictionPolicy),
    Schedule(Vec<SaveRule>),
    Sync(SyncPolicy),
    /// A file of certificates or keys. All files of a call are read and replaced together.
    Tls(&'a str),
    /// Whether new users may receive the messages of all channels.
    AllChannels(bool),
    Events(Classes),
}

/// The settings that name files for TLS. As in Redis, setting a file again reads it again.
const TLS_FILES: [&str; 3] = ["tls-ca-cert-file", "tls-cert-file", "tls-key-file"];

/// Returns the error for a value that is not in a set of names.
fn none_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    format!("argument(s) must be one of the following: {}", names.join(", "))
}

/// Parses `save`: pairs of a number of seconds and a number of writes.
fn schedule(text: &str) -> std::result::Result<Vec<SaveRule>, String> {
    let invalid = || "Invalid save parameters".to_owned();
    let words = text.split_whitespace().map(|word| word.parse::<u64>().ok().filter(|n| *n > 0));
    let numbers = words.collect::<Option<Vec<u64>>>().ok_or_else(invalid)?;
    if !numbers.len().is_multiple_of(2) {
        return Err(invalid());
    }
    // Limited to an `i32`, as in Redis, so that no sum of times overflows.
    if numbers.iter().any(|number| i32::try_from(*number).is_err()) {
        return Err(invalid());
    }
    let rule = |pair: &[u64]| SaveRule { every: Duration::from_secs(pair[0]), changes: pair[1] };
    Ok(numbers.chunks_exact(2).map(rule).collect())
}

/// Validates one setting, whose name is in lower case. The outer `Option` is `None` if the name is
/// unknown, because that error has its own text.
fn check<'a>(
    state: &'a ServerState,
    name: &str,
    value: &'a [u8],
) -> Option<std::result::Result<Change<'a>, String>> {
    let present = values(state).remove(name)?;
    let Ok(text) = std::str::from_utf8(value) else {
        return Some(Err(format!("the value of '{name}' must be UTF-8")));
    };
    if TLS_FILES.contains(&name) {
        return Some(match state.tls {
            Some(_) => Ok(Change::Tls(text)),
            None if text.is_empty() => Ok(Change::None),
            None => Err(NO_TLS.to_owned()),
        });
    }
    // An equal password is set again, because this removes other passwords of the user.
    if text == present && name != "requirepass" {
        return Some(Ok(Change::None));
    }
    Some(match name {
        "requirepass" => {
            let checked = state.acl.check_password(text).map_err(|why| why.to_string());
            checked.map(|()| Change::Password(text))
        }
        "client-output-buffer-limit" => {
            let limits = *state.settings.buffer_limits.lock();
            limits.changed(text).map(Change::BufferLimits)
        }
        "loglevel" => {
            let level = LOG_LEVELS.iter().position(|(name, _)| text.eq_ignore_ascii_case(name));
            match level {
                None => Err(none_of(LOG_LEVELS.iter().map(|(name, _)| *name))),
                Some(_) if state.config.log_level.is_none() => {
                    Err("the program has no log whose level could change".to_owned())
                }
                Some(level) => Ok(Change::LogLevel(level)),
            }
        }
        "appendfsync" => {
            let find = |(name, _): &&(&str, _)| text.eq_ignore_ascii_case(name);
            match SYNC_POLICIES.iter().find(find) {
                None => Err(none_of(SYNC_POLICIES.iter().map(|(name, _)| *name))),
                Some((_, policy)) if state.data_directory.is_some() => Ok(Change::Sync(*policy)),
                Some(_) => Err(NO_LOG.to_owned()),
            }
        }
        "acl-pubsub-default" => {
            let known = CHANNEL_DEFAULTS.iter().position(|known| text.eq_ignore_ascii_case(known));
            let known = known.ok_or_else(|| none_of(CHANNEL_DEFAULTS.iter().rev().copied()));
            known.map(|at| Change::AllChannels(at == 1))
        }
        "maxmemory-policy" => {
            let policy = POLICIES.iter().find(|(name, _)| text.eq_ignore_ascii_case(name));
            match policy {
                None => Err(none_of(POLICIES.iter().map(|(name, _)| *name))),
                Some((name, _)) if *name == present => Ok(Change::None),
                Some((_, EvictionPolicy::NoEviction)) => {
                    Ok(Change::Policy(EvictionPolicy::NoEviction))
                }
                Some(_) if state.data_directory.is_some() && !state.config.evict_stored => {
                    Err("eviction deletes keys from the data directory; start the server with \
                         --evict-stored to allow that"
                        .to_owned())
                }
                Some((_, policy)) => Ok(Change::Policy(*policy)),
            }
        }
        "save" => schedule(text).and_then(|rules| match state.data_directory {
            Some(_) => Ok(Change::Schedule(rules)),
            None if rules.is_empty() => Ok(Change::None),
            None => Err(NO_LOG.to_owned()),
        }),
        "notify-keyspace-events" => {
            let classes = Classes::parse(text).map(Change::Events);
            classes
                .ok_or_else(|| "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".to_owned())
        }
        _ => match state.settings.find(name) {
            Some(setting) => number_of(state, setting, text),
            // `64mb` and `67108864` are the same value.
            None if present.parse().is_ok_and(|bytes: usize| parse_bytes(text) == Ok(bytes)) => {
                Ok(Change::None)
            }
            None if text.trim().eq_ignore_ascii_case(&present) => Ok(Change::None),
            None => Err("can't set immutable config".to_owned()),
        },
    })
}

/// The error of settings that need a data directory.
const NO_LOG: &str = "this server keeps its keys in memory only; start it with --dir";

/// The error of settings that need a listener for TLS.
const NO_TLS: &str = "this server does not listen with TLS; start it with --tls-port";

/// Reads the files for TLS that a call of `CONFIG SET` names, and those that it leaves as they are.
/// Returns `None` if it names none.
///
/// # Errors
/// The error of `CONFIG SET`: a file cannot be used, or certificate and key do not match.
fn tls_files(state: &ServerState, changes: &[(String, Change<'_>)]) -> Result<Option<TlsFiles>> {
    let Some(tls) = &state.tls else { return Ok(None) };
    let mut wanted = tls.config();
    let mut named = None;
    for (name, change) in changes {
        let Change::Tls(file) = change else { continue };
        named = Some(name);
        let file = PathBuf::from(file);
        match name.as_str() {
            "tls-cert-file" => wanted.certificate = file,
            "tls-key-file" => wanted.key = file,
            _ => wanted.client_authorities = Some(file).filter(|file| !file.as_os_str().is_empty()),
        }
    }
    let Some(name) = named else { return Ok(None) };
    let read = TlsFiles::read(wanted);
    read.map(Some)
        .map_err(|why| failed(name, &format!("Unable to update TLS configuration. {why}")))
}

/// Validates the value of a numeric setting.
fn number_of<'a>(
    state: &ServerState,
    setting: &'a Setting,
    text: &str,
) -> std::result::Result<Change<'a>, String> {
    if setting.name != "maxmemory-clients" {
        return setting.parse(text.as_bytes()).map(|value| Change::Number(setting, value));
    }
    // As in Redis, a percentage of maxmemory. Without maxmemory there is no limit.
    let value = match text.strip_suffix('%').map(|percent| number(percent.as_bytes())) {
        Some(Some(percent @ 0..=100)) => {
            let all = state.settings.max_memory.get();
            all / 100 * percent + all % 100 * percent / 100
        }
        Some(Some(101..)) => {
            return Err("percentage argument must be less or equal to 100".to_owned());
        }
        Some(_) => return Err("argument must be a memory or percent value".to_owned()),
        None => setting
            .parse(text.as_bytes())
            .map_err(|_| "argument must be a memory or percent value".to_owned())?,
    };
    Ok(Change::Number(setting, value))
}

/// Applies a change.
fn apply(
    state: &ServerState,
    keys: &Keyspace,
    change: &Change<'_>,
) -> std::result::Result<(), String> {
    match change {
        // The files have been read. They are replaced when no other change can fail any more.
        Change::None | Change::Tls(_) => {}
        Change::Number(setting, value) if setting.name == state.settings.max_memory.name => {
            state.set_max_memory(*value);
        }
        Change::Number(setting, value) => setting.set(*value),
        Change::BufferLimits(limits) => state.settings.set_buffer_limits(*limits),
        Change::LogLevel(level) => {
            let wanted = LOG_LEVELS.get(*level).map(|(_, level)| *level);
            if let (Some(switch), Some(wanted)) = (&state.config.log_level, wanted) {
                (switch.switch)(wanted)?;
            }
            state.settings.log_level.store(*level, Ordering::Relaxed);
        }
        Change::Password(password) => {
            state.acl.set_password(password).map_err(|why| why.to_string())?;
        }
        Change::Events(classes) => state.events.set(*classes),
        Change::AllChannels(all) => state.acl.all_channels.store(*all, Ordering::Relaxed),
        Change::Policy(policy) => state.settings.set_policy(*policy),
        Change::Schedule(rules) => {
            if let Some(persistence) = &state.data_directory {
                persistence.schedule.lock().clone_from(rules);
            }
        }
        Change::Sync(policy) => {
            if let Some(persistence) = &state.data_directory {
                persistence.set_sync_policy(*policy);
                // If the log has failed, it keeps the new policy for later, when it works again.
                let _ = keys.store().set_sync_policy(*policy);
            }
        }
    }
    Ok(())
}

fn failed(name: &str, why: &str) -> CommandError {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}").into()
}

/// Changes all of these settings, or none. The caller has locked the keyspace, perhaps exclusively.
///
/// # Errors
/// The error of `CONFIG SET`.
pub fn set_all(state: &ServerState, keys: &Keyspace, pairs: &[(&[u8], &[u8])]) -> Result<()> {
    // Held during the whole call, so that two calls never interleave.
    let mut changed = state.changed_settings.lock();
    let mut changes: Vec<(String, Change<'_>)> = Vec::new();
    for (name, value) in pairs {
        let shown = String::from_utf8_lossy(name);
        let lower = shown.to_ascii_lowercase();
        let Some(checked) = check(state, &lower, value) else {
            return Err(format!(
                "ERR Unknown option or number of arguments for CONFIG SET - '{shown}'"
            )
            .into());
        };
        if changes.iter().any(|(name, _)| *name == lower) {
            return Err(failed(&shown, "duplicate parameter"));
        }
        changes.push((lower, checked.map_err(|why| failed(&shown, &why))?));
    }
    let files = tls_files(state, &changes)?;
    let former = values(state);
    for (at, (name, change)) in changes.iter().enumerate() {
        let Err(why) = apply(state, keys, change) else { continue };
        for (name, _) in changes.iter().take(at).rev() {
            let value = former.get(name.as_str()).map_or("", String::as_str);
            if let Some(Ok(change)) = check(state, name, value.as_bytes())
                && let Err(error) = apply(state, keys, &change)
            {
                tracing::error!(name, error, "CONFIG SET could not restore a setting");
            }
        }
        return Err(failed(name, &why));
    }
    if let (Some(tls), Some(files)) = (&state.tls, files) {
        tls.replace(files);
    }
    let mut present = values(state);
    for (name, change) in changes {
        if !matches!(change, Change::None)
            && let Some(value) = present.remove(name.as_str())
        {
            changed.insert(name, value);
        }
    }
    Ok(())
}

/// Writes the changed settings to the configuration file.
fn rewrite(state: &ServerState) -> Result<()> {
    let file = state.config.file.as_ref();
    let file = file.ok_or("ERR The server is running without a config file")?;
    // Held to the end, so that two calls do not write to the same temporary file.
    let changed = state.changed_settings.lock();
    let failed = |why: String| {
        CommandError::from(format!("ERR Rewriting config file {}: {why}", file.display()))
    };
    let text = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
    let new = config_file::rewritten(&text, &changed).map_err(failed)?;
    if new != text {
        let storage = state.config.storage();
        durable_file::replace(storage, file, new.as_bytes())
            .map_err(|error| failed(error.to_string()))?;
    }
    tracing::info!(file = %file.display(), "CONFIG REWRITE");
    Ok(())
}
