//! Models of ROWEX's prefix changes: every interleaving of a reader with a split and with a merge.
//!
//! The model has a node of level 3 below the byte 'a', with the prefix "bc", so its keys start with
//! "abc". A split inserts a node of level 1 above it, and a merge removes that node. The link and
//! the prefix change in two stores.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use ordna_base::sync::explore;
use ordna_papers::art::{AtomicPrefix, Prefix};

const KEY: &[u8] = b"abc";
const LEVEL: usize = 3;

struct Tree {
    /// Depth at which a reader that follows the links reaches the node: 1 directly, 2 through the
    /// other node.
    depth: AtomicUsize,
    prefix: AtomicPrefix,
}

fn tree(depth: usize) -> Arc<Tree> {
    let prefix = AtomicPrefix::new(Prefix::new(&KEY[depth..]));
    Arc::new(Tree { depth: AtomicUsize::new(depth), prefix })
}

/// Checks the bytes of the key that a reader takes from a prefix, given where it entered. If the
/// prefix does not fit, a reader would read a record instead.
fn read(tree: &Tree) {
    let depth = tree.depth.load(Ordering::Acquire);
    let prefix = tree.prefix.load();
    if prefix.fits(depth, LEVEL) {
        let (bytes, len) = prefix.stored();
        assert_eq!(&bytes[..len], &KEY[depth..], "bytes of another depth were taken for these");
    }
}

fn with_readers(tree: Arc<Tree>, write: impl FnOnce(&Tree)) {
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let tree = tree.clone();
            thread::spawn(move || read(&tree))
        })
        .collect();
    write(&tree);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    let (depth, prefix) = (tree.depth.load(Ordering::Acquire), tree.prefix.load());
    assert!(prefix.fits(depth, LEVEL), "the change is complete");
    read(&tree);
}

#[test]
fn a_split_links_and_then_cuts() {
    explore(None, || {
        with_readers(tree(1), |tree| {
            tree.depth.store(2, Ordering::Release);
            tree.prefix.store(tree.prefix.load().without_first(1));
        });
    });
}

#[test]
fn a_merge_joins_and_then_links() {
    explore(None, || {
        with_readers(tree(2), |tree| {
            tree.prefix.store(Prefix::new(b"").joined(KEY[1], tree.prefix.load()));
            tree.depth.store(1, Ordering::Release);
        });
    });
}
