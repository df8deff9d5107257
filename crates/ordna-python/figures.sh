#!/usr/bin/env bash
# All figures of the bindings in one run: C and typed maps against the Rust API, Python against
# sortedcontainers. Usage: figures.sh [keys]; measure on a quiet machine.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo build --quiet --release --locked -p ordna-c --features figures --example figures --manifest-path ../../Cargo.toml
python3 -m venv "$work"
"$work/bin/pip" install --quiet --disable-pip-version-check "maturin==1.16.*" -r tests/requirements.txt
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-../../target/python} \
    "$work/bin/maturin" build --quiet --release --out "$work/wheels"
"$work/bin/pip" install --quiet --disable-pip-version-check "$work"/wheels/*.whl
"${FIGURES_TARGET:-../../target}/release/examples/figures"
"$work/bin/python" figures.py "${1:-1000000}"
