//! Checks the cost of an empty index that the front page of the crate states.

use ordna_papers::hydralist::HydraOptions;
use ordna_papers::topology::Topology;
use ordna_papers::{
    ArtCoupling, ArtHtm, ArtOlc, ArtRowex, HydraList, Nitro, OrderedIndex, Pi, SkipList, Wormhole,
};

fn costs_at_most(index: &impl OrderedIndex<Key = u64, Value = u64>, bytes: usize) {
    let usage = index.memory_usage();
    assert!(usage.total() <= bytes, "more than {bytes}: {usage:?}");
}

#[test]
fn an_empty_index_costs_what_the_front_page_says() {
    costs_at_most(&ArtCoupling::new(), 2_100);
    costs_at_most(&ArtOlc::new(), 2_100);
    costs_at_most(&ArtRowex::new(), 2_100);
    costs_at_most(&ArtHtm::new(), 2_100);
    let one_node = HydraOptions { topology: Topology::single(), ..HydraOptions::default() };
    costs_at_most(&HydraList::<u64, u64>::with(&one_node), 11_600);
    costs_at_most(&SkipList::new(), 200);
    costs_at_most(&Nitro::new(), 0);
    costs_at_most(&Pi::new(), 700);
    costs_at_most(&Wormhole::<u64, u64>::new(), 3_300);
}
