//! Runs a test in a separate process.
//!
//! A test that counts the memory of the whole process would otherwise count that of concurrent
//! tests.

use std::process::Command;

/// Names the test for which the process is started.
const VARIABLE: &str = "ORDNA_OWN_PROCESS";

/// Runs `body` in a child process that runs nothing else. `test` is the path of the calling test.
pub fn in_own_process(test: &str, body: impl FnOnce()) {
    if std::env::var(VARIABLE).is_ok_and(|name| name == test) {
        return body();
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--test-threads=1", "--nocapture"])
        .env(VARIABLE, test)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    // With a wrong name, no test would run, and the process would succeed.
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}
