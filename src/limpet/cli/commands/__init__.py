"""The commands, one module for each noun. `cli/arguments.py` says which function each verb calls."""
