//! With many threads, every snapshot is a cut and never changes.

use ordna_papers::Nitro;
use ordna_papers::nitro::Order;
use ordna_testkit::snapshots;

#[test]
fn every_snapshot_is_a_cut() {
    for (collectors, order) in [(2, Order::LiveSet), (0, Order::LiveSet), (1, Order::Epochs)] {
        snapshots::check_cuts(&Nitro::with(collectors, order));
    }
}

#[cfg(unix)]
#[test]
fn the_end_of_a_snapshot_is_cheap_for_its_thread() {
    snapshots::check_cost_of_the_end(&Nitro::with(1, Order::LiveSet));
}
