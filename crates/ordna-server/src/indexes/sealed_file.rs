//! Files of JSON with a checksum, which are replaced as a whole. See `docs/FORMAT.md`.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use ordna::checksum::{seal, unseal};
use serde::de::DeserializeOwned;

/// Reads a file, and returns its content and whether it has a checksum, which older versions did
/// not write. Returns `None` if there is no such file.
///
/// # Errors
/// It cannot be determined whether the file exists, or its content is damaged.
pub fn read<T: DeserializeOwned>(file: &Path) -> Result<Option<(T, bool)>, String> {
    let shown = file.display();
    let text = match fs::read(file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.map_err(|error| format!("{shown}: {error}"))?,
    };
    let (json, is_sealed) = unseal(&text).ok_or_else(|| {
        format!("{shown}: the checksum in the last line is not that of the lines before it")
    })?;
    let content = serde_json::from_slice(json).map_err(|error| format!("{shown}: {error}"))?;
    Ok(Some((content, is_sealed)))
}

/// Replaces a file durably. A reader finds either the old or the new content.
///
/// # Errors
/// The former file is kept or, if only its directory could not be synced, it may have the new
/// content.
pub fn replace(file: &Path, json: Vec<u8>) -> io::Result<()> {
    let new = file.with_extension("new");
    let mut out = File::create(&new)?;
    out.write_all(&seal(json))?;
    out.sync_all()?;
    fs::rename(&new, file)?;
    match file.parent() {
        Some(directory) => File::open(directory)?.sync_all(),
        None => Ok(()),
    }
}
