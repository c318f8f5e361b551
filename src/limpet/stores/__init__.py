"""Stores of runs. Each is a module or folder here, and `limpet.testing.conformance` tests them all alike."""

from limpet.stores.memory import MemoryStore
from limpet.stores.opening import open_store, register_store

__all__ = ["MemoryStore", "open_store", "register_store"]
