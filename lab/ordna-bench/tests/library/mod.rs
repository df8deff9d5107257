//! Builds a plug-in from a few lines of C.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `peer.c` with these definitions.
pub fn build(name: &str, definitions: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lib{name}.so"));
    let set = |name: &str| definitions.iter().any(|definition| definition.starts_with(name));
    let mut command = Command::new("cc");
    command.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]);
    for default in ["VERSION_OFF", "WRONG", "TOO_MANY", "CRASH"].iter().filter(|name| !set(name)) {
        command.arg(format!("-D{default}=0"));
    }
    command.args(definitions.iter().map(|definition| format!("-D{definition}")));
    command.arg("-I").arg(root.join("../../include")).arg("-o").arg(&library);
    let done = command.arg(root.join("tests/peer.c")).status().expect("a C compiler is needed");
    assert!(done.success());
    library
}
