//! A memtable for an LSM engine, used instead of a skip list: versions of keys, reads at a sequence
//! number, freeze, ordered flush. Run it with `cargo run --release -p ordna --example memtable`.

mod versions;

use std::error::Error;
use std::sync::Arc;
use std::thread;

use versions::{Memtable, Version};

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let table = Arc::new(Memtable::new());
    // Several writers insert; the engine assigns the sequence numbers.
    thread::scope(|scope| {
        let writers: Vec<_> = (0..2_u64)
            .map(|writer| {
                let table = &table;
                scope.spawn(move || {
                    (0..1_000).try_for_each(|at| {
                        let key = format!("user:{:04}", at % 100);
                        table.put(key.as_bytes(), 1 + 2 * at + writer, Some(b"value"))
                    })
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().expect("no writer panics"))
    })?;
    table.put(b"user:0007", 3_000, None)?;

    // A read at a sequence number returns the newest version that is not newer than it.
    assert_eq!(table.get(b"user:0007", 2_999), Some(Version::Value(b"value".to_vec())));
    assert_eq!(table.get(b"user:0007", 3_000), Some(Version::Removed));
    assert_eq!(table.get(b"user:0007", 7), None);
    assert_eq!(table.get(b"user:00", u64::MAX), None);

    // The flush writes all versions in order; an engine writes the blocks of its table here.
    let size = table.bytes();
    let frozen = table.freeze();
    assert_eq!(frozen.get(b"user:0099", u64::MAX), Some(Version::Value(b"value".to_vec())));
    let (mut versions, mut removed, mut before) = (0, 0, None);
    frozen.flush(|key, sequence, value| {
        let here = (key.to_vec(), std::cmp::Reverse(sequence));
        assert!(before.as_ref().is_none_or(|before| *before < here), "{here:?} after {before:?}");
        versions += 1;
        removed += u32::from(value.is_none());
        before = Some(here);
        Ok::<(), std::convert::Infallible>(())
    })?;
    assert_eq!((versions, removed), (2_001, 1));
    println!("{versions} versions, {size} bytes, up to sequence number {}", frozen.newest());
    Ok(())
}
