"""Threads of other libraries, which a store keeps like runs: `kinds` tells them apart, `records` reads them."""
