//! A cache with expiry and a memory limit. Run it with `cargo run --release -p ordna --example cache`.

use std::thread;
use std::time::Duration;

use ordna::{Error, Map, Options};

/// Removes the entries that expire soonest until a write fits.
fn put_or_evict(cache: &Map<u64, String>, key: u64, page: &str) -> Result<(), Error> {
    loop {
        match cache.insert_for(key, page, Duration::from_secs(60)) {
            Err(Error::MemoryLimit { .. }) => {
                if cache.pop_first()?.is_none() {
                    return Ok(());
                }
            }
            written => return written.map(drop),
        }
    }
}

pub(crate) fn main() -> Result<(), Error> {
    let cache: Map<u64, String> = Map::with_options(Options::new().memory_limit(32 << 20));

    // Entries expire without further calls.
    cache.insert_for(1, "short-lived", Duration::from_millis(20))?;
    assert_eq!(cache.get(1).as_deref(), Some("short-lived"));
    thread::sleep(Duration::from_millis(40));
    assert_eq!(cache.get(1), None);

    // A page is rendered once and then comes from the cache.
    let mut made = 0;
    for _ in 0..3 {
        cache.get_or_insert_with(2, || {
            made += 1;
            "a page".to_owned()
        })?;
    }
    assert_eq!(made, 1);

    // The limit bounds the memory: old pages make room for new ones.
    let page = "x".repeat(4_000);
    for key in 0..20_000 {
        put_or_evict(&cache, key, &page)?;
    }
    let (len, bytes) = (cache.len(), cache.memory_usage().total());
    assert!(len < 10_000 && cache.contains_key(19_999));
    println!("{len} pages in {bytes} bytes");
    Ok(())
}
