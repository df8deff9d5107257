//! Backups of the indexes, and their recovery at a restart.

use std::sync::Arc;

use ordna::durability::BackupOptions;
use ordna_secondary::Read;

use crate::indexes::definitions::{Definitions, error_text, missing};
use crate::indexes::resume_file::{self, Replay, Resume, Token};
use crate::indexes::service::Indexes;
use crate::indexes::snapshot_point::PATIENCE;
use crate::keyspace::Keyspace;

impl Indexes {
    /// Backs up the indexes after a backup of the keyspace with the metadata `token`. Waits for
    /// commands that hold the keyspace, so the caller must not hold it.
    ///
    /// # Errors
    /// A text for the log. The next start then rebuilds the indexes.
    pub fn back_up(&self, keys: &Keyspace, token: &Token) -> Result<(), String> {
        let _one = self.backup.lock();
        let running = self.running.get().filter(|_| self.are_active());
        let (Some(dir), Some(running)) = (self.backup_directory(), running) else { return Ok(()) };
        {
            // When this lock is held, all writes before the keyspace's backup have been reported.
            let _exclusive = self.commands.exclusive();
            self.covered.deadlines.lock().begin_backup();
        }
        let service = &running.service;
        let options = BackupOptions::new().background(true).workers(1);
        let done = (service.view(&Read::request_plus().timeout(PATIENCE)))
            .and_then(|_| service.back_up(1, &options))
            .map_err(error_text);
        let expiring = self.covered.deadlines.lock().end_backup();
        let backup = done?;
        // The log must not lose a change that the indexes' backup contains.
        keys.store().sync_log().map_err(|error| error.to_string())?;
        resume_file::save(&dir, token, running.source.identity(), &backup.path, &expiring)
    }

    /// Returns a collector for the keys that the log changes, or `None` if there is no backup of
    /// the indexes from which to resume.
    pub fn replay(&self) -> Option<Arc<Replay>> {
        let definitions = Definitions::read(self.file.as_deref()?).ok()??;
        Replay::read(&self.backup_directory()?, definitions.prefixes()).map(Arc::new)
    }

    /// Restores the indexes that the file defines, or rebuilds them. Called once, after the
    /// keyspace was loaded.
    ///
    /// # Errors
    /// The file cannot be read, or the service rejects one of its indexes. Definitions then cannot
    /// be changed, so that the file stays as it is.
    pub fn restore(&self, resume: Option<Resume>) -> Result<(), String> {
        self.restore_defined(resume).inspect_err(|reason| {
            // Only one thread restores.
            let _ = self.broken.set(reason.clone());
        })
    }

    fn restore_defined(&self, resume: Option<Resume>) -> Result<(), String> {
        let Some(file) = self.file.as_deref() else { return Ok(()) };
        let Some(read) = Definitions::read(file)? else {
            let backups = self.backup_directory().filter(|dir| dir.exists());
            return backups.map_or(Ok(()), |dir| Err(missing(file, &dir)));
        };
        let mut definitions = self.definitions.lock();
        if read.len() == 0 {
            *definitions = read;
            return Ok(());
        }
        // Announced before the service reads documents.
        self.announce(&read);
        let resumes = resume.is_some();
        if let Err(error) = self.start_from(resume) {
            if !resumes {
                return Err(error);
            }
            tracing::warn!(error, "the backup of the indexes is not used");
            self.start_from(None)?;
        }
        let service = self.service()?;
        let mut missing = read.library_indexes();
        let mut restored = 0;
        for info in service.list() {
            let name = &info.definition.name;
            let is_wanted = missing.get(name).is_some_and(|(definition, number)| {
                *definition == info.definition && number.is_none_or(|number| number == info.uid)
            });
            if is_wanted {
                missing.remove(name);
                restored += 1;
            } else {
                service.drop_index(name).map_err(error_text)?;
            }
        }
        tracing::info!(restored, built = missing.len(), "indexes");
        for (definition, number) in missing.into_values() {
            service.create_numbered(definition, number).map_err(error_text)?;
        }
        *definitions = read;
        Ok(())
    }
}
