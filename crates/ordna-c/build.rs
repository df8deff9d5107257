//! Sets the name by which programs request the shared library. It changes with each version that
//! may change the ABI. Before 1.0, these are the minor versions.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
        let abi = if major == "0" { format!("0.{minor}") } else { major.to_owned() };
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libordna_c.so.{abi}");
    }
}
