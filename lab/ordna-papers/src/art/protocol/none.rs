//! No synchronization: the borrow checker ensures that only one thread uses the tree.

use super::{Free, Latch, Protocol, Restart, WriteMode};

/// Nodes without locks.
#[derive(Debug)]
pub struct Unsynchronized;

impl Protocol for Unsynchronized {
    type Lock = ();
    type Read = Free;
    type Write = Free;
    const READERS_NOTICE: bool = true;
}

impl Latch for () {
    type Held<'a> = ();

    fn lock(&self) -> Result<(), Restart> {
        Ok(())
    }
    fn unlock_obsolete((): ()) {}
    fn is_idle(&self) -> bool {
        true
    }
}

impl WriteMode<()> for Free {
    fn upgrade(_: &(), (): ()) -> Result<(), Restart> {
        Ok(())
    }
}
