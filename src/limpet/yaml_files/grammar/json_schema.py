"""The JSON Schema of declarations, for editors. It is generated from the tables that the loader checks with.

After a change of `keys.py` or `actions/builtin.py`, write it again, from the top of the repository:

    python -m limpet.yaml_files.grammar.json_schema > src/limpet/yaml_files/limpet.schema.json
    cp src/limpet/yaml_files/limpet.schema.json docs/reference/
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "limpet.schema.json"
"""The generated schema, which is part of the package."""

DRAFT = "http://json-schema.org/draft-07/schema#"
ID = "https://limpet-graphs.github.io/limpet/reference/limpet.schema.json"
"""Where the documentation publishes the schema."""


def text() -> str:
    """The JSON Schema as text. It is read from the package: nothing is imported and nothing is generated."""
    return FILE.read_text(encoding="utf-8")


def generated_text() -> str:
    """The JSON Schema as the tables give it now."""
    import json

    return json.dumps(generated_schema(), indent=1, ensure_ascii=False) + "\n"


def generated_schema() -> dict[str, Any]:
    """What a file may look like. A schema can't say whether names exist and whether templates are valid."""
    from limpet.yaml_files.grammar.keys import DECLARATION
    from limpet.yaml_files.grammar.mappings import SharedType

    return {
        "$schema": DRAFT,
        "$id": ID,
        "title": "Limpet graph or workflow",
        "description": "A YAML file that declares a graph or a workflow for Limpet. limpet.load(path) loads it.",
        **DECLARATION.schema(),
        "definitions": {name: made().schema() for name, made in sorted(SharedType.definitions.items())},
    }


if __name__ == "__main__":
    import sys

    sys.stdout.write(generated_text())
