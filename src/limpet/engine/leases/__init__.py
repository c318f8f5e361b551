"""The right to advance a run: leases, the commits that carry them, and the identity of this process."""
