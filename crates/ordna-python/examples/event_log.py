"""An event log on a disk: appended in order, read from a moment on, old events dropped."""

import datetime as dt
import tempfile
from collections.abc import Iterator

import ordna

Key = tuple[dt.datetime, int]


class EventLog:
    def __init__(self, folder: str) -> None:
        # The entry is on the disk when the append returns.
        self.store: ordna.Store[Key, str] = ordna.open(folder, sync="always")
        last = next(iter(self.store.keys(reverse=True, limit=1)), None)
        self.number = 0 if last is None else last[1] + 1

    def append(self, at: dt.datetime, text: str) -> None:
        self.store[at, self.number] = text
        self.number += 1

    def since(self, at: dt.datetime) -> Iterator[tuple[dt.datetime, str]]:
        for (moment, _), text in self.store.items((at, 0)):
            yield moment, text

    def drop_before(self, at: dt.datetime) -> int:
        return self.store.del_range(None, (at, 0), (True, False))

    def close(self) -> None:
        self.store.close()


def main() -> None:
    noon = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)
    minute = dt.timedelta(minutes=1)
    with tempfile.TemporaryDirectory() as folder:
        log = EventLog(folder)
        for at in range(20):
            log.append(noon + at * minute, f"event {at}")
        log.append(noon + 19 * minute, "another one of that minute")
        log.close()
        log = EventLog(folder)
        assert log.number == 21
        assert log.drop_before(noon + 5 * minute) == 5
        tail = list(log.since(noon + 19 * minute))
        assert [text for _, text in tail] == ["event 19", "another one of that minute"]
        assert tail[0][0] == noon + 19 * minute
        print(f"{len(log.store)} events are kept")
        log.close()


main()
