//! Nitro as an index: its latest state, with and without concurrent snapshots.

use ordna_base::{Key, Value};
use ordna_papers::Nitro;
use ordna_papers::nitro::{NitroOptions, Order};

ordna_testkit::conformance! {
    mod u64_bytes: Nitro<u64, [u8]> = Nitro::new();
    mod bytes_words: Nitro<[u8], u64> = Nitro::new();
    mod published: Nitro<u64, u64> = Nitro::with_options(NitroOptions::published());
    mod snapped_u64_words: Snapped<u64, u64> = snapped(Order::LiveSet);
    mod snapped_bytes_bytes: Snapped<[u8], [u8]> = snapped(Order::LiveSet);
    mod snapped_by_terms: Snapped<u64, u64> = snapped(Order::Epochs);
}

type Snapped<K, V> = ordna_testkit::snapshots::Snapped<Nitro<K, V>>;

fn snapped<K: Key + ?Sized, V: Value + ?Sized>(order: Order) -> Snapped<K, V> {
    Snapped::new(Nitro::with(0, order))
}
