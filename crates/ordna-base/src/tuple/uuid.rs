//! UUIDs, in the order of their bytes.

use uuid::Uuid;

use super::encode::{Decode, Encode, Like};
use super::read::{DecodeError, Reader};
use super::value::Value;
use super::value::as_value;

impl From<Uuid> for Value {
    fn from(id: Uuid) -> Self {
        Self::Uuid(id.into_bytes())
    }
}

as_value! {
    Uuid, Uuid(bytes => Some(Self::from_bytes(bytes))), "a UUID";
}
