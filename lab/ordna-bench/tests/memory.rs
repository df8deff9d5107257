//! This test has its own process, because other tests would change the resident set.

use ordna_bench::memory::{available, resident};

#[test]
fn resident_memory_follows_what_is_held() {
    let before = resident().unwrap();
    let held = vec![1_u8; 64 << 20];
    let with = resident().unwrap();
    assert!(with >= before + (60 << 20), "{before} {with}");
    assert_eq!(held.iter().map(|byte| usize::from(*byte)).sum::<usize>(), 64 << 20);
    drop(held);
    assert!(resident().unwrap() < before + (4 << 20));
    assert!(available().unwrap() > 0);
}
