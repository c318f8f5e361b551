"""The two drivers, synchronous and asyncio, that carry out what the loop asks."""
