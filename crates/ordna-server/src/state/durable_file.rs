//! Files that are replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Replaces a file: a reader, also after a power failure, finds the old content or the new. The file
/// keeps its permissions.
pub fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    // A link stays a link.
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let mut new = file.clone().into_os_string();
    new.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(new);
    let written = File::create(&new).and_then(|mut open| {
        if let Ok(known) = fs::metadata(&file) {
            open.set_permissions(known.permissions())?;
        }
        open.write_all(content)?;
        open.sync_all()
    });
    let renamed = written.and_then(|()| fs::rename(&new, &file));
    if renamed.is_err() {
        // The error of the write matters more than that of the removal.
        let _ = fs::remove_file(&new);
    }
    renamed?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
