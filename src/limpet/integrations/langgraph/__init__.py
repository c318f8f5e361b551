"""LangGraph keeps its checkpoints in a store of Limpet: `LimpetSaver`. Needs the extra `langgraph`."""

from limpet.errors import UsageError

try:
    from limpet.integrations.langgraph.saver import LimpetSaver
except ImportError as error:
    if not (error.name or "").startswith(("langgraph", "langchain_core")):
        raise
    raise UsageError(
        "LimpetSaver needs the package langgraph-checkpoint: pip install 'limpet[langgraph]'"
    ) from error

__all__ = ["LimpetSaver"]
