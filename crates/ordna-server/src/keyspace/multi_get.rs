//! `MGET` of many keys, read from a snapshot in several steps.

use crate::keyspace::snapshot::KeyspaceSnapshot;
use crate::keyspace::stored_value;
use crate::wire::reply::Replies;
use crate::wire::request::OwnedRequest;

/// Number of keys in a step, after which other connections are served.
const STRETCH: usize = 256;
/// Number of bytes after which a step ends.
const STRETCH_BYTES: usize = 1 << 20;

/// An `MGET` in progress.
#[derive(Debug)]
pub struct MultiGet {
    snapshot: KeyspaceSnapshot,
    request: OwnedRequest,
    /// The next argument to look up.
    at: usize,
    /// Bytes written so far.
    bytes: usize,
}

impl MultiGet {
    /// Prepares to look up all arguments of a request except its name.
    pub fn new(snapshot: KeyspaceSnapshot, request: OwnedRequest) -> Self {
        Self { snapshot, request, at: 1, bytes: 0 }
    }

    /// Looks up the keys of one step. Returns whether it was the last one.
    ///
    /// # Errors
    /// The reply would grow beyond `most` bytes; the caller drops the written part.
    pub fn step(&mut self, most: usize, out: &mut Replies) -> Result<bool, String> {
        let arguments = self.request.arguments();
        let before = out.bytes.len();
        if self.at == 1 {
            out.array(arguments.len() - 1);
        }
        let end = arguments.len().min(self.at + STRETCH);
        while self.at < end && out.bytes.len() - before < STRETCH_BYTES {
            let key = arguments.get(self.at);
            let written = self.bytes + out.bytes.len() - before;
            let fits = self.snapshot.get_with(key, |stored| {
                let value = stored_value::string(stored);
                let fits = written + value.map_or(0, <[u8]>::len) <= most;
                if fits {
                    out.bulk_or_null(value);
                }
                fits
            });
            match fits {
                Some(true) => {}
                Some(false) => return Err(too_large(most)),
                None => out.null(),
            }
            self.at += 1;
        }
        self.bytes += out.bytes.len() - before;
        Ok(self.at == arguments.len())
    }
}

/// Returns the error of a reply beyond the limit.
pub fn too_large(most: usize) -> String {
    format!("ERR the reply would exceed {most} bytes; ask for fewer keys")
}
