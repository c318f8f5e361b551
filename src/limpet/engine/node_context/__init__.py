"""What a node is handed while it runs: its `ctx`, the questions it asks, the results of branches."""
