"""Docstrings: their examples run, and the stubs of the compiled module repeat them."""

import ast
import doctest
import inspect
import pathlib

import pytest

import ordna
from ordna import _load, _ordna, _sorted, _store, _views


@pytest.mark.parametrize("module", [ordna, _load, _sorted, _store, _views])
def test_examples_of_docstrings(module):
    assert doctest.testmod(module).failed == 0


def test_there_are_examples():
    attempted = sum(doctest.testmod(module).attempted for module in (ordna, _sorted, _store))
    assert attempted > 20


def test_stubs_repeat_the_docstrings():
    stub = pathlib.Path(_ordna.__file__).with_name("_ordna.pyi").read_text(encoding="utf-8")
    compared = 0
    for item in ast.parse(stub).body:
        if not isinstance(item, ast.ClassDef):
            continue
        of_class = getattr(_ordna, item.name)
        found = {(item.name, ""): (ast.get_docstring(item), inspect.getdoc(of_class))}
        for method in item.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                in_module = inspect.getdoc(getattr(of_class, method.name))
                # The first of several overloads has the docstring.
                found.setdefault((item.name, method.name), (ast.get_docstring(method), in_module))
        for name, (in_stub, in_module) in found.items():
            if in_stub is not None or name[1]:
                assert in_stub == in_module, name
                compared += 1
    assert compared > 35
