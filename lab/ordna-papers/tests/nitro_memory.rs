//! Memory of versions that collectors free: counted for the whole process, so this file has one
//! test.

use ordna_papers::Nitro;
use ordna_papers::nitro::Order;
use ordna_testkit::snapshots::check_memory_after_churn;

ordna_testkit::count_memory!();

#[test]
fn memory_after_churn_is_that_of_the_live_data() {
    check_memory_after_churn(|| Nitro::with(2, Order::LiveSet));
}
