"""What keeps runs: stores, each a file of its own, all held to `limpet.testing.conformance`."""

from limpet.stores.memory import MemoryStore
from limpet.stores.opening import open_store, register_store

__all__ = ["MemoryStore", "open_store", "register_store"]
