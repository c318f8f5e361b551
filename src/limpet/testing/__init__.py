"""What helps to test code that uses Limpet, and to certify a store of your own.

`__init__.pyi` lists the public names. Each is imported when it is first asked for: pytest imports this package for
its plugin, also where no test uses it. `limpet.testing.conformance` and `limpet.testing.pytest_plugin` need pytest;
the rest doesn't.
"""


def __getattr__(name):  # type: ignore[no-untyped-def]  # type checkers read the stub
    if name == "__all__":
        return sorted(_modules())
    module = _modules().get(name)
    if module is None:
        raise AttributeError(f"module 'limpet.testing' has no attribute {name!r}")
    from importlib import import_module

    if module == __name__:
        return import_module(f"{module}.{name}")
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
