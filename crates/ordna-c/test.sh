#!/usr/bin/env bash
# Tests the C library: C and C++ programs under AddressSanitizer with its leak check, the examples, "C in one minute" of docs/C.md against the installed library. Needs gcc and g++.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo test -p ordna-c --features header --test header --locked
./install.sh "$work/usr"
header=(-I"$work/usr/include")
static=("$work/usr/lib/libordna_c.a" -lpthread -ldl -lm)
warnings=(-Wall -Wextra -Werror -g -O1)
sanitize=(-fsanitize=address,undefined -fno-omit-frame-pointer)

gcc -std=gnu11 "${warnings[@]}" "${sanitize[@]}" "${header[@]}" tests/test.c "${static[@]}" -o "$work/c"
g++ -std=c++17 -Wpedantic "${warnings[@]}" "${sanitize[@]}" "${header[@]}" tests/test.cpp "${static[@]}" \
    -o "$work/cpp"
for program in c cpp; do
    mkdir "$work/$program.dir"
    ASAN_OPTIONS=detect_leaks=1 "$work/$program" "$work/$program.dir"
done
# The header compiles by itself in both languages.
for standard in c99 c11; do
    gcc -std=$standard -Wpedantic "${warnings[@]}" "${header[@]}" -fsyntax-only -include ordna.h -xc /dev/null
done
g++ -std=c++17 -Wpedantic "${warnings[@]}" "${header[@]}" -fsyntax-only -include ordna.hpp -xc++ /dev/null

gcc -std=c11 "${warnings[@]}" "${header[@]}" examples/places.c "${static[@]}" -o "$work/places"
g++ -std=c++17 "${warnings[@]}" "${header[@]}" examples/places.cpp "${static[@]}" -o "$work/places_cpp"
want=$'SE:Upplands Väsby:2666238\t36534\nSE:Uppsala:2666199\t177074'
for program in places places_cpp; do
    got=$(gzip -dc ../../data/places.tsv.gz | "$work/$program" SE:Upp)
    [[ $got == "$want"$'\n161662 places, then 160838'* ]] || { echo "$program: got $got" >&2; exit 1; }
done

# The four example programs in both languages: each prints the same in C and in C++.
declare -A prints=(
    [cache]=$'24 of 36 pages were found\nbob had 4 pages, 4 dropped; bobby has 4\nan expired page was created again\nfull: yes'
    [leaderboard]=$'Grace: 900\nEdsger: 600\nBarbara: 300\nAda is number 4 of 4 after 1200 games'
    [event_log]=$'5 events were dropped, 17 are kept\n1767269940 event 19\n1767269940 a second event\n1767269940 and a third one'
    [report]='21 reports agree'
)
for name in cache leaderboard event_log report; do
    gcc -std=c11 -Wpedantic "${warnings[@]}" "${sanitize[@]}" "${header[@]}" "examples/$name.c" "${static[@]}" -o "$work/$name.c.out"
    g++ -std=c++17 -Wpedantic "${warnings[@]}" "${sanitize[@]}" "${header[@]}" "examples/$name.cpp" "${static[@]}" \
        -o "$work/$name.cpp.out"
    for program in "$name.c" "$name.cpp"; do
        arguments=()
        [[ $name != event_log ]] || arguments=("$work/$program.dir")
        got=$(ASAN_OPTIONS=detect_leaks=1 "$work/$program.out" "${arguments[@]}")
        [[ $got == "${prints[$name]}" ]] || { echo "$program: got $got" >&2; exit 1; }
    done
done

# The unchanged example of the page, with the shared library that pkg-config finds.
section=$(sed -n '/^## C in one minute$/,/^## /p' ../../docs/C.md)
sed -n '/^```c$/,/^```$/p' <<<"$section" | sed '/^```/d' >"$work/minute.c"
sed -n '/^```text$/,/^```$/p' <<<"$section" | sed '/^```/d' >"$work/minute.out"
[[ -s $work/minute.c && -s $work/minute.out ]] || { echo "docs/C.md has no C example" >&2; exit 1; }
if command -v pkg-config >/dev/null; then
    read -ra flags < <(PKG_CONFIG_PATH="$work/usr/lib/pkgconfig" pkg-config --cflags --libs ordna)
else
    flags=("${header[@]}" -L"$work/usr/lib" -lordna_c)
fi
gcc -std=c11 "${warnings[@]}" "$work/minute.c" "${flags[@]}" -o "$work/minute"
# The flags of pkg-config contain the folder of the library. Otherwise it is passed to the loader.
if command -v pkg-config >/dev/null; then
    "$work/minute" | diff "$work/minute.out" -
else
    LD_LIBRARY_PATH=$work/usr/lib "$work/minute" | diff "$work/minute.out" -
fi
library=$(readlink -f "$work/usr/lib/libordna_c.so")
size=$(stat -c %s "$library")
(( size < 3000000 )) || { echo "the library has $size bytes, 3 MB or more" >&2; exit 1; }
if command -v valgrind >/dev/null; then
    mkdir "$work/valgrind"
    gcc -std=c11 "${warnings[@]}" "${header[@]}" tests/backup.c "${static[@]}" -o "$work/backup"
    valgrind --quiet --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite \
        "$work/backup" "$work/valgrind/store"
fi
if command -v cmake >/dev/null; then
    mkdir "$work/cmake"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.10)' 'project(minute C)' 'find_package(ordna 0.1 REQUIRED)' \
        'add_executable(minute minute.c)' 'target_link_libraries(minute ordna::ordna)' >"$work/cmake/CMakeLists.txt"
    cp "$work/minute.c" "$work/cmake/"
    cmake -S "$work/cmake" -B "$work/cmake/build" -DCMAKE_PREFIX_PATH="$work/usr" >/dev/null
    cmake --build "$work/cmake/build" >/dev/null
    "$work/cmake/build/minute" | diff "$work/minute.out" -
fi
echo "c: all passed"
