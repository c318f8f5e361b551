"""What a file may have under `schedules`."""

from __future__ import annotations

from typing import Final

from limpet.engine.schedules.schedule import CATCH_UPS, OVERLAPS
from limpet.yaml_files.grammar.mappings import Key, KeyedMapping, KeyRules
from limpet.yaml_files.grammar.value_types import (
    AnyOf,
    AnyValue,
    Boolean,
    Integer,
    ListOf,
    MapOf,
    OneWordOf,
    Text,
)

_INTERVAL = AnyOf(
    Integer("a whole number of seconds", least=1),
    Text("an interval such as 30s, 15m, 12h or 7d", r"^ *[0-9]+(\.[0-9]+)? *[smhdw] *$"),
)
# Not how long from now: a file is read again and again.
_DATE = Text("a date and time such as 2026-05-01T12:00Z", r"^[0-9]{4}-[0-9]{2}-[0-9]{2}")

SCHEDULE: Final = KeyedMapping(
    "schedule",
    "Times at which runs of this graph start by themselves.",
    {
        "name": Key(
            Text("a name without '/', ',' and ':'", r"^[^/,:]{1,100}$"),
            "Its name, which no other schedule in the store has.",
            required=True,
        ),
        "cron": Key(
            Text("a cron expression"),
            "Minute, hour, day of the month, month and day of the week: '30 2 * * *'.",
        ),
        "every": Key(_INTERVAL, "How long between two times: 15m, or whole seconds."),
        "timezone": Key(Text("the name of a time zone"), "Whose clocks count for cron; UTC by default."),
        "input": Key(
            MapOf(AnyValue(), "a mapping"), "What the runs start with, as it is: it has no templates."
        ),
        "config": Key(MapOf(AnyValue(), "a mapping"), "Settings for the nodes."),
        "tags": Key(ListOf(Text("a tag"), "a list of tags"), "Tags to find the runs by."),
        "queue": Key(Text("the name of a queue"), "The queue that the runs wait in."),
        "priority": Key(Integer("a whole number"), "Runs of a higher priority come first; 0 by default."),
        "overlap": Key(
            OneWordOf(*OVERLAPS), "What happens while an earlier run hasn't ended; skip by default."
        ),
        "catch_up": Key(
            OneWordOf(*CATCH_UPS),
            "What happens with times that were missed as no worker was there; none by default.",
        ),
        "starts": Key(_DATE, "No time is before. Without a zone of its own, it is of the timezone."),
        "ends": Key(_DATE, "No time is after. Likewise."),
        "paused": Key(Boolean(), "Whether it is paused when it is first put into the store."),
    },
    KeyRules(one_of=[("cron", "every")]),
    suggestions={
        "schedule": "cron",
        "interval": "every",
        "tz": "timezone",
        "inputs": "input",
        "catchup": "catch_up",
        "id": "name",
    },
)
