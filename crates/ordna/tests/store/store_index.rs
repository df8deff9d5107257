//! Tests of the store as an index, on its latest state, with nodes of the usual sizes and with tiny
//! ones.

use ordna::{Key, Options, Store, Value};

ordna_testkit::conformance! {
    mod u64_words: Store<u64, u64> = Store::new();
    mod u64_bytes: Store<u64, [u8]> = Store::new();
    mod bytes_words: Store<[u8], u64> = Store::new();
    mod bytes_bytes: Store<[u8], [u8]> = Store::new();
    mod tiny_u64_words: Store<u64, u64> = tiny(2, 3);
    mod tiny_u64_bytes: Store<u64, [u8]> = tiny(4, 4);
    mod tiny_bytes_words: Store<[u8], u64> = tiny(3, 3);
    mod tiny_bytes_bytes: Store<[u8], [u8]> = tiny(4, 3);
    mod snapped_u64_words: Snapped<u64, u64> = snapped(Options::new());
    mod snapped_bytes_bytes: Snapped<[u8], [u8]> = snapped(Options::new());
    mod snapped_tiny: Snapped<[u8], u64> = snapped(Options::new().sizes(4, 3));
}

/// Creates a store with small nodes, which are split or merged by nearly every write.
fn tiny<K: Key + ?Sized, V: Value + ?Sized>(slots: usize, fanout: usize) -> Store<K, V> {
    Store::with_options(Options::new().sizes(slots, fanout))
}

type Snapped<K, V> = ordna_testkit::snapshots::Snapped<Store<K, V>>;

fn snapped<K: Key + ?Sized, V: Value + ?Sized>(options: Options) -> Snapped<K, V> {
    Snapped::new(Store::with_options(options.background_collector(false)))
}
