"""How a workflow is defined: its tasks, the layers they form, and the planner that picks the next ones."""
