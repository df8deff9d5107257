//! Runs models under loom and prints how many executions each has.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs all executions of a model, or those with at most `preemptions` preemptions, and prints
/// their number after the test's name.
///
/// # Panics
/// Panics if there is only one execution, because such a model shows nothing.
pub fn explore(preemptions: Option<usize>, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    let executions = Arc::new(AtomicUsize::new(0));
    let counted = executions.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        body();
    });
    let executions = executions.load(Ordering::Relaxed);
    let thread = std::thread::current();
    println!("\nexplored {} {executions}", thread.name().unwrap_or_default());
    assert!(executions > 1, "the model has a single execution");
}
