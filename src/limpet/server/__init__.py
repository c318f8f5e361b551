"""The HTTP API over the runs in a store, as an ASGI application: `limpet.server.app(store, graphs, token=…)`."""

from limpet.errors import UsageError

try:
    import starlette as starlette
except ImportError as error:
    raise UsageError("the server needs the package starlette: pip install 'limpet[server]'") from error

from limpet.server.application import app as app
