//! Uses arbitrary bytes as a log. The log is opened, possibly after a cut, or an error is returned,
//! without a panic. A log that was opened once is opened again with the same entries.
//!
//! `cargo +nightly fuzz run log`
#![no_main]

#[path = "../../crates/ordna/tests/durability/disk.rs"]
#[allow(dead_code)]
mod disk;

use std::path::Path;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use ordna::durability::{OpenOptions, Storage, fuzzing};
use ordna::{OrderedIndex, Options, Store};

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (form, count, bytes) = input;
    let model = disk::Model::new();
    let dir = Path::new("/d");
    model.create_dir(dir).unwrap();
    if form & 1 == 0 {
        fuzzing::write_segment(&model, dir, bytes, u64::from(count)).unwrap();
    } else {
        let file = model.create(&dir.join("log-0000000001")).unwrap();
        file.write(bytes).unwrap();
    }
    let open = || {
        let store = Options::new().clock(|| 0).background_collector(false);
        let options = OpenOptions::new().storage(Arc::new(model.clone())).store(store);
        Store::<[u8], [u8]>::open(dir, options)
    };
    let Ok(store) = open() else { return };
    store.check_invariants().unwrap();
    let all: Vec<_> = store.prefix(b"").collect();
    drop(store);
    assert!(open().unwrap().prefix(b"").eq(all));
});
