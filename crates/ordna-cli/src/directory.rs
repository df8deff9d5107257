//! Directories of stores, opened without a server.

use std::path::Path;

use anyhow::bail;
use ordna::{OpenOptions, Store};

/// Key of the entry that a server writes into its data directories, and the beginning of its value.
const SERVER: (&[u8], &[u8]) = (&[0xFF, 0], b"ordna-server keyspace layout ");

/// Opens the store in a directory, like a program that uses the library.
///
/// # Errors
/// The directory does not exist (unless `create` is set), is in use, belongs to a server, or holds
/// keys and values of other types than bytes.
pub fn open(path: &Path, create: bool) -> anyhow::Result<Store<[u8], [u8]>> {
    let shown = path.display();
    if !create && !path.is_dir() {
        bail!("there is no directory {shown}; `ordna shell --create` makes one");
    }
    let store: Store<[u8], [u8]> = Store::open(path, OpenOptions::new())?;
    let is_server = store.get_with(SERVER.0, |value| value.starts_with(SERVER.1));
    if is_server == Some(true) {
        bail!(
            "{shown} is the directory of a server, which stores keys in a form of its own: start \
             `ordna serve --dir {shown}`, and leave the directory away here"
        );
    }
    Ok(store)
}
