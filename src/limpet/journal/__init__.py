"""What a run has done, as records: the exact codec, deltas and snapshots, and the seam to the stores."""
