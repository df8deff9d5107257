//! Uses arbitrary bytes as the files of a backup. The reader returns a store whose keys ascend, or
//! an error. It does not panic, and allocates no more than the bytes justify.
//!
//! `cargo +nightly fuzz run backup`
#![no_main]

#[path = "../../crates/ordna/tests/durability/disk.rs"]
#[allow(dead_code)]
mod disk;

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ordna::durability::{OpenOptions, Progress, Storage, fuzzing, verify};
use ordna::{OrderedIndex, Store};

fuzz_target!(|input: (u8, u16, &[u8], &[u8])| {
    let (form, count, first, second) = input;
    let model = disk::Model::new();
    let dir = Path::new("/b");
    model.create_dir(dir).unwrap();
    if form & 1 == 0 {
        // Correct checksums around the bytes.
        let counts = (u64::from(count & 0xFF), u64::from(count >> 8));
        fuzzing::write_backup(&model, dir, (first, counts.0), (second, counts.1)).unwrap();
    } else {
        for (name, bytes) in [("MANIFEST", first), ("shard-0000", second)] {
            let file = model.create(&dir.join(name)).unwrap();
            file.write(bytes).unwrap();
        }
    }
    let options = OpenOptions::new().storage(Arc::new(model.clone()));
    let restored = Store::<[u8], [u8]>::restore(dir, options);
    let verified = verify(&model, dir, &Progress::default());
    assert_eq!(restored.is_ok(), verified.is_ok());
    if let Ok(store) = restored {
        store.check_invariants().unwrap();
    }
});
