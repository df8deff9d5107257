//! The interface for a crate that implements `ORDNA.INDEX` with its own indexes.

use std::fmt::Debug;

use serde_json::Value;

use crate::wire::reply::Replies;

/// A reply of an [`Extension`].
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// A status, without line breaks.
    Simple(String),
    /// A number.
    Integer(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// The null reply.
    Null,
    /// Several replies.
    Array(Vec<Answer>),
    /// Fields and values; a flat array in RESP2.
    Map(Vec<(&'static str, Answer)>),
}

impl Answer {
    /// Writes the reply.
    pub(crate) fn write(&self, out: &mut Replies) {
        match self {
            Self::Simple(text) => out.simple(text),
            Self::Integer(number) => out.integer(*number),
            Self::Bulk(bytes) => out.bulk(bytes),
            Self::Null => out.null(),
            Self::Array(items) => {
                out.array(items.len());
                items.iter().for_each(|item| item.write(out));
            }
            Self::Map(fields) => {
                out.map(fields.len());
                for (field, value) in fields {
                    out.bulk(field.as_bytes());
                    value.write(out);
                }
            }
        }
    }
}

/// Commands, metrics and pages that another crate adds to the server.
///
/// # Contract
/// All methods may be called by any thread. [`execute`](Self::execute) may block; the others must
/// return immediately.
pub trait Extension: Send + Sync + Debug {
    /// Executes `ORDNA.INDEX` or `ORDNA.NODE`. The first argument is the name of the command.
    ///
    /// # Errors
    /// The text of the error reply, which begins with its code.
    fn execute(&self, arguments: &[&[u8]]) -> Result<Answer, String>;

    /// Returns the lines `field:value` of the section `Nodes` of `INFO`, each followed by CR LF.
    fn info(&self) -> String;

    /// Returns families of metrics in the text format of Prometheus.
    fn metrics(&self) -> String;

    /// Returns the reason if the extension has failed and needs a restart. `/readyz` then fails
    /// with it.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Returns the tables that the console shows: a list of objects with `title`, `head` (texts; a
    /// column of numbers begins with `>`) and `rows` (lists of texts).
    fn console(&self) -> Value;
}
