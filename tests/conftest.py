"""What all tests share: an environment that names no store, also in the processes that tests start."""

from __future__ import annotations

import os

for name in ("HOLDFAST_STORE", "WORKFLOW_CHECKPOINT_BACKEND", "WORKFLOW_CHECKPOINT_DSN"):
    os.environ.pop(name, None)
