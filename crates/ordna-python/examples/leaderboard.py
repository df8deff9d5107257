"""A leaderboard: scores by player and players by score, changed together by many threads."""

import threading
from typing import Any

import ordna


class Leaderboard:
    """Two maps in one store: the first element of a key says which one it belongs to."""

    def __init__(self) -> None:
        self.store: ordna.Store[tuple[Any, ...], int] = ordna.Store()

    def add(self, player: str, points: int) -> int:
        def work(tx: ordna.Transaction[tuple[Any, ...], int]) -> int:
            old = tx.get(("score", player))
            if old is not None:
                del tx["rank", -old, player]
            new = (old or 0) + points
            tx["score", player] = new
            tx["rank", -new, player] = new
            return new

        return self.store.transaction(work)

    def rank(self, player: str) -> int:
        """The place of a player, from 1."""
        with self.store.snapshot() as now:
            score = now["score", player]
            return now.count_range(("rank",), ("rank", -score, player))

    def top(self, count: int) -> list[tuple[str, int]]:
        rows = self.store.prefix(("rank",), limit=count)
        return [(player, score) for (_, _, player), score in rows]


def main() -> None:
    board = Leaderboard()
    players = ["ann", "bob", "eve", "zoë"]

    def play(seed: int) -> None:
        for turn in range(300):
            board.add(players[(turn * seed) % len(players)], turn % 7)

    threads = [threading.Thread(target=play, args=(seed,)) for seed in (1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = board.top(10)
    assert len(rows) == len(players)
    assert sum(score for _, score in rows) == 2 * sum(turn % 7 for turn in range(300))
    assert [board.rank(player) for player, _ in rows] == [1, 2, 3, 4]
    print(rows)


main()
