"""`python -m limpet`: the command line."""

from limpet.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
