//! `ordna backup`, `ordna restore` and `ordna verify`.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Parser;
use indicatif::{HumanBytes, HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use ordna::durability::{BackupReport, Disk, Progress, WalReplay, install, verify};

use redis_protocol::resp2::types::BytesFrame;

use crate::client::{Client, ServerAddress, bytes_of};

/// Interval between two updates of the progress bar.
const LOOK: Duration = Duration::from_millis(100);

/// Options of `ordna backup`.
#[derive(Debug, Parser)]
pub struct BackupOptions {
    #[command(flatten)]
    server: ServerAddress,
    /// Address of the server whose backup is copied; replaces --host and --port
    #[arg(long, value_name = "HOST:PORT", requires = "to")]
    from: Option<String>,
    /// Directory on this machine to which the backup is copied; must be new or empty
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

/// Options of `ordna restore`.
#[derive(Debug, Parser)]
pub struct RestoreOptions {
    /// Directory of the backup, which contains the file MANIFEST
    backup: PathBuf,
    /// Data directory to create, for `ordna serve --dir`; must not contain data
    #[arg(long)]
    dir: PathBuf,
}

/// Options of `ordna verify`.
#[derive(Debug, Parser)]
pub struct VerifyOptions {
    /// Directory of a backup, or data directory of `ordna serve --dir`
    dir: PathBuf,
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = "[{bar:30}] {bytes}/{total_bytes} {msg} ({elapsed}, {eta} left)";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// Runs `work` and shows its progress in a bar, on a terminal only.
fn with_bar<R: Send>(work: impl FnOnce(&Progress) -> R + Send) -> R {
    let (progress, bar) = (Progress::default(), bar());
    thread::scope(|scope| {
        let working = scope.spawn(|| work(&progress));
        while !working.is_finished() {
            bar.set_length(progress.expected_bytes().max(progress.bytes()));
            bar.set_position(progress.bytes());
            bar.set_message(format!("{} entries", HumanCount(progress.entries())));
            thread::sleep(LOOK);
        }
        bar.finish_and_clear();
        working.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn print_backup(report: &BackupReport) {
    let manifest = &report.manifest;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age = now.saturating_sub(Duration::from_millis(manifest.taken_ms));
    println!(
        "{}: {} entries ({} by {}), {} in {} shards, and {} further states, taken {} ago",
        report.path.display(),
        HumanCount(report.entries),
        manifest.values,
        manifest.keys,
        HumanBytes(report.bytes),
        manifest.shards.len(),
        HumanCount(manifest.deltas.iter().map(|delta| delta.entries).sum()),
        HumanDuration(age),
    );
    if let Some((first, last)) = &report.keys {
        println!("  keys from {first} to {last}");
    }
}

fn print_log(log: &WalReplay) {
    let end =
        if log.closed { "closed properly" } else { "not closed: still open, or left by a crash" };
    println!(
        "log: {} records in {} blocks of {} segments, {} bytes since the log began; {end}",
        HumanCount(log.records),
        HumanCount(log.blocks),
        log.segments,
        HumanCount(log.position),
    );
    for cut in &log.cuts {
        println!(
            "  {}: ends incompletely at byte {}: {}; {} bytes would be truncated",
            cut.path.display(),
            cut.offset,
            cut.what,
            HumanCount(cut.dropped),
        );
    }
}

/// Reads and checks all files of a directory. The exit status is 1 if the next start of the server
/// would cut off a part of the log, or could not use a file of the indexes.
pub fn run_verify(options: &VerifyOptions) -> anyhow::Result<ExitCode> {
    let report = with_bar(|progress| verify(&Disk, &options.dir, progress))?;
    report.backups.iter().for_each(print_backup);
    report.log.iter().for_each(print_log);
    if !report.is_whole() {
        println!(
            "the next start would truncate the log there, unless a server is still writing to it"
        );
        return Ok(ExitCode::FAILURE);
    }
    let damaged = ordna_server::verify_indexes(&options.dir);
    if !damaged.is_empty() {
        damaged.iter().for_each(|what| println!("indexes: {what}"));
        println!("the next start could not load these indexes; the keys are undamaged");
        return Ok(ExitCode::FAILURE);
    }
    println!("no damage was found");
    Ok(ExitCode::SUCCESS)
}

/// Copies a backup into a new data directory.
pub fn run_restore(options: &RestoreOptions) -> anyhow::Result<ExitCode> {
    let report = with_bar(|progress| install(&Disk, &options.backup, &options.dir, progress))?;
    print_backup(&report);
    println!("start the server on it: ordna serve --dir {}", options.dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Returns the fields of a section of `INFO`.
fn info(client: &mut Client, section: &str) -> anyhow::Result<Vec<(String, String)>> {
    let info = bytes_of(client.call(&[b"INFO", section.as_bytes()])?)?;
    let text = String::from_utf8_lossy(&info).into_owned();
    let field = |line: &str| line.split_once(':').map(|(name, value)| (name.into(), value.into()));
    Ok(text.lines().filter_map(field).collect())
}

/// Makes a running server write a backup, and waits until it is complete.
pub fn run_backup(options: &BackupOptions) -> anyhow::Result<ExitCode> {
    let mut server = options.server.clone();
    if let Some(from) = &options.from {
        server.set(from).context("--from")?;
    }
    if let Some(to) = &options.to {
        check_is_new(to)?;
    }
    let mut client = server.connect()?;
    // Redis would write an RDB file, which Ordna cannot read.
    if !info(&mut client, "server")?.iter().any(|(name, _)| name == "ordna_version") {
        let (host, port) = server.place();
        bail!("the server on {host}:{port} is not Ordna; nothing was backed up");
    }
    client.call(&[b"BGSAVE"])?;
    let bar = bar();
    let fields = loop {
        let fields = info(&mut client, "persistence")?;
        let number = |name: &str| {
            let field = fields.iter().find(|(field, _)| field == name);
            field.and_then(|(_, value)| value.parse::<u64>().ok()).unwrap_or(0)
        };
        if number("rdb_bgsave_in_progress") == 0 {
            break fields;
        }
        bar.set_position(number("ordna_backup_bytes"));
        bar.set_message(format!("{} entries", HumanCount(number("ordna_backup_entries"))));
        thread::sleep(LOOK);
    };
    bar.finish_and_clear();
    let text = |name: &str| {
        fields.iter().find(|(field, _)| field == name).map_or("", |(_, value)| value.as_str())
    };
    if text("rdb_last_bgsave_status") != "ok" {
        bail!("the backup failed: {}", text("ordna_backup_error"));
    }
    let took = text("rdb_last_bgsave_time_sec").parse().context("INFO persistence")?;
    println!(
        "{} written in {}",
        text("ordna_backup_path"),
        HumanDuration(Duration::from_secs(took))
    );
    match &options.to {
        Some(to) => run_copy(&mut client, to),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Number of bytes to request at a time.
const PART: u64 = 1 << 20;

/// Returns an error if the directory is not empty.
fn check_is_new(to: &Path) -> anyhow::Result<()> {
    let is_empty = fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_none());
    if to.exists() && !is_empty {
        bail!("{} exists and is not an empty directory", to.display());
    }
    Ok(())
}

/// Copies the newest backup of a server into the directory `to`, which is created only after the
/// copy is complete.
fn run_copy(client: &mut Client, to: &Path) -> anyhow::Result<ExitCode> {
    let mut unfinished = to.as_os_str().to_owned();
    unfinished.push(format!(".unfinished-{}", std::process::id()));
    let unfinished = PathBuf::from(unfinished);
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::create_dir_all(parent)?;
    fs::create_dir(&unfinished)
        .with_context(|| format!("cannot create {}", unfinished.display()))?;
    let copied = copy(client, &unfinished).and_then(|()| {
        with_bar(|progress| verify(&Disk, &unfinished, progress))?;
        check_is_new(to)?;
        fs::rename(&unfinished, to)?;
        Ok(File::open(parent)?.sync_all()?)
    });
    if let Err(error) = copied {
        // If the removal fails too, the error of the copy is the one to report.
        let _ = fs::remove_dir_all(&unfinished);
        return Err(error);
    }
    println!(
        "copied to {0}; ordna restore {0} --dir DIR makes a data directory of it",
        to.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// A backup that the server has opened for copying.
struct RemoteBackup {
    id: Vec<u8>,
    /// Name and size in bytes of each file.
    files: Vec<(String, u64)>,
}

/// Parses the reply to `ORDNA.BACKUP OPEN`.
fn opened(reply: BytesFrame) -> anyhow::Result<RemoteBackup> {
    let unexpected = "unexpected reply to ORDNA.BACKUP OPEN";
    let BytesFrame::Array(items) = reply else { bail!(unexpected) };
    let mut items = items.into_iter();
    let Some(BytesFrame::Integer(id)) = items.next() else { bail!(unexpected) };
    let files = items.map(|item| {
        let BytesFrame::Array(pair) = item else { bail!(unexpected) };
        let [BytesFrame::BulkString(name), BytesFrame::Integer(len)] = &pair[..] else {
            bail!(unexpected)
        };
        let name = String::from_utf8(name.to_vec())?;
        // Without this check a malicious server could make this program write outside the
        // directory.
        if Path::new(&name).file_name() != Some(name.as_ref()) {
            bail!("{name:?} is not a name of a file");
        }
        Ok((name, u64::try_from(*len)?))
    });
    let files = files.collect::<anyhow::Result<_>>()?;
    Ok(RemoteBackup { id: id.to_string().into_bytes(), files })
}

/// Copies all files of the newest backup into `dir` and syncs them.
fn copy(client: &mut Client, dir: &Path) -> anyhow::Result<()> {
    let opened = opened(client.call(&[b"ORDNA.BACKUP", b"OPEN"])?)?;
    let RemoteBackup { id, files } = opened;
    let bar = bar();
    bar.set_length(files.iter().map(|(_, len)| len).sum());
    for (at, (name, len)) in files.iter().enumerate() {
        bar.set_message(name.clone());
        let path = dir.join(name);
        let mut file = File::create_new(&path)?;
        let (number, mut offset) = (at.to_string(), 0);
        while offset < *len {
            let count = PART.min(len - offset).to_string();
            let position = offset.to_string();
            let words =
                [b"ORDNA.BACKUP", &b"READ"[..], &id, number.as_bytes(), position.as_bytes()];
            let part = bytes_of(client.call(&[&words[..], &[count.as_bytes()]].concat())?)?;
            if part.is_empty() {
                bail!("{name} ends at byte {offset} of {len}");
            }
            file.write_all(&part).with_context(|| format!("cannot write {}", path.display()))?;
            offset += part.len() as u64;
            bar.inc(part.len() as u64);
        }
        file.sync_all()?;
    }
    client.call(&[b"ORDNA.BACKUP", b"CLOSE", &id])?;
    File::open(dir)?.sync_all()?;
    bar.finish_and_clear();
    Ok(())
}
