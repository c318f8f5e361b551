"""What tests of several files are written with; `pythonpath` in pyproject.toml has them find it."""
