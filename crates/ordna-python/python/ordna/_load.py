"""Loads a file of records into a store."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from ._store import Store

# Number of records that are written in one call of the store.
_GROUP = 4096


class _Progress:
    """A bar on standard error that shows how much of the file has been read."""

    def __init__(self, name: str, size: int, shown: bool) -> None:
        self._name, self._size = name, max(size, 1)
        self._shown = shown and sys.stderr is not None
        self._began = self._last = time.monotonic()

    def show(self, read: int, records: int, end: bool = False) -> None:
        now = time.monotonic()
        if not self._shown or (now - self._last < 0.1 and not end):
            return
        self._last = now
        part = 1.0 if end else min(read / self._size, 1.0)
        bar = "#" * int(30 * part)
        rate = records / max(now - self._began, 1e-9)
        line = f"\r{self._name} [{bar:<30}] {part:4.0%} {records:,} records, {rate:,.0f}/s"
        sys.stderr.write(line + ("\n" if end else ""))
        sys.stderr.flush()


def _records(path: str, file: BinaryIO) -> Iterator[dict[str, Any]]:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    try:
        yield from _parsed(path, text)
    finally:
        # Keeps the file open.
        text.detach()


def _parsed(path: str, text: io.TextIOWrapper) -> Iterator[dict[str, Any]]:
    name = path.removesuffix(".gz")
    if name.endswith((".ndjson", ".jsonl", ".json")):
        for number, line in enumerate(text, 1):
            if line.strip():
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{path}, line {number}: {error}") from error
                if not isinstance(record, dict):
                    raise ValueError(f"{path}, line {number}: not a JSON object")
                yield record
        return
    numbered: Iterator[tuple[int, list[str]]]
    if name.endswith(".tsv"):
        lines = (line.rstrip("\r\n") for line in text)
        numbered = enumerate((line.split("\t") if line else [] for line in lines), 1)
    elif name.endswith(".csv"):
        numbered = _csv_rows(path, text)
    else:
        raise ValueError(f"{path}: the name must end with .ndjson, .csv or .tsv, perhaps with .gz")
    header: list[str] | None = None
    for number, row in numbered:
        if not row:
            continue
        if header is None:
            header = row
        elif len(row) != len(header):
            raise ValueError(f"{path}, line {number}: {len(row)} fields, not {len(header)}")
        else:
            yield dict(zip(header, row))


def _csv_rows(path: str, text: io.TextIOWrapper) -> Iterator[tuple[int, list[str]]]:
    rows = csv.reader(text)
    try:
        for row in rows:
            yield rows.line_num, row
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num}: {error}") from error


def load(
    path: str | os.PathLike[str],
    key: Sequence[str | tuple[str, Callable[[Any], Any]]],
    *,
    value: Callable[[dict[str, Any]], Any] | None = None,
    store: Store[Any, Any] | None = None,
    progress: bool | None = None,
) -> Store[Any, Any]:
    """Loads a file of records into a store and returns the store.

    The format follows the name of the file: NDJSON (`.ndjson`, `.jsonl`, `.json`), CSV (`.csv`) or TSV
    (`.tsv`), and `.gz` after it for a file that is compressed with gzip.

    `key` lists the fields of the key. With one field, its value is the key; with several, the key is a
    tuple. A pair such as `("population", int)` converts the field. `value` computes the value from the
    record, a dict; by default the value is the record as JSON. `store` is the store to write to; by
    default a new one is created. `progress` shows a bar on standard error; by default only on a
    terminal.

    Records are written in groups of 4,096. If a record is invalid, the groups before it stay in
    `store`. The exception names the file and the number of the record.
    """
    name = os.fspath(path)
    if not key or isinstance(key, str):
        raise ValueError("key must be a list of at least one field")
    fields = [(part, None) if isinstance(part, str) else part for part in key]
    make = value or (lambda record: json.dumps(record, ensure_ascii=False, separators=(",", ":")))
    result = Store() if store is None else store
    shown = progress
    if shown is None:
        shown = sys.stderr is not None and sys.stderr.isatty()
    records = 0
    keys: list[Any] = []
    values: list[Any] = []
    with open(name, "rb") as raw:
        bar = _Progress(os.path.basename(name), os.fstat(raw.fileno()).st_size, shown)
        file: Any = gzip.GzipFile(fileobj=raw) if name.endswith(".gz") else raw
        try:
            for record in _records(name, file):
                parts = []
                for field, convert in fields:
                    if field not in record:
                        raise ValueError(f"{name}: record {records + 1} has no field {field!r}")
                    part = record[field]
                    parts.append(part if convert is None else convert(part))
                keys.append(parts[0] if len(parts) == 1 else tuple(parts))
                values.append(make(record))
                records += 1
                if len(keys) == _GROUP:
                    result.put_many(keys, values)
                    keys, values = [], []
                    bar.show(raw.tell(), records)
            result.put_many(keys, values)
            bar.show(raw.tell(), records, end=True)
        except (EOFError, zlib.error, gzip.BadGzipFile, UnicodeDecodeError) as error:
            raise ValueError(f"{name}, after record {records}: {error}") from error
        except Exception as error:
            error.add_note(f"{name}, at record {records + 1}")
            raise
    return result
