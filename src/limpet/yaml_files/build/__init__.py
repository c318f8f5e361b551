"""Builds graphs and workflows from the values of a YAML file."""
