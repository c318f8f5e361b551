"""Public names of a package that are imported when they are first asked for.

The `__init__.pyi` of the package lists them, each with its module, for type checkers and for this. So a program pays
for the modules that it uses, and `import limpet` stays light.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def import_when_asked(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose `__init__.py` is `file`."""
    known: dict[str, str] = {}

    def modules() -> dict[str, str]:
        """The module of each public name."""
        if not known:
            with open(file[: -len(".py")] + ".pyi", encoding="utf-8") as stub:
                words = [line.split() for line in stub if line.startswith("from ")]
            # A line of the stub is `from MODULE import NAME as NAME`.
            known.update({line[5]: line[1] for line in words})
        return known

    def get(name: str) -> Any:
        from importlib import import_module

        if name == "__all__":
            return sorted(modules())
        module = modules().get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if module == package:
            return import_module(f"{package}.{name}")
        found = getattr(import_module(module), name)
        # From now on the name is an attribute, and this function isn't called for it again.
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules()})

    return get, names
