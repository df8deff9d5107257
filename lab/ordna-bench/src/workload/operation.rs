//! One operation of a workload.

/// An operation on the key at a position of the key set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Must find the key.
    Read,
    /// Must find the key that was so many inserts ago, of all threads: the "key" is that distance.
    Latest,
    /// May find the key: another thread removes and inserts it meanwhile.
    Look,
    /// Overwrites a key that is there.
    Update,
    /// Reads a key that is there and overwrites it.
    ReadUpdate,
    /// Inserts a key that is not there.
    Insert,
    /// Removes a key that is there.
    Delete,
    /// Scans so many entries from the key on, which is there.
    Scan(u16),
}

/// The call for groups that an operation can be a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Of gets.
    Get,
    /// Of puts.
    Put,
    /// Of removes.
    Remove,
}

impl Action {
    /// The call for groups that it can be a part of; a read-update is of two.
    pub fn call(self) -> Option<Call> {
        match self {
            Self::Read | Self::Latest | Self::Look => Some(Call::Get),
            Self::Update | Self::Insert => Some(Call::Put),
            Self::Delete => Some(Call::Remove),
            Self::ReadUpdate | Self::Scan(_) => None,
        }
    }
}

/// One operation: 8 bytes, read in sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The action.
    pub action: Action,
    /// Position of the key in the key set.
    pub key: u32,
}
