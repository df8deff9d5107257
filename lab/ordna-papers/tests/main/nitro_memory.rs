//! Memory of versions that collectors free, counted for the whole process.

use ordna_papers::Nitro;
use ordna_papers::nitro::Order;
use ordna_testkit::snapshots::check_memory_after_churn;

use crate::own_process::in_own_process;

#[test]
fn memory_after_churn_is_that_of_the_live_data() {
    in_own_process("nitro_memory::memory_after_churn_is_that_of_the_live_data", || {
        check_memory_after_churn(|| Nitro::with(2, Order::LiveSet));
    });
}
