"""The conformance suite that every store passes, and that certifies a store of your own. Needs pytest."""

from limpet.testing.conformance.suite import ManualClock, StoreConformance

__all__ = ["ManualClock", "StoreConformance"]
