//! Damages to the files that a history has left.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ordna::durability::{Progress, Storage, SyncPolicy, WalTruncation, verify};
use ordna_testkit::random::Random;

use super::super::disk::Model;
use super::super::steps::{Bytes, DIR, State, state_of};
use super::life::Life;
use super::plan::plan;

/// Lengths of the headers of a file and of a block, see `docs/FORMAT.md`.
const FILE_HEADER: usize = 48;
const BLOCK_HEADER: usize = 56;

/// A change of a file.
#[derive(Debug, Clone)]
pub enum Damage {
    Flip {
        at: usize,
        mask: u8,
    },
    Zero {
        from: usize,
        to: usize,
    },
    Cut {
        len: usize,
    },
    Remove,
    /// The content is replaced by that of another file.
    CopyOf(PathBuf),
    Exchange(PathBuf),
    /// A copy of the file appears under another name.
    Duplicate(PathBuf),
}

/// A damage to a file.
#[derive(Debug, Clone)]
pub struct Hit {
    pub file: PathBuf,
    pub damage: Damage,
    /// A segment after the damaged one whose header is damaged, too.
    pub later: Option<PathBuf>,
}

fn number_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("log-")?.parse().ok()
}

fn is_in_backup(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str().to_string_lossy().starts_with("backup-"))
}

/// Returns a random damage, or `None` if there is no file to damage.
pub fn random_hit(disk: &Model, random: &mut Random) -> Option<Hit> {
    // The tail is excluded, because damage only ends it, as a power failure does.
    let mut files = disk.files();
    files.retain(|file| !file.ends_with("tail"));
    if files.is_empty() {
        return None;
    }
    let pick = |random: &mut Random| files[random.below(files.len() as u64) as usize].clone();
    let mut file = pick(random);
    if random.below(2) == 0 {
        // The log is chosen more often, because its cases are hard to distinguish.
        let segments: Vec<_> = files.iter().filter(|file| number_of(file).is_some()).collect();
        if !segments.is_empty() {
            file = segments[random.below(segments.len() as u64) as usize].clone();
        }
    }
    let len = disk.read(&file).len();
    let at = |random: &mut Random| match random.below(4) {
        0 => random.below(len.min(48) as u64) as usize,
        _ => random.below(len as u64) as usize,
    };
    let mut later = None;
    let damage = match random.below(13) {
        0 | 1 if len > FILE_HEADER && number_of(&file).is_some() => {
            let is_later = |path: &&PathBuf| number_of(path) > number_of(&file);
            let segments: Vec<_> = files.iter().filter(is_later).collect();
            if !segments.is_empty() {
                later = Some(segments[random.below(segments.len() as u64) as usize].clone());
            }
            let at = FILE_HEADER + random.below((len - FILE_HEADER) as u64) as usize;
            Damage::Flip { at, mask: 0x20 }
        }
        0..6 if len > 0 => {
            let mask = [0x01, 0x20, 0x80, 0xFF][random.below(4) as usize];
            Damage::Flip { at: at(random), mask }
        }
        6 if len > 0 => {
            let from = at(random);
            let most = if random.below(2) == 0 { 16 } else { len };
            let to = from + random.below(((len - from).min(most)) as u64 + 1) as usize;
            Damage::Zero { from, to }
        }
        7 | 8 if len > 0 => Damage::Cut { len: at(random) },
        9 => Damage::CopyOf(pick(random)),
        10 => Damage::Exchange(pick(random)),
        11 => {
            let name = file.file_name()?.to_str()?;
            let (stem, number) = name.rsplit_once('-')?;
            let number: u64 = number.parse().ok()?;
            let next =
                format!("{stem}-{:0width$}", number + 1, width = name.len() - stem.len() - 1);
            let to = file.with_file_name(next);
            if files.contains(&to) { Damage::Remove } else { Damage::Duplicate(to) }
        }
        _ => Damage::Remove,
    };
    Some(Hit { file, damage, later })
}

impl Hit {
    /// Returns the disk with the damage, or `None` if it changes nothing.
    pub fn apply(&self, disk: &Model) -> Option<Model> {
        let copy = disk.after_exit();
        copy.set_free(usize::MAX);
        let old = disk.read(&self.file);
        let mut new = old.clone();
        match &self.damage {
            Damage::Flip { at, mask } => new[*at] ^= mask,
            Damage::Zero { from, to } => new[*from..*to].fill(0),
            Damage::Cut { len } => new.truncate(*len),
            Damage::Remove => {
                copy.remove(&self.file).unwrap();
                return Some(copy.after_exit());
            }
            Damage::CopyOf(other) => new = disk.read(other),
            Damage::Exchange(other) => {
                new = disk.read(other);
                copy.replace(other, old.clone());
            }
            Damage::Duplicate(to) => {
                copy.add(to, old);
                return Some(copy.after_exit());
            }
        }
        copy.replace(&self.file, new.clone());
        if let Some(later) = &self.later {
            let mut header = disk.read(later);
            if let Some(byte) = header.get_mut(20) {
                *byte ^= 0x20;
            }
            copy.replace(later, header);
        }
        (new != old).then_some(copy)
    }

    /// Returns the other file that the damage changes.
    fn other(&self) -> Option<&Path> {
        match &self.damage {
            Damage::Exchange(other) | Damage::Duplicate(other) => Some(other),
            _ => None,
        }
    }

    fn spares_backups(&self) -> bool {
        !is_in_backup(&self.file) && !self.other().is_some_and(is_in_backup)
    }

    /// Returns whether the damage may have removed the proof that records are missing: the end of
    /// the newest segment with blocks.
    fn takes_the_end(&self, disk: &Model) -> bool {
        let removes = matches!(
            self.damage,
            Damage::Cut { .. } | Damage::Zero { .. } | Damage::CopyOf(_) | Damage::Exchange(_)
        );
        let has_blocks = |path: &&PathBuf| {
            let block = disk.read(path).split_off(FILE_HEADER.min(disk.read(path).len()));
            block.len() >= BLOCK_HEADER && block.starts_with(b"OBLK")
        };
        let files = disk.files();
        let newest = files.iter().filter(has_blocks).filter_map(|path| number_of(path)).max();
        removes && number_of(&self.file) == newest
    }

    /// Returns whether only a mark could show that something is missing.
    fn needs_a_mark(&self, disk: &Model) -> bool {
        let newest = disk.files().iter().filter_map(|path| number_of(path)).max();
        let files = [Some(self.file.as_path()), self.other(), self.later.as_deref()];
        newest.is_some() && files.into_iter().flatten().any(|file| number_of(file) == newest)
    }

    /// Returns whether the file now ends after a block, as if the process had ended there.
    fn ends_behind_a_block(&self, disk: &Model) -> bool {
        let Damage::Cut { len } = self.damage else { return false };
        let content = disk.read(&self.file);
        let mut at = FILE_HEADER;
        while at < len {
            let Some(stored) = content.get(at + 16..at + 24) else { return false };
            at += BLOCK_HEADER + u64::from_le_bytes(stored.try_into().unwrap()) as usize;
        }
        at == len
    }
}

/// The result of opening a store with the files.
struct Start {
    state: State,
    cuts: Vec<WalTruncation>,
}

fn start(life: &Life, disk: &Model, repair: bool) -> Result<Start, String> {
    let options = life.options(disk, SyncPolicy::Never).repair(repair);
    let store = Bytes::open(DIR, options).map_err(|error| error.to_string())?;
    let cuts = store.durability().unwrap().recovery.log.cuts;
    Ok(Start { state: state_of(&store), cuts })
}

/// Numbers of the outcomes of damages.
#[derive(Debug, Default)]
pub struct Counts {
    pub unaffected: u64,
    pub refused: u64,
    pub repaired: u64,
    pub cut: u64,
    /// Time that histories took, summed over all threads, and time that their damages took.
    pub living: Duration,
    pub damaging: Duration,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.unaffected += other.unaffected;
        self.refused += other.refused;
        self.repaired += other.repaired;
        self.cut += other.cut;
        self.living += other.living;
        self.damaging += other.damaging;
    }
}

/// The state that an opening finds in the undamaged files of a history.
pub struct Whole {
    state: State,
    /// Number of the state in the history.
    at: usize,
}

/// Opens the files without damage, in the same way as the history's last opening.
pub fn undamaged(life: &Life) -> Result<Whole, String> {
    let disk = life.disk.after_exit();
    disk.set_free(usize::MAX);
    let whole = start(life, &disk, false);
    let state = whole.map_err(|error| format!("the start is refused: {error}"))?.state;
    match life.find(&state, life.lower) {
        Some(at) => Ok(Whole { state, at }),
        None => Err(format!("after a start: {}", life.describe(&state, life.lower))),
    }
}

/// Checks the results of an opening, of `verify` and of a repair after a damage.
pub fn check(
    life: &Life,
    whole: &Whole,
    hit: &Hit,
    random: &mut Random,
    counts: &mut Counts,
) -> Result<(), String> {
    let Some(damaged) = hit.apply(&life.disk) else { return Ok(()) };
    let verified = verify(&damaged, DIR, &Progress::default());
    let is_content = verified.is_ok_and(|report| report.log.is_none_or(|log| log.cuts.is_empty()));
    let copy = damaged.after_exit();
    match start(life, &copy, false) {
        Err(error) => {
            counts.refused += 1;
            if is_content {
                return Err(format!("verify is content, and the start is refused: {error}"));
            }
            if !hit.spares_backups() {
                return Ok(());
            }
            let copy = damaged.after_exit();
            let repaired = start(life, &copy, true)
                .map_err(|error| format!("a repair of the log is refused: {error}"))?;
            counts.repaired += 1;
            if life.find(&repaired.state, 0).is_none() {
                return Err(format!("after a repair: {}", life.describe(&repaired.state, 0)));
            }
            if repaired.state != whole.state && repaired.cuts.iter().all(|cut| !cut.was_durable) {
                return Err("a repair does not report that it dropped records".to_owned());
            }
            if random.below(4) == 0 {
                return go_on(life, copy, repaired.state, random);
            }
            again(life, &copy, &repaired.state)
        }
        Ok(found) if found.state == whole.state => {
            counts.unaffected += 1;
            if random.below(4) == 0 { again(life, &copy, &found.state) } else { Ok(()) }
        }
        Ok(found) => {
            counts.cut += 1;
            let takes_the_end = hit.takes_the_end(&life.disk);
            if takes_the_end && hit.ends_behind_a_block(&life.disk) {
                return Ok(());
            }
            if life.lacks_a_mark && hit.needs_a_mark(&life.disk) {
                return Ok(());
            }
            if found.cuts.is_empty() {
                let lost = life.describe(&found.state, whole.at);
                return Err(format!("a start reports nothing; {lost}"));
            }
            if found.cuts.iter().all(|cut| cut.dropped == 0 && !cut.was_durable) {
                let (cuts, lost) = (&found.cuts, life.describe(&found.state, whole.at));
                return Err(format!("a start reports that nothing is lost: {cuts:?}; {lost}"));
            }
            if is_content {
                return Err("verify is content, and a start loses records".to_owned());
            }
            // Writes that changed nothing may be lost.
            let first = life.first_like(whole.at, life.lower);
            let proved = life.proofs[..=first].iter().copied().max().unwrap_or(0);
            let lower = if takes_the_end { 0 } else { proved };
            if life.find(&found.state, lower).is_none() {
                let lost = life.describe(&found.state, lower);
                return Err(format!(
                    "the files prove that records are lost, and a start succeeds; {lost}"
                ));
            }
            again(life, &copy, &found.state)
        }
    }
}

/// Checks that a second opening finds the state that the first one has left.
fn again(life: &Life, disk: &Model, state: &State) -> Result<(), String> {
    let second = start(life, &disk.after_exit(), false)
        .map_err(|error| format!("the start after a start is refused: {error}"))?;
    if second.state != *state {
        return Err("a second start finds another state".to_owned());
    }
    Ok(())
}

/// Continues a history in a repaired directory, which must work like any other.
fn go_on(life: &Life, disk: Model, state: State, random: &mut Random) -> Result<(), String> {
    let mut life = life.with(disk, state);
    for session in plan(random.next_u64()).iter().take(2) {
        life.session(session).map_err(|error| format!("after a repair: {error}"))?;
    }
    undamaged(&life).map(drop).map_err(|error| format!("after a repair and more: {error}"))
}
