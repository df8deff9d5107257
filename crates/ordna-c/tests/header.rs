//! Checks that the committed header is what cbindgen generates from the sources.

#[test]
fn the_header_is_that_of_the_sources() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    let bindings =
        cbindgen::Builder::new().with_crate(here).with_config(config).generate().unwrap();
    let mut made = Vec::new();
    bindings.write(&mut made);
    let path = here.join("include/ordna.h");
    if std::env::var_os("ORDNA_BLESS").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    let made = String::from_utf8(made).unwrap();
    assert!(
        made == committed,
        "run ORDNA_BLESS=1 cargo test -p ordna-c --features header, and look at the changes"
    );
}
