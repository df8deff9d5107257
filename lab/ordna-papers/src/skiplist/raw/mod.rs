//! Nodes, links and the protocol of the lock-free skip list.
//!
//! # Contract
//! Any number of threads may concurrently call [`List::find`], [`List::locate`] and the three
//! changes (insert, replace, remove), each under a guard of the list's collector. Everything in a
//! node except its links is written before the node is published and never again.
//!
//! # Layout
//! A node is one allocation: the links, with the highest level first, then the cells of the item,
//! then its bytes. A pointer to a node points between link 0 and the cells, so neither access needs
//! the height. Links have three tags: `MARK`, `TOP` on a node's highest link (which determines its
//! height), and `LINKED` on link 0. So a node consists of its links and its item only: 24 bytes for
//! a `u64` pair on level 0.
//!
//! # Invariants
//! 1. Level 0 decides. A node is in the list from the CAS that links it on level 0 to the CAS that
//!    marks its level-0 link. On level 0, there is at most one unmarked node per key.
//! 2. A link is marked (low bit) once, and is then frozen. The upper links of a node are all marked
//!    before its level-0 link is. So a node whose link on some level was seen unmarked was in the
//!    list at that time.
//! 3. Levels are sorted. New nodes are linked after an unmarked predecessor with a smaller key and
//!    before the first unmarked node whose key is not smaller. Marked nodes between them are
//!    unlinked first. So no live node of a key is before a dead one of the same key; a search that
//!    has to unlink the dead one would end too early. A search may see a node on an upper level
//!    before it dies and on a lower level afterwards: hence the check for a twin in `link_upper`.
//! 4. A node is retired once, after it is unreachable: the later of its inserter (which has linked
//!    the upper levels: `LINKED`) and its remover (which has marked all links: `MARK` on link 0)
//!    unlinks it on every level and then retires it. Both tags are set by exchanges of the same
//!    word, link 0, so exactly one of the two sees the other's.
//!
//! # Replacing
//! A value is replaced by one CAS on the old node's level-0 link, from the unmarked successor to
//! the *marked* new node. This removes the old node and inserts the new one at its place in the
//! same step: a reader that is at the old node, or reaches it, finds the link marked and continues
//! to the new one. Against a concurrent insert after the old node, or a removal of it, the CAS on
//! the same word decides.
//!
//! # Where searches begin
//! A search begins at the head, or at a node of the table of [`shortcuts`]. A place that was found
//! from such a node is known only on the lowest levels. So the height of a node is drawn before the
//! search for its place, and the remover of a tall node searches from the head (`List::find_all`).
//!
//! # Progress
//! Lock-free. Reads write nothing, and restart at most once, at the head. The links are those of
//! Harris, and the multi-level protocol is that of Fraser and of Herlihy and Shavit; the Nitro
//! paper (§2) names both. Towers grow with p = 1/2 instead of the paper's 1/4. Measured with 10 M
//! random `u64` (and nodes that were eight bytes larger), p = 1/4 saves 6 bytes per key and makes
//! lookups a third slower. A search then passes 2.5 nodes on each level instead of 1.5, each of
//! which is a cache miss on the lowest levels.

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
