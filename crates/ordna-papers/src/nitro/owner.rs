//! The owner of an engine: it ends the collectors.

use std::sync::Arc;

use super::engine::Engine;
use ordna_base::{Key, Value};

/// Ends the collectors when the last handle of store and snapshots goes.
pub(super) struct Owner<K: Key + ?Sized, V: Value + ?Sized>(pub Arc<Engine<K, V>>);

impl<K: Key + ?Sized, V: Value + ?Sized> Drop for Owner<K, V> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
