"""Durable graphs: plain functions wired into graphs whose every finished step is saved.

`__init__.pyi` lists the public names. Each is imported when it is first asked for, so that `import limpet` stays
light.
"""

from limpet.version import VERSION as __version__  # noqa: F401  # public, as the stub says


def __getattr__(name):  # type: ignore[no-untyped-def]  # type checkers read the stub
    if name == "__all__":
        return sorted(["__version__", *_modules()])
    module = _modules().get(name)
    if module is None:
        raise AttributeError(f"module 'limpet' has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(module), name)
    return found


def __dir__():  # type: ignore[no-untyped-def]
    return sorted({*globals(), *_modules()})


def _modules():  # type: ignore[no-untyped-def]
    """The module of each public name, as the stub beside this file has them."""
    known = globals().get("_known")
    if known is None:
        with open(__file__[: -len(".py")] + ".pyi", encoding="utf-8") as stub:
            words = [line.split() for line in stub if line.startswith("from ")]
        known = globals()["_known"] = {line[5]: line[1] for line in words}
    return known
