"""What helps to test code that uses Limpet, and to certify a store of your own.

`__init__.pyi` lists the public names. Each is imported when it is first asked for: pytest imports this package for
its plugin, also where no test uses it. `limpet.testing.conformance` and `limpet.testing.pytest_plugin` need pytest;
the rest doesn't.
"""

from limpet.public_names import import_when_asked

__getattr__, __dir__ = import_when_asked(__name__, __file__)
