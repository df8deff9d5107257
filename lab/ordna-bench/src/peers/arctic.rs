//! `arctic::ConcurrentMap`: a lock-free ART. Byte strings must not contain zero bytes.

use arctic::concurrent::Map;
use arctic::key::{BoxedSlice, NonNull, Slice};
use arctic::{ConcurrentMap, Order};
use ordna_base::entries::Sequence;

use crate::job::Job;
use crate::target::{Session, Shared};

pub struct Integers(ConcurrentMap<u64, u64>);
pub struct Bytes(ConcurrentMap<BoxedSlice<NonNull>, u64>);

pub fn integers() -> Shared<Integers> {
    Shared(Integers(Map::default()))
}

pub fn bytes() -> Shared<Bytes> {
    Shared(Bytes(Map::default()))
}

impl Session<u64> for &Integers {
    fn put(&mut self, key: &u64, value: u64) -> Option<bool> {
        Some(self.0.upsert(*key, value).old().is_none())
    }
    fn get(&mut self, key: &u64) -> Option<u64> {
        self.0.get(key).map(|value| *value)
    }
    fn remove(&mut self, key: &u64) -> bool {
        self.0.remove(key).is_some()
    }
    fn scan(&mut self, from: &u64, limit: usize, each: &mut dyn FnMut(&u64, u64)) {
        let range = self.0.range(*from..);
        let mut entries = range.entries(Order::Ascend);
        for _ in 0..limit {
            let Some((key, value)) = entries.lend() else { return };
            each(&key, *value);
        }
    }
}

/// Converts a key for the map. [`Session::refuses`] has checked that no key contains a zero byte.
fn checked(key: &[u8]) -> &Slice<NonNull> {
    Slice::new(key).unwrap_or_else(|_| panic!("a key with a zero byte"))
}

impl Session<[u8]> for &Bytes {
    fn put(&mut self, key: &[u8], value: u64) -> Option<bool> {
        Some(self.0.upsert(checked(key), value).old().is_none())
    }
    fn get(&mut self, key: &[u8]) -> Option<u64> {
        self.0.get(checked(key)).map(|value| *value)
    }
    fn remove(&mut self, key: &[u8]) -> bool {
        self.0.remove(checked(key)).is_some()
    }
    fn scan(&mut self, from: &[u8], limit: usize, each: &mut dyn FnMut(&[u8], u64)) {
        let range = self.0.range(checked(from)..);
        let mut entries = range.entries(Order::Ascend);
        for _ in 0..limit {
            let Some((key, value)) = entries.lend() else { return };
            each(key.as_ref(), *value);
        }
    }
    fn refuses(job: &Job<'_, [u8]>) -> Option<String> {
        let mut keys = (0..job.keys.len()).filter_map(|at| job.keys.get(at));
        keys.any(|key| key.contains(&0)).then(|| "keys must not hold zero bytes".to_owned())
    }
}
