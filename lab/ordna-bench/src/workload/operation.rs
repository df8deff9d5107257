//! One operation of a workload.

/// An operation on the key at a position of the key set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Must find the key.
    Read,
    /// Must find the key that was inserted this many inserts of all threads ago: the "key" is this
    /// distance.
    Latest,
    /// May find the key, because another thread concurrently removes and inserts it.
    Look,
    /// Overwrites an existing key.
    Update,
    /// Reads an existing key and overwrites it.
    ReadUpdate,
    /// Inserts an absent key.
    Insert,
    /// Removes an existing key.
    Delete,
    /// Scans this number of entries from an existing key on.
    Scan(u16),
}

/// A group call to which an operation can belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// A call for gets.
    Get,
    /// A call for puts.
    Put,
    /// A call for removes.
    Remove,
}

impl Action {
    /// Returns the group call to which it can belong. A read-update belongs to two.
    pub fn call(self) -> Option<Call> {
        match self {
            Self::Read | Self::Latest | Self::Look => Some(Call::Get),
            Self::Update | Self::Insert => Some(Call::Put),
            Self::Delete => Some(Call::Remove),
            Self::ReadUpdate | Self::Scan(_) => None,
        }
    }
}

/// An operation, which takes 8 bytes and is read sequentially.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// The action.
    pub action: Action,
    /// Position of the key in the key set.
    pub key: u32,
}
