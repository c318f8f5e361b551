"""The SQL of a store, kept in a file of its own: `stores/<kind>/statements.sql`.

A statement follows a line `-- name: NAME`. `{OTHER}` in it stands for an earlier statement of the same file.
Comments say why it is written as it is; they are not sent to the database.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache
def statements_of(kind: str) -> dict[str, str]:
    """The statements of "postgres" or "sqlite", by name."""
    text = Path(__file__).parent.joinpath(kind, "statements.sql").read_text("utf-8")
    statements: dict[str, str] = {}
    for part in re.split(r"^-- name: ", text, flags=re.MULTILINE)[1:]:
        name, *lines = part.splitlines()
        statement = "\n".join(line for line in lines if line.strip() and not line.startswith("--"))
        for earlier, sql in statements.items():
            statement = statement.replace(f"{{{earlier}}}", sql)
        statements[name] = statement
    return statements
