//! Runs the programs in `examples`, which check what they print.

#[path = "../examples/cache.rs"]
mod cache;
#[path = "../examples/event_log.rs"]
mod event_log;
#[path = "../examples/leaderboard.rs"]
mod leaderboard;
#[path = "../examples/memtable/main.rs"]
mod memtable;
#[path = "../examples/report.rs"]
mod report;

#[test]
fn a_cache_has_expiry_and_a_limit() {
    cache::main().unwrap();
}

#[test]
fn an_event_log_is_complete_after_a_restart() {
    event_log::main().unwrap();
}

#[test]
fn a_leaderboard_is_exact() {
    leaderboard::main().unwrap();
}

#[test]
fn a_memtable_has_versions_in_order() {
    memtable::main().unwrap();
}

#[test]
fn reports_see_one_moment() {
    report::main().unwrap();
}
