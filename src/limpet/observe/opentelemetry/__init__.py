"""OpenTelemetry: spans and metrics of runs, through the package `opentelemetry-api` alone.

`switch` says whether a graph has them, and imports the rest only then. The engine calls three things: `Telemetry`,
which a compiled graph has, `Stretch`, one for each time that a process executes a run, and `StepSpan`, one for each
call of a node. Where it has none of them, it pays for a test against None.
"""
