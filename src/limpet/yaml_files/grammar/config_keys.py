"""What a file may have under `config`, of a graph and of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from limpet.yaml_files.grammar.mappings import Key, KeyedMapping
from limpet.yaml_files.grammar.shared_types import (
    DURATION,
    NODE_NAMES,
    POSITIVE_INTEGER,
    POSITIVE_INTEGER_OR_NULL,
)
from limpet.yaml_files.grammar.value_types import (
    Boolean,
    Integer,
    ListOf,
    MapOf,
    NotTemplated,
    OneWordOf,
    PointInTime,
    Text,
)

_NO_TEMPLATE = "config is read when the file is loaded; for another value, call compile() after load()"

LIMIT_NAMES = ListOf(Text("the name of a limit"), "a list of the names of limits")
LIMIT = KeyedMapping(
    "limit",
    "How much may happen at once, or in a time, over all processes that share a store.",
    {
        "concurrency": Key(POSITIVE_INTEGER, "How many calls or runs may be under way at once."),
        "rate": Key(Text("a rate, such as 60/min"), "How many may begin in a time: 60/min, 5/s, 1000/hour."),
        "queues": Key(
            ListOf(Text("the name of a queue"), "a list of queues"),
            "The queues all of whose runs it holds for, whatever their graph.",
        ),
    },
)
LIMITS = MapOf(LIMIT, "a mapping of names to limits")

_CONFIG_KEYS: Final[Mapping[str, Key]] = {
    "store": Key(
        NotTemplated(Text("the name, URL or file of a store"), _NO_TEMPLATE),
        "Where runs are kept: a URL, a name, or a file.",
    ),
    "checkpoint": Key(
        NotTemplated(Text("the path of a checkpoint file, or the id of a checkpoint"), _NO_TEMPLATE),
        "The checkpoint that runs resume from, instead of starting at the beginning: a file, or an id.",
    ),
    "preserve": Key(Boolean(), "Whether all records of a run are kept when it has completed."),
    "keep_result": Key(
        Boolean(), "Whether the result of a run is kept when it has completed; it is by default."
    ),
    "keep": Key(
        POSITIVE_INTEGER_OR_NULL, "How many of a run's newest checkpoints are kept, at least; null keeps all."
    ),
    "lease": Key(
        DURATION,
        "Seconds after which another process may resume a run whose process no longer responds; 10 by default.",
    ),
    "deadline": Key(
        NotTemplated(PointInTime(), _NO_TEMPLATE),
        "When a run fails that hasn't ended, counted from its start; a caller can give another one.",
    ),
    "queue": Key(
        NotTemplated(Text("the name of a queue"), _NO_TEMPLATE),
        "The queue of runs whose caller gives none; workers may serve only some queues.",
    ),
    "limits": Key(LIMIT_NAMES, "The limits of which a run needs a slot each while a process executes it."),
    "max_concurrency": Key(
        POSITIVE_INTEGER, "How many nodes or tasks of a run are called at once, at most; 32 by default."
    ),
    "on_save_error": Key(OneWordOf("fail", "continue", "wait"), "What a run does when a save fails."),
    "observers": Key(
        ListOf(Text("the name of an observer"), "a list of names"),
        "The observers of the runs: log, progress, ….",
    ),
    "opentelemetry": Key(
        Boolean(), "Whether runs are traced and measured; by default, if LIMPET_OTEL=1 is in the environment."
    ),
}

GRAPH_CONFIG = KeyedMapping(
    "config",
    "How the graph is run and saved.",
    {
        **_CONFIG_KEYS,
        "checkpoint_dir": Key(
            NotTemplated(Text("the path of a directory"), _NO_TEMPLATE),
            "Where a checkpoint file is written whenever a run stops.",
        ),
        "interval": Key(
            Integer("a whole number of at least 0", least=0),
            "After how many nodes a run is saved; 1 by default.",
        ),
        "interrupt_before": Key(NODE_NAMES, "Nodes before which a run stops until it is resumed."),
        "interrupt_after": Key(NODE_NAMES, "Nodes after which a run stops until it is resumed."),
        "max_iterations": Key(
            POSITIVE_INTEGER_OR_NULL,
            "How many nodes a run may complete; 1000 by default, null for any number.",
        ),
    },
)
WORKFLOW_CONFIG = KeyedMapping(
    "config",
    "How the workflow is run and saved.",
    {
        **_CONFIG_KEYS,
        "on_mismatch": Key(
            OneWordOf("fail", "warn"), "What happens to a run whose tasks differ from those of the file now."
        ),
        "max_layers": Key(POSITIVE_INTEGER, "How many layers a run may have; 10000 by default."),
        "layers": Key(
            Boolean(), "Whether each layer begins only when the one before is done; false by default."
        ),
        "on_error": Key(
            OneWordOf("continue", "stop"), "Whether tasks that don't depend on one that failed still begin."
        ),
    },
)
