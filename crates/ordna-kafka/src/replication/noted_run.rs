//! `REPLICA.json`: the last run that a directory's primary has begun.
//!
//! The file is replaced durably before a run begins, so a restarted primary knows whether the last
//! run of the partition is its own.

use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use super::message::Run;

/// Name of the file.
pub const FILE: &str = "REPLICA.json";

/// A run that its primary has recorded before it began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NotedRun {
    /// The topic.
    pub topic: String,
    run_id: u64,
    run_term: u64,
    after_id: u64,
    after_term: u64,
    /// Position of the log at which the run begins.
    pub position: u64,
}

impl NotedRun {
    /// Creates the record of a run that begins at a position, after the last run in the partition.
    pub fn new(topic: &str, run: Run, after: Run, position: u64) -> Self {
        let topic = topic.to_owned();
        let (run_id, run_term, after_id, after_term) = (run.id, run.term, after.id, after.term);
        Self { topic, run_id, run_term, after_id, after_term, position }
    }

    /// Returns the run.
    pub fn run(&self) -> Run {
        Run { id: self.run_id, term: self.run_term }
    }

    /// Returns the last run in the partition when this one began.
    pub fn after(&self) -> Run {
        Run { id: self.after_id, term: self.after_term }
    }

    /// Reads the file of a directory. Returns `None` if there is none.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn read(dir: &Path) -> io::Result<Option<Self>> {
        match fs::read(dir.join(FILE)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            content => Ok(Some(serde_json::from_slice(&content?)?)),
        }
    }

    /// Checks that a file can be created in the directory and written, without a change of what is
    /// recorded.
    ///
    /// # Errors
    /// Returns an error if it cannot.
    pub fn check(dir: &Path) -> io::Result<()> {
        let mut file = fs::File::create(dir.join(format!("{FILE}.new")))?;
        file.write_all(&[b' '; 4096])?;
        file.sync_all()
    }

    /// Replaces the file durably.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        let new = dir.join(format!("{FILE}.new"));
        let mut file = fs::File::create(&new)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(&new, dir.join(FILE))?;
        fs::File::open(dir)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let dir = std::env::temp_dir().join(format!("ordna-noted-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        assert_eq!(NotedRun::read(&dir).unwrap(), None);
        NotedRun::check(&dir).unwrap();
        assert_eq!(NotedRun::read(&dir).unwrap(), None);
        let (first, second) = (Run::default().next(), Run::default().next().next());
        for noted in [
            NotedRun::new("t", first, Run::default(), 0),
            NotedRun::new("t", second, first, u64::MAX),
        ] {
            noted.write(&dir).unwrap();
            assert_eq!(NotedRun::read(&dir).unwrap(), Some(noted));
        }
        fs::write(dir.join(FILE), "{").unwrap();
        assert!(NotedRun::read(&dir).is_err());
        fs::create_dir(dir.join(format!("{FILE}.new"))).unwrap();
        assert!(NotedRun::check(&dir).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
