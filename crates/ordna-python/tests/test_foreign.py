"""Directories that another program wrote: bytes that are not objects of Python."""

import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path

import pytest

import ordna

HERE = Path(__file__).parent


# `foreign.tar.gz` contains a backup of a store with two entries, which a C program has written: the
# key "k" with a value of 1,000,000 bytes "p", and a key of 65,000 bytes "p". A byte "p" begins a
# tuple.
@pytest.mark.parametrize("call", ["list(s)", "list(s.values())", "s.items()[1]", "s.popitem()",
                                  "s.peekitem()", "s.scan(arrow=True)"])
def test_deeply_nested_bytes_raise(tmp_path, call):
    with tarfile.open(HERE / "foreign.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    program = f"""
        import ordna
        s = ordna.restore({str(tmp_path / "foreign")!r})
        assert len(s) == 2
        try:
            {call}
        except (ValueError, TypeError) as error:
            print(type(error).__name__, error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"not of Python" in done.stdout or b"not one of Python" in done.stdout or (
        b"a column holds" in done.stdout)


def test_the_deepest_tuple_comes_back():
    deep = ()
    for _ in range(63):
        deep = (deep,)
    store = ordna.Store({deep: deep})
    assert list(store.items()) == [(deep, deep)]
    with pytest.raises(ValueError, match="64 levels"):
        store[(deep,)] = 1
