//! The lock-free skip list.

use ordna_papers::skiplist::SkipList;

ordna_testkit::conformance! {
    mod u64_words: SkipList<u64, u64> = SkipList::new();
    mod u64_bytes: SkipList<u64, [u8]> = SkipList::new();
    mod bytes_words: SkipList<[u8], u64> = SkipList::new();
    mod bytes_bytes: SkipList<[u8], [u8]> = SkipList::new();
}
