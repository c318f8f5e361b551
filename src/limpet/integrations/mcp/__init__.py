"""A server for agents, in the Model Context Protocol: `limpet.integrations.mcp.server(store, graphs)`."""

from limpet.errors import UsageError

try:
    import mcp as mcp
except ImportError as error:
    raise UsageError("a server for agents needs the package mcp: pip install 'limpet[mcp]'") from error

from limpet.integrations.mcp.http import app as app
from limpet.integrations.mcp.server import server as server
from limpet.integrations.mcp.stdio import serve_stdio as serve_stdio
