"""What `limpet serve` needs besides the application: a socket, and a server that clients can't hold up."""

from limpet.errors import UsageError

try:
    import starlette as starlette
    import uvicorn as uvicorn
except ImportError as error:
    raise UsageError(f"limpet serve needs the package {error.name}: pip install 'limpet[server]'") from error
