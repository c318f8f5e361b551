"""The HTTP API in tests: clients of it, a graph that does a bit of everything, and paths of all its routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from starlette.testclient import TestClient

from limpet import END, MemoryStore, State, StateGraph, pause, secret
from limpet.server import app
from limpet.server.endpoint import Endpoint
from support.http_server import API, TOKEN

HOST = "localhost:8000"
CANARY = "hunter2-canary"
"""The value of every secret."""

Make = Callable[[Any], StateGraph]


def article(store: Any) -> StateGraph:
    """A graph that counts, fails if it is asked to, asks a question, and has a secret."""
    graph = StateGraph(
        {"topic": str, "count": int, "password": Annotated[str, secret], "review": str}, name="article"
    )

    def write(state: State) -> dict[str, Any]:
        return {"count": (state.get("count") or 0) + 1, "password": CANARY}

    def rate(state: State) -> dict[str, Any]:
        if state["topic"] == "broken":
            raise ValueError("no rating")
        return {"count": state["count"] + 1}

    def review(state: State) -> dict[str, Any]:
        return {"review": pause("Publish?", choices=["yes", "no"])}

    for node in (write, rate, review):
        graph.add_node(node.__name__, node)
    graph.set_entry_point("write")
    graph.add_edge("write", "rate")
    graph.add_edge("rate", "review")
    graph.add_edge("review", END)
    return graph.compile(store=store, preserve=True, allow_plain_text_secrets=True)


def plain(run: Callable[..., Any], schema: Any = None, name: str = "plain") -> Make:
    """What makes a graph of one node without secrets."""

    def make(store: Any) -> StateGraph:
        graph = StateGraph(schema, name=name).add_node("only", run)
        return graph.set_entry_point("only").set_finish_point("only").compile(store=store, preserve=True)

    return make


def asking(store: Any) -> StateGraph:
    """A graph that asks a question, and has no secrets."""
    return plain(lambda state: {"said": pause("Publish?", choices=["yes", "no"])}, name="asking")(store)


class Client(TestClient):
    """A client of the API that has the token, unless it `forgets` it."""

    def __init__(self, application: Any, store: Any, graph: Any) -> None:
        super().__init__(application, base_url=f"http://{HOST}")
        self.headers["authorization"] = f"Bearer {TOKEN}"
        self.store = store
        self.graph = graph

    def forget_token(self) -> None:
        del self.headers["authorization"]

    def read(self, path: str, expected: int = 200, **params: Any) -> Any:
        """What a GET answers."""
        answer = self.get(API + path, params=params)
        assert answer.status_code == expected, answer.text
        return answer.json()

    def act(self, path: str, expected: int = 200, **body: Any) -> Any:
        """What a POST of a JSON object answers."""
        answer = self.post(API + path, json=body)
        assert answer.status_code == expected, answer.text
        return answer.json()

    def run_until_it_stops(self, run_id: str, **input: Any) -> None:
        """Run as a worker in this process would, until the run ends or asks."""
        list(self.graph.stream(input, run_id=run_id))


@contextmanager
def api(make: Make = article, store: Any = None, **options: Any) -> Iterator[Client]:
    """A client of the API over a store with one graph."""
    store = store or MemoryStore()
    graph = make(store)
    with Client(app(store, [graph], token=TOKEN, **options), store, graph) as client:
        yield client


def required(endpoint: Endpoint) -> dict[str, str]:
    """Values for what a route needs in its query."""
    values = {"a": "0", "b": "1", "with": "kelp"}
    return {each.name: values[each.name] for each in endpoint.query if each.is_required}


def filled(endpoint: Endpoint, **values: str) -> str:
    """The path of a route with values for what is in braces."""
    names = {"run_id": "none", "graph": "article", "name": "none", "link": "x.y", "row": "0", **values}
    return API + endpoint.path.format(**names)
