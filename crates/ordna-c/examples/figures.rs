//! Compares the cost of a call through C and of a typed call with that of the same call in Rust, in
//! nanoseconds.
//!
//! A store of 1,000 keys fits into the cache, so the difference is the cost of the interface.
//! Rounds alternate.

#![expect(unsafe_code, reason = "calls the functions of C")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use ordna::tuple::encode;
use ordna::{Store, Table};
use ordna_c::{OrdnaSlice, OrdnaStore};

const KEYS: u64 = 1000;
const CALLS: u64 = 200_000;
const ROUNDS: usize = 25;

type Get = unsafe extern "C" fn(*const OrdnaStore, OrdnaSlice, *mut u8, usize, *mut usize) -> i32;
type Put = unsafe extern "C" fn(*const OrdnaStore, OrdnaSlice, OrdnaSlice) -> i32;

/// Measures calls alternately, and returns the median of the nanoseconds per call for each of them.
fn medians<const N: usize>(mut calls: [(&'static str, &mut dyn FnMut(u64)); N]) -> [f64; N] {
    let mut taken = [const { Vec::new() }; N];
    for _ in 0..ROUNDS {
        for (at, (_, call)) in calls.iter_mut().enumerate() {
            let began = Instant::now();
            for number in 0..CALLS {
                call(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32);
            }
            taken[at].push(began.elapsed().as_nanos() as f64 / CALLS as f64);
        }
    }
    let medians = taken.map(|mut taken| {
        taken.sort_by(f64::total_cmp);
        taken[ROUNDS / 2]
    });
    for ((name, _), median) in calls.iter().zip(medians) {
        println!("{name:42}{median:8.1} ns");
    }
    medians
}

fn main() {
    let keys: Vec<[u8; 8]> = (0..KEYS).map(|key| (key * 7919).to_be_bytes()).collect();
    let key = |number: u64| &keys[(number % KEYS) as usize];
    let rust: Store<[u8], [u8]> = Store::new();
    let typed: Table<u64, u64> = Table::over(Arc::new(Store::new()));
    let mut c: *mut OrdnaStore = std::ptr::null_mut();
    // SAFETY: the places for handles are variables of this function; slices are of live arrays.
    let slice = |bytes: &[u8]| OrdnaSlice { data: bytes.as_ptr(), len: bytes.len() };
    // SAFETY: as above.
    assert_eq!(unsafe { ordna_c::ordna_new(0, &mut c) }, 0);
    for number in 0..KEYS {
        rust.insert(key(number), &number.to_le_bytes()).expect("short keys");
        typed.insert(&(number * 7919), &number).expect("short keys");
        // SAFETY: as above.
        let put =
            unsafe { ordna_c::ordna_put(c, slice(key(number)), slice(&number.to_le_bytes())) };
        assert_eq!(put, 0);
    }
    // Function pointers prevent inlining across the interface.
    let (get_c, put_c): (Get, Put) = black_box((ordna_c::ordna_get, ordna_c::ordna_put));

    let get = medians([
        ("get, Rust", &mut |number| {
            let mut buffer = [0_u8; 8];
            rust.get_with(key(number), |value| buffer.copy_from_slice(value)).expect("present");
            assert_eq!(u64::from_le_bytes(buffer), number % KEYS);
        }),
        ("get, C", &mut |number| {
            let (mut buffer, mut length) = ([0_u8; 8], 0);
            // SAFETY: as above.
            let status =
                unsafe { get_c(c, slice(key(number)), buffer.as_mut_ptr(), 8, &mut length) };
            assert_eq!((status, u64::from_le_bytes(buffer)), (0, number % KEYS));
        }),
    ]);
    let put = medians([
        ("put, Rust", &mut |number| {
            let value = (number % KEYS).to_le_bytes();
            rust.put(key(number), value).expect("short keys");
        }),
        ("put, C", &mut |number| {
            let value = (number % KEYS).to_le_bytes();
            // SAFETY: as above.
            assert_eq!(unsafe { put_c(c, slice(key(number)), slice(&value)) }, 0);
        }),
    ]);
    println!(
        "C over Rust: get {:+.1} ns, put {:+.1} ns (bar: 15)",
        get[1] - get[0],
        put[1] - put[0]
    );

    let encoded: Vec<Vec<u8>> = (0..KEYS).map(|key| encode(&(key * 7919))).collect();
    let bytes = typed.store();
    let typed_get = medians([
        ("get of encoded bytes", &mut |number| {
            let value = bytes.get_with(&encoded[(number % KEYS) as usize], |value| {
                u64::from_le_bytes(value.try_into().expect("8 bytes"))
            });
            assert_eq!(value, Some(number % KEYS));
        }),
        ("encoding alone", &mut |number| {
            let mut out = Vec::with_capacity(16);
            ordna::tuple::Encode::encode(&(number % KEYS * 7919), &mut out);
            black_box(out);
        }),
        ("get of a typed map", &mut |number| {
            let value = typed.get(&(number % KEYS * 7919)).expect("of this type");
            assert_eq!(value, Some(number % KEYS));
        }),
    ]);
    let over = typed_get[2] - typed_get[0];
    println!("typed over untyped: {over:+.1} ns; the encoding alone takes {:.1} ns", typed_get[1]);
    // SAFETY: this is the last use of the handle.
    unsafe { ordna_c::ordna_free(c) };
}
