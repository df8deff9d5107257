//! The types of values, and the bytes that identify the stored form of a collection.

/// First byte of a collection. It occurs neither in UTF-8 text nor in MessagePack.
pub const MARK: u8 = 0xC1;
/// The byte after [`MARK`] of a hash that is a list of fields.
pub const LIST: u8 = 1;
/// The byte after [`MARK`] of a hash that is a table of fields.
pub const TABLE: u8 = 2;
/// The byte after [`MARK`] of the head of a large collection.
pub const HEAD: u8 = 3;
/// The byte after [`MARK`] of a small list, set or sorted set.
pub const PACKED: u8 = 4;

/// The types of values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    String,
    Hash,
    List,
    Set,
    ZSet,
}

impl ValueKind {
    pub const ALL: [Self; 5] = [Self::String, Self::Hash, Self::List, Self::Set, Self::ZSet];

    #[inline]
    pub fn of(stored: &[u8]) -> Self {
        match stored {
            [MARK, form, rest @ ..] => Self::of_form(*form, rest),
            _ => Self::String,
        }
    }

    fn of_form(form: u8, rest: &[u8]) -> Self {
        match (form, rest) {
            (LIST | TABLE, _) => Self::Hash,
            (HEAD | PACKED, [kind, ..]) => Self::of_code(*kind).unwrap_or(Self::String),
            _ => Self::String,
        }
    }

    /// Returns the number of the type in records.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the type of this number.
    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Hash => "hash",
            Self::List => "list",
            Self::Set => "set",
            Self::ZSet => "zset",
        }
    }
}
