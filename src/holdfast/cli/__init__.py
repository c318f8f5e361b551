"""The command line. `main` is in `holdfast.cli.main`."""
