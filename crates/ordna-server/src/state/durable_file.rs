//! Durable replacement of whole files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ordna::durability::Storage;

/// Replaces a file. A reader finds either the old or the new content, even after a power failure,
/// and the new content after this function has returned. The file keeps its permissions.
///
/// # Errors
/// The former file is kept or, if only its directory could not be synced, it may have the new
/// content.
pub fn replace(storage: &dyn Storage, file: &Path, content: &[u8]) -> io::Result<()> {
    // If the path is a link, the link is kept.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let mut new = file.clone().into_os_string();
    new.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(new);
    // An earlier process with the same number may have left the file.
    let _ = storage.remove(&new);
    let renamed = write(storage, &file, &new, content).and_then(|()| storage.rename(&new, &file));
    if renamed.is_err() {
        // The error of the write is more important than that of the removal.
        let _ = storage.remove(&new);
    }
    renamed?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    storage.sync_dir(folder.unwrap_or(Path::new(".")))
}

/// Writes a file that replaces another one, durably.
fn write(storage: &dyn Storage, file: &Path, new: &Path, content: &[u8]) -> io::Result<()> {
    let open = storage.create(new)?;
    if let Ok(known) = fs::metadata(file) {
        match fs::set_permissions(new, known.permissions()) {
            // The file is not on this machine's disk; then the rename fails.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            done => done?,
        }
    }
    let mut rest = content;
    while !rest.is_empty() {
        let written = open.write(rest)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        rest = rest.get(written..).unwrap_or_default();
    }
    open.sync()
}
