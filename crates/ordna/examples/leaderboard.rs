//! A leaderboard that stays exact while several threads change scores: transactions change the
//! points of a player and the ranking together. Run it with `cargo run --release -p ordna --example
//! leaderboard`.

use std::cmp::Reverse;
use std::sync::Arc;
use std::thread;

use ordna::{Error, Store, Table};

/// A leaderboard: two tables of one store.
struct Leaderboard {
    store: Arc<Store<[u8], [u8]>>,
    points: Table<String, u64>,
    /// Players by points, most points first.
    order: Table<(Reverse<u64>, String), ()>,
}

impl Leaderboard {
    fn new() -> Result<Self, Error> {
        let store = Arc::new(Store::new());
        let points = Table::named(&store, "points")?;
        let order = Table::named(&store, "order")?;
        Ok(Self { store, points, order })
    }

    /// Adds points to a player, in both tables or in none.
    fn score(&self, player: &str, more: u64) -> Result<u64, Error> {
        self.store.transaction(|tx| {
            let (points, order) = (tx.map(&self.points)?, tx.map(&self.order)?);
            let before = points.get(player)?;
            let after = before.unwrap_or(0) + more;
            if let Some(before) = before {
                order.remove((Reverse(before), player))?;
            }
            order.put((Reverse(after), player), ())?;
            points.put(player, after)?;
            Ok(after)
        })
    }

    /// Returns the players with the most points.
    fn top(&self, players: usize) -> Result<Vec<(String, u64)>, Error> {
        let best = self.order.keys().take(players);
        best.map(|key| key.map(|(Reverse(points), player)| (player, points))).collect()
    }

    /// Returns the rank of a player; 0 is the first.
    fn place(&self, player: &str) -> Result<Option<usize>, Error> {
        let points = self.points.get(player)?;
        Ok(points.map(|points| self.order.rank((Reverse(points), player))))
    }
}

pub(crate) fn main() -> Result<(), Error> {
    let board = Leaderboard::new()?;
    let players = ["Ada", "Grace", "Edsger", "Barbara"];
    // Two threads add points to the same players.
    thread::scope(|scope| {
        let threads: Vec<_> = (0..2_u64)
            .map(|thread| {
                let board = &board;
                scope.spawn(move || {
                    (0..1_000_u64).try_for_each(|at| {
                        let player = players[(at % 4) as usize];
                        board.score(player, at % 4 + thread).map(drop)
                    })
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;

    let top = board.top(3)?;
    let expected = [("Barbara", 1_750), ("Edsger", 1_250), ("Grace", 750)];
    assert_eq!(top, expected.map(|(player, points)| (player.to_owned(), points)));
    assert_eq!(board.place("Ada")?, Some(3));
    // Exact: one line for each player, although the threads changed the same players.
    assert_eq!(board.order.len(), players.len());
    for (place, (player, points)) in top.iter().enumerate() {
        println!("{}. {player:<8} {points:>6}", place + 1);
    }
    Ok(())
}
