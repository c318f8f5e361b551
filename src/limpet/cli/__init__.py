"""The command line. `main` is in `limpet.cli.main`."""
