"""The default of each setting, once. `compile()`, `supervise()` and the command line take them from here."""

from __future__ import annotations

from typing import Final

LEASE: Final = 10.0
"""For how many seconds a process holds a run without renewing its lease."""

MAX_NODES_AT_ONCE: Final = 32
"""How many nodes of one run are called at the same time."""

MAX_ITERATIONS: Final = 1000
"""How many nodes a run of a StateGraph may execute."""

MAX_LAYERS: Final = 10_000
"""How many layers a run of a Workflow may have."""

KEPT_CHECKPOINTS: Final = 5
"""How many of its newest checkpoints a run of a Workflow keeps."""

QUEUE: Final = "default"
"""The queue of runs for which neither their caller nor their graph names one."""

MAX_RUNS_AT_ONCE: Final = 16
"""How many runs a supervisor executes at the same time."""

POLL_INTERVAL: Final = 2.0
"""Every how many seconds a supervisor looks for runs in the store."""

MAX_CRASHES: Final = 3
"""After how many crashes in a row, while it executes alone, a run is quarantined."""

MAX_SLEEP: Final = 5.0
"""For how many seconds a supervisor keeps a sleeping run open before it releases the run until its time."""

STOP_GRACE: Final = 30.0
"""For how many seconds a supervisor that is stopped waits for nodes to finish."""

RETENTION_HOURS: Final = 24.0
"""For how many hours a run that has ended is kept where no policy says otherwise."""

CLEANUP_INTERVAL: Final = 3600.0
"""Every how many seconds, by default, expired runs are deleted in the background."""

MCP_WAIT: Final = 45.0
"""For how many seconds a call of an MCP client follows its run. Many clients give up after a minute."""

LOCK_TIMEOUT: Final = 60.0
"""For how many seconds a store of files waits while another process has its files locked."""

MAX_UNPACKED: Final = 2**30
"""How many bytes a compressed record may unpack to. A larger one is stored uncompressed."""

MAX_IMPORTED: Final = 2**26
"""How many bytes all compressed records of an imported file may unpack to together, if the file is small."""

MAX_IMPORT_RATIO: Final = 32
"""How many times larger than its records, as they are in the file, an imported run may be."""
