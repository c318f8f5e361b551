"""The timeline of a run: a row for each step, branch and task, with its attempts and waits, made from its events."""

from limpet.server.timeline.timelines import MAX_ROWS as MAX_ROWS
from limpet.server.timeline.timelines import Timelines as Timelines
