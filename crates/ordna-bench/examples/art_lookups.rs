//! Looks up keys in a radix tree under one protocol, to count what a lookup costs: the difference
//! between a run with lookups and one without, divided by their number.
//!
//! `valgrind --tool=callgrind --cache-sim=yes target/release/examples/art_lookups olc 50000 100000`

use std::error::Error;
use std::hint::black_box;

use ordna_base::OrderedIndex;
use ordna_papers::art::ArtNone;
use ordna_papers::{ArtCoupling, ArtOlc, ArtRowex};

/// The finisher of SplitMix64: one to one, so no key comes twice.
fn key(n: u64) -> u64 {
    let mixed = (n ^ (n >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Looks up `lookups` of the keys, in another order than that of their insertion.
fn look_up(keys: u64, lookups: u64, get: impl Fn(&u64) -> Option<u64>) {
    for n in 0..lookups {
        let n = key(n) % keys;
        assert_eq!(black_box(get(&key(n))), Some(n));
    }
}

fn shared(
    index: &impl OrderedIndex<Key = u64, Value = u64>,
    keys: u64,
    lookups: u64,
) -> Result<(), ordna_base::Error> {
    for n in 0..keys {
        index.insert(&key(n), &n)?;
    }
    look_up(keys, lookups, |key| index.get(key));
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [protocol, keys, lookups] = arguments.as_slice() else {
        return Err("art_lookups none|coupling|olc|rowex KEYS LOOKUPS".into());
    };
    let (keys, lookups) = (keys.parse::<u64>()?.max(1), lookups.parse()?);
    match protocol.as_str() {
        "none" => {
            let mut index = ArtNone::<u64, u64>::new();
            for n in 0..keys {
                index.insert(&key(n), &n)?;
            }
            look_up(keys, lookups, |key| index.get(key));
        }
        "coupling" => shared(&ArtCoupling::new(), keys, lookups)?,
        "olc" => shared(&ArtOlc::new(), keys, lookups)?,
        "rowex" => shared(&ArtRowex::new(), keys, lookups)?,
        other => return Err(format!("no protocol {other:?}").into()),
    }
    Ok(())
}
