#!/usr/bin/env bash
# Builds the library and installs it with its headers and its files for pkg-config and CMake.
# Usage: install.sh PREFIX
set -euo pipefail
prefix=$(mkdir -p "$1" && cd "$1" && pwd)
cd "$(dirname "$0")"
target=${CARGO_TARGET_DIR:-../../target}
cargo build --quiet --release --locked -p ordna-c
version=$(cargo pkgid -p ordna-c | sed 's/.*[#@]//')
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/lib/cmake/ordna"
cp include/ordna.h include/ordna.hpp "$prefix/include/"
cp "$target/release/libordna_c.a" "$prefix/lib/"
# The name that programs request (build.rs) and the name for the linker are links to the file.
cp "$target/release/libordna_c.so" "$prefix/lib/libordna_c.so.$version"
abi=${version%%.*}
[[ $abi != 0 ]] || abi=${version%.*}
ln -sf "libordna_c.so.$version" "$prefix/lib/libordna_c.so.$abi"
ln -sf "libordna_c.so.$abi" "$prefix/lib/libordna_c.so"
# Symbols that no program needs take nine tenths of the file.
! command -v strip >/dev/null || strip --strip-unneeded "$prefix/lib/libordna_c.so.$version"
sed "s|@PREFIX@|$prefix|; s|@VERSION@|$version|" ordna.pc.in >"$prefix/lib/pkgconfig/ordna.pc"
for file in ordnaConfig ordnaConfigVersion; do
    sed "s|@VERSION@|$version|; s|@ABI@|$abi|" "$file.cmake.in" >"$prefix/lib/cmake/ordna/$file.cmake"
done
