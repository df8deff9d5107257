"""An ordered in-memory key-value store for many threads.

`Store` is a mutable mapping whose keys are sorted. It has range and prefix scans, snapshots, batches
and transactions. `open` keeps a store in a directory. `SortedList`, `SortedSet` and `SortedDict` have
the interface of sortedcontainers.

>>> import ordna
>>> towns = ordna.Store({"Lund": 94_393, "Uppsala": 177_074, "Visby": 24_330})
>>> list(towns.items("M", reverse=True))
[('Visby', 24330), ('Uppsala', 177074)]
"""

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
