"""A worker as `limpet worker` is one: works from the line "go" on, until the line "stop", and says what it did.

`python child_worker.py URL NODES CONCURRENCY`
"""

from __future__ import annotations

import json
import sys
from time import process_time

from queued_graphs import chain

from limpet import open_store, supervise


def main(url: str, nodes: str, concurrency: str) -> None:
    """Open, say so, wait for a line, work, wait for a line, report."""
    store = open_store(url)
    supervisor = supervise(store, [chain(int(nodes), store)], concurrency=int(concurrency))
    print("ready", flush=True)
    sys.stdin.readline()
    began = process_time()
    with supervisor:
        sys.stdin.readline()
        seconds = process_time() - began
    print(json.dumps({"runs": supervisor.resumer.resumed, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
