"""What type checkers see of a store's keys and values. test.sh checks this file with `mypy --strict`.

Strict mode refuses an ignored error that is none: so each of these lines must be one.
"""

from typing import assert_type

import ordna


def reads(ages: ordna.Store[str, int]) -> None:
    assert_type(ages["ann"], int)
    assert_type(ages.get("ann"), int | None)
    assert_type(ages.get("ann", 0), int)
    assert_type(ages.pop("nobody", None), int | None)
    assert_type(list(ages), list[str])
    assert_type(list(ages.items("a", "b")), list[tuple[str, int]])
    assert_type(ages.values()[0], int)
    assert_type(ages.floor("b"), tuple[str, int] | None)
    assert_type(ages.peekitem(0), tuple[str, int])
    with ages.snapshot() as snapshot:
        assert_type(snapshot["ann"], int)
    with ages.begin() as transaction:
        assert_type(transaction.get("ann", 0), int)
        assert_type(transaction.items(), list[tuple[str, int]])
    assert_type(ages.update_value("ann", lambda age: age + 1, 0), int)
    assert_type(ages.transaction(lambda tx: tx["ann"] > 3), bool)


def mistakes(ages: ordna.Store[str, int]) -> None:
    ages[1]  # type: ignore[index]
    ages["ann"] = "old"  # type: ignore[assignment]
    ages.items(1, 2)  # type: ignore[arg-type]
    ages.compare_and_set("ann", "old")  # type: ignore[arg-type]
    ordna.open("ages", sync="sometimes")  # type: ignore[arg-type]
    ordna.Store({"a": 1}, codec="json")  # type: ignore[arg-type]


made = ordna.Store({"ann": 31})
assert_type(made, ordna.Store[str, int])
reads(made)
assert ordna.Store[str, int]({"bob": 5})["bob"] == 5
