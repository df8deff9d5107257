"""A cache in front of something slow: entries expire, and a group of them is dropped by prefix."""

import time
from collections.abc import Callable

import ordna

Key = tuple[str, int]


class Cache:
    def __init__(self, seconds: float, memory: int) -> None:
        self.seconds = seconds
        self.pages: ordna.Store[Key, str] = ordna.Store(memory_limit=memory)

    def page(self, user: str, number: int, render: Callable[[str, int], str]) -> str:
        page = self.pages.get((user, number))
        if page is None:
            page = render(user, number)
            try:
                self.pages.put((user, number), page, ttl=self.seconds)
            except MemoryError:
                # A full cache still returns the page.
                pass
        return page

    def forget(self, user: str) -> int:
        """Drops all pages of a user; returns how many."""
        # The shorter tuple comes first, and no string is between `user` and `user + NUL`.
        return self.pages.del_range((user,), (user + "\0",), (True, False))  # type: ignore[arg-type]


def main() -> None:
    rendered = 0

    def render(user: str, number: int) -> str:
        nonlocal rendered
        rendered += 1
        return f"page {number} of {user}"

    cache = Cache(seconds=0.3, memory=64 << 20)
    for _ in range(3):
        for user in ("ann", "bob", "bobby"):
            assert cache.page(user, 1, render) == f"page 1 of {user}"
    assert rendered == 3
    assert cache.forget("bob") == 1 and ("bobby", 1) in cache.pages
    time.sleep(0.4)
    assert ("ann", 1) not in cache.pages
    cache.page("ann", 1, render)
    print(f"rendered {rendered} pages")


main()
