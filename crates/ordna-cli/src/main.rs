//! The `ordna` program.
fn main() {}
