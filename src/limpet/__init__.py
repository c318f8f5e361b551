"""Durable graphs: plain functions wired into graphs whose every finished step is saved.

`__init__.pyi` lists the public names. Each is imported when it is first asked for, so that `import limpet` stays
light.
"""

from limpet.public_names import import_when_asked
from limpet.version import VERSION as __version__  # noqa: F401  # public, as the stub says

__getattr__, __dir__ = import_when_asked(__name__, __file__)
