//! Directories of stores, opened without a server.

use std::path::Path;

use anyhow::bail;
use ordna::{OpenOptions, Store};

/// The entry that a server writes into its directories, and the begin of its value.
const SERVER: (&[u8], &[u8]) = (&[0xFF, 0], b"ordna-server keyspace layout ");

/// Opens the store of a directory, as the library does.
///
/// # Errors
/// The directory is not there (unless `create`), is in use, is the one of a server, or holds other
/// kinds of keys and values than bytes.
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
