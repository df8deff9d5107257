//! Gives the shared library the name that programs ask for: it changes with each version that may
//! change the ABI, which are the minor versions before 1.0.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
        let abi = if major == "0" { format!("0.{minor}") } else { major.to_owned() };
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libordna_c.so.{abi}");
    }
}
