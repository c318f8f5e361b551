"""The conformance suite that every store passes, and that certifies a store of your own."""

from limpet.testing.conformance.suite import StoreConformance

__all__ = ["StoreConformance"]
