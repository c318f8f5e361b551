"""Pictures of graphs: what is to be drawn, where it goes on the page, and the page itself.

`outline` says what there is to draw, `run_marks` how far a run has come in it, `layout` where everything goes; `svg`,
`mermaid` and `terminal` put it down. Nothing here reads a state's values, and nothing is fetched from anywhere.
"""
