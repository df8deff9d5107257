"""An ordered map for many threads: ranges, prefixes, snapshots, batches."""

from ._load import load
from ._ordna import Column
from ._store import ABSENT, Batch, Snapshot, SortedDict, Store, restore
from ._store import open_store as open
from ._views import ItemsView, KeysView, ValuesView

__all__ = [
    "ABSENT",
    "Batch",
    "Column",
    "ItemsView",
    "KeysView",
    "Snapshot",
    "SortedDict",
    "Store",
    "ValuesView",
    "load",
    "open",
    "restore",
]
