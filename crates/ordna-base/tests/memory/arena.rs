//! Memory of arenas.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::Barrier;
use std::sync::mpsc::channel;

use ordna_base::arena::{Arena, MOST};

/// Memory of an arena that holds its own address.
struct Piece(NonNull<u8>, usize);

// SAFETY: the memory belongs to the thread that holds it.
unsafe impl Send for Piece {}

impl Piece {
    fn new(arena: &Arena, size: usize) -> Self {
        let memory = arena.allocate(size).unwrap();
        assert!(Arena::owns(memory.as_ptr()) && memory.as_ptr().addr().is_multiple_of(8));
        // SAFETY: memory of this test's own, of 8 bytes at least.
        unsafe {
            memory.as_ptr().write_bytes(0xA5, size);
            memory.cast::<usize>().write(memory.as_ptr().addr());
        }
        Self(memory, size)
    }

    fn is_sparse(&self) -> bool {
        // SAFETY: not freed.
        unsafe { Arena::is_in_sparse_slab(self.0) }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: used by no other thread.
        unsafe {
            assert_eq!(self.0.cast::<usize>().read(), self.0.as_ptr().addr());
            Arena::free(self.0, self.1);
        }
    }
}

/// Returns pieces of many sizes that fill some slabs.
fn pieces(arena: &Arena, count: usize) -> Vec<Piece> {
    (0..count).map(|number| Piece::new(arena, 8 + number * 37 % (MOST - 7))).collect()
}

#[test]
fn memory_is_disjoint_and_used_again() {
    let arena = Arena::new();
    assert!(arena.allocate(MOST + 1).is_none());
    let mut all = pieces(&arena, 30_000);
    let (count, spare) = (arena.slabs(), arena.spare());
    assert!(count >= 3);
    let mut places: Vec<_> = all.iter().map(|piece| (piece.0.as_ptr().addr(), piece.1)).collect();
    places.sort_unstable();
    assert!(places.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
    // Half of the pieces are freed, and the same number is allocated again.
    let gone: Vec<_> = (0..all.len()).rev().step_by(2).map(|at| all.swap_remove(at)).collect();
    let sizes: Vec<_> = gone.iter().map(|piece| piece.1).collect();
    let freed: HashSet<_> = gone.iter().map(|piece| piece.0.as_ptr().addr()).collect();
    drop(gone);
    assert!(arena.spare() > spare);
    let again: Vec<_> = sizes.iter().map(|size| Piece::new(&arena, *size)).collect();
    assert!(again.iter().all(|piece| freed.contains(&piece.0.as_ptr().addr())));
    assert_eq!((arena.slabs(), arena.spare()), (count, spare));
}

/// In an arena with many slabs, threads have their own lists. A thread whose list is empty takes
/// over another list.
#[test]
fn a_thread_uses_the_memory_that_others_have_freed() {
    let arena = Arena::new();
    let mut all = pieces(&arena, 400_000);
    let slabs = arena.slabs();
    let mut gone: Vec<_> = (0..all.len()).rev().step_by(2).map(|at| all.swap_remove(at)).collect();
    let sizes: Vec<_> = gone.iter().map(|piece| piece.1).collect();
    while !gone.is_empty() {
        let part = gone.split_off(gone.len().saturating_sub(50_000));
        std::thread::spawn(move || drop(part)).join().unwrap();
    }
    all.extend(sizes.iter().map(|size| Piece::new(&arena, *size)));
    assert!(arena.slabs() <= slabs + 1, "{} slabs after {slabs}", arena.slabs());
}

#[test]
fn a_sparse_slab_gives_nothing_and_goes_with_its_last_memory() {
    let arena = Arena::new();
    let mut all = pieces(&arena, 60_000);
    let open = all.pop().unwrap();
    assert!(!arena.choose_sparse(false), "all are full");
    let full = arena.slabs();
    let mut keep = Vec::new();
    for (number, piece) in all.into_iter().enumerate() {
        if number.is_multiple_of(10) {
            keep.push(piece);
        }
    }
    assert!(arena.has_much_room(), "after so many bytes a stripe looks");
    assert!(arena.choose_sparse(false) && !arena.has_much_room());
    let chosen =
        keep.iter().filter(|piece| piece.is_sparse()).map(|at| at.0.as_ptr() as usize >> 21);
    let chosen = chosen.collect::<HashSet<_>>().len();
    assert!((1..=(full / 8).max(4)).contains(&chosen), "{chosen} of {full} are chosen");
    assert!(!open.is_sparse(), "an open slab is not chosen");
    arena.look();
    assert!(!arena.has_much_room(), "as many are sparse as may be");
    // Does what an owner that moves records does.
    loop {
        for piece in keep.iter_mut().filter(|piece| piece.is_sparse()) {
            let moved = Piece::new(&arena, piece.1);
            assert!(!moved.is_sparse(), "a sparse slab gives out nothing");
            *piece = moved;
        }
        // Freeing the last memory of a sparse slab has checked the state of the slabs.
        if !arena.has_much_room() {
            break;
        }
        arena.choose_sparse(false);
    }
    assert!(arena.slabs() <= 3, "{} of {full} are left", arena.slabs());
    assert!(arena.choose_sparse(true) && open.is_sparse());
    drop((keep, open));
    assert_eq!((arena.slabs(), arena.spare()), (0, 0));
}

#[test]
fn memory_outlives_its_arena() {
    let arena = Arena::new();
    let all = pieces(&arena, 10_000);
    let (first, last) = (all[0].0.as_ptr(), all[all.len() - 1].0.as_ptr());
    drop((arena.clone(), arena));
    assert!(Arena::owns(first) && Arena::owns(last));
    drop(all);
    assert!(!Arena::owns(first) && !Arena::owns(last));
}

/// Each thread frees what the previous one has allocated, while another thread declares slabs
/// sparse.
#[test]
fn threads_free_the_memory_of_others() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 300;
    let arena = Arena::new();
    let (mut senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel()).unzip();
    senders.rotate_left(1);
    let begun = Barrier::new(THREADS + 1);
    std::thread::scope(|scope| {
        for (thread, (next, own)) in senders.into_iter().zip(receivers).enumerate() {
            let (arena, begun) = (&arena, &begun);
            scope.spawn(move || {
                begun.wait();
                let mut kept = Vec::new();
                for round in 0..ROUNDS {
                    let sizes = (0..200).map(|at| 8 + (at * 31 + round * 7 + thread) % 300);
                    let mut made: Vec<Piece> = sizes.map(|size| Piece::new(arena, size)).collect();
                    kept.extend(made.pop());
                    // A thread that has ended receives no more pieces; they are then freed here.
                    let _ = next.send(made);
                    if round % 8 == 7 {
                        own.try_iter().for_each(drop);
                    }
                }
                drop(next);
                own.into_iter().for_each(drop);
            });
        }
        begun.wait();
        for round in 0..50 {
            arena.choose_sparse(round % 10 == 9);
            std::thread::yield_now();
        }
    });
    assert!(!arena.choose_sparse(true));
    assert_eq!((arena.slabs(), arena.spare()), (0, 0));
}
