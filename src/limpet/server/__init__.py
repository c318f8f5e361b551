"""The HTTP API over the runs in a store, as an ASGI application: `limpet.server.app(store, graphs, token=…)`."""

from limpet.server.application import app as app
