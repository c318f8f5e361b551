"""Pictures of graphs and runs.

`outline` lists what a picture shows, `run_marks` how far a run has got in it, and `layout` where everything goes.
`svg`, `mermaid` and `terminal` write the picture; `palette` has the colours. No picture shows a value of the state,
and nothing is fetched from the network.
"""
