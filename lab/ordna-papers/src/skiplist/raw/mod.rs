//! Nodes, links and the protocol of the lock-free skip list.
//!
//! # Contract
//! Any number of threads call [`List::find`], [`List::locate`] and the three changes (insert,
//! replace, remove) at once, each under a guard of the list's collector. Everything but the links
//! of a node is written before the node is published and never again.
//!
//! # Layout
//! One allocation: the links, the highest level first, then the cells of the item, then its bytes.
//! A pointer to a node points between link 0 and the cells, so neither needs the height. Links
//! carry three tags: `MARK`, `TOP` on a node's highest link (which is how its height is known), and
//! `LINKED` on link 0. So a node is its links and its item: 24 bytes for a `u64` pair at level 0.
//!
//! # Invariants
//! 1. Level 0 decides. A node is in the list from the CAS that links it at level 0 until the CAS
//!    that marks its level-0 link. At most one unmarked node per key exists at level 0.
//! 2. A link is marked (low bit) once and then frozen. A node's upper links are all marked before
//!    its level-0 link is: a node whose link at some level was seen unmarked was in the list then.
//! 3. Levels are sorted. New nodes are linked behind an unmarked predecessor with a smaller key and
//!    in front of the first unmarked node with a key not smaller. Marked nodes between them are
//!    unlinked before. So no live node of a key stands before a dead one of the same key. The
//!    search that is to unlink the dead one would end there too early. A search may see a node
//!    above before it dies and below afterwards: hence the check for a twin in `link_upper`.
//! 4. A node is retired once, after it is unreachable: the later of its inserter (done linking the
//!    upper levels: `LINKED`) and its remover (all links marked: `MARK` on link 0) unlinks it at
//!    every level and then retires it. Both tags are set by exchanges of the same word, link 0, so
//!    exactly one of the two sees the other's.
//!
//! # Replacing
//! A value is replaced by one CAS on the old node's level-0 link, from the successor, unmarked, to
//! the new node, *marked*. That removes the old node and puts the new one in its place in the same
//! step: a reader that stands on the old node, or comes to it, finds the link marked and goes on to
//! the new one. Against a concurrent insert behind the old node, or a removal of it, the CAS on the
//! same word decides.
//!
//! # Where searches begin
//! At the head, or at a node of the [`shortcuts`]' table. A place found from there is known at the
//! lowest levels only. So the height of a node is drawn before the search for its place, and the
//! remover of a tall node searches from the head (`List::find_all`).
//!
//! # Progress
//! Lock-free. Reads write nothing, and begin again once at most, at the head. The links are
//! Harris', the multi-level protocol Fraser's and Herlihy and Shavit's; the Nitro paper (§2) names
//! both. Towers grow with p = 1/2 and not the paper's 1/4: measured with 10 M random `u64` (and
//! nodes eight bytes larger than today's), p = 1/4 saves 6 bytes a key and makes lookups a third
//! slower. A level then has 2.5 nodes on a search's way instead of 1.5, each of them a cache miss
//! on the lowest levels.

mod change;
mod list;
mod list_scan;
mod node;
mod options;
mod search;
mod shortcuts;
mod upkeep;

pub use self::list::{LANES, List};
pub use self::node::{MAX_HEIGHT, NodeRef};
pub use self::options::{Fanout, ListOptions};
pub use self::search::Place;
