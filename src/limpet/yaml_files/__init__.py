"""Graphs and workflows declared in YAML files: read, checked with all mistakes at once, and built.

`loading` is where it begins. Every key that a file may have is in `grammar/keys.py`.
"""
