"""The JSON Schema of declarations, for editors: made of the tables that the loader checks with.

`python -m limpet.yaml_files.grammar.json_schema` prints it.
"""

from __future__ import annotations

import json
from typing import Any

from limpet.yaml_files.grammar.keys import DECLARATION
from limpet.yaml_files.grammar.mappings import Shared

DRAFT = "http://json-schema.org/draft-07/schema#"


def schema() -> dict[str, Any]:
    """What a file may look like. Whether its names lead somewhere, and its templates make sense, it can't say."""
    return {
        "$schema": DRAFT,
        "title": "Limpet graph or workflow",
        **DECLARATION.schema(),
        "definitions": {name: kind().schema() for name, kind in sorted(Shared.named.items())},
    }


def text() -> str:
    """It as it is published."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    import sys

    sys.stdout.write(text())
