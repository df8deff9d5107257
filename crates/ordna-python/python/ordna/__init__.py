"""An ordered map for many threads: ranges, prefixes, snapshots, batches, transactions."""

import os as _os

from . import _ordna
from ._load import load
from ._ordna import Column, Conflict, __version__
from ._sorted import (
    SortedDict, SortedItemsView, SortedKeyList, SortedKeysView, SortedList, SortedListWithKey,
    SortedSet, SortedValuesView,
)
from ._store import ABSENT, Batch, Snapshot, Store, Transaction, restore
from ._store import open_store as open
from ._views import ItemsView, KeysView, ValuesView

# Stores of the parent cannot be used in a child. Windows has no fork.
if hasattr(_os, "register_at_fork"):
    _os.register_at_fork(after_in_child=_ordna._after_fork)

__all__ = [
    "ABSENT",
    "Batch",
    "Column",
    "Conflict",
    "ItemsView",
    "KeysView",
    "Snapshot",
    "SortedDict",
    "SortedItemsView",
    "SortedKeyList",
    "SortedKeysView",
    "SortedList",
    "SortedListWithKey",
    "SortedSet",
    "SortedValuesView",
    "Store",
    "Transaction",
    "ValuesView",
    "__version__",
    "load",
    "open",
    "restore",
]
