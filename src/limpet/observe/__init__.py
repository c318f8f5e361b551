"""Watching runs: events, the hub that passes them to observers, and ready-made observers.

`__init__.pyi` lists the public names. Each is imported when it is first asked for.
"""

from limpet.public_names import import_when_asked

__getattr__, __dir__ = import_when_asked(__name__, __file__)
