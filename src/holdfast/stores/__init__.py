"""What keeps runs: stores, each a file of its own, all held to `holdfast.testing.conformance`."""

from holdfast.stores.memory import MemoryStore
from holdfast.stores.registry import open_store, register_store

__all__ = ["MemoryStore", "open_store", "register_store"]
