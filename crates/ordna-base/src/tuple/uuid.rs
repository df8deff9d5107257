//! UUIDs, in the order of their bytes.

use uuid::Uuid;

use super::value::as_value;
use super::{Decode, DecodeError, Encode, Like, Reader, Value};

impl From<Uuid> for Value {
    fn from(id: Uuid) -> Self {
        Self::Uuid(id.into_bytes())
    }
}

as_value! {
    Uuid, Uuid(bytes => Some(Self::from_bytes(bytes))), "a UUID";
}
