"""An API server for runs: it starts them, streams their events, and answers their questions. Workers execute them.

    export LIMPET_STORE=postgresql://localhost/runs
    limpet worker examples/fastapi_app.py:graph &
    limpet worker examples/fastapi_app.py:graph &
    uvicorn examples.fastapi_app:app --timeout-graceful-shutdown 5

    curl -X POST localhost:8000/runs -H 'content-type: application/json' -d '{"topic": "kelp"}'
    curl -N localhost:8000/runs/RUN/events
    curl -X POST localhost:8000/runs/RUN/answer -H 'content-type: application/json' -d '{"answer": "yes"}'

The server executes nothing, and any number of servers and workers may come and go. A browser's `EventSource` sends
the id of the last event that it got when it reconnects, so it misses none and gets none twice.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Body, FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from limpet import END, START, LimpetError, RunNotFound, State, StateGraph, append, pause

STORE = os.environ.get("LIMPET_STORE", "sqlite:///runs.db")
PACE = float(os.environ.get("PACE", "1"))
"""How many seconds a node takes."""


def research(state: State) -> dict[str, Any]:
    time.sleep(PACE)
    return {"found": [f"{state['topic']} fact {len(state['found']) + 1}"]}


def write(state: State) -> dict[str, Any]:
    time.sleep(PACE)
    return {"text": " ".join(state["found"])}


def review(state: State) -> dict[str, Any]:
    return {"approved": pause(f"Publish this? {state['text']}", choices=["yes", "no"]) == "yes"}


def publish(state: State) -> dict[str, Any]:
    time.sleep(PACE)
    return {"published": state["approved"]}


graph = StateGraph({"topic": str, "found": Annotated[list, append], "text": str}, name="article")
for node in (research, write, review, publish):
    graph.add_node(node.__name__, run=node)
graph.add_edge(START, "research")
graph.add_edge("research", "research", lambda state: len(state["found"]) < 5)
graph.add_edge("research", "write")
graph.add_edge("write", "review")
graph.add_edge("review", "publish")
graph.add_edge("publish", END)
graph.compile(store=STORE)

app = FastAPI()


@app.post("/runs", status_code=201)
async def start(topic: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
    """Start a run. A worker executes it."""
    handle = await graph.astart({"topic": topic, "found": []})
    return {"run_id": handle.run_id}


@app.get("/runs/{run_id}")
async def look(run_id: str) -> dict[str, Any]:
    """What a run is doing, and what it asks."""
    info = await (await graph.aget(run_id)).ainfo()
    questions = [{"id": question.id, "prompt": question.prompt} for question in info.questions]
    return {"run_id": run_id, "status": info.shown_status, "questions": questions}


@app.get("/runs/{run_id}/events")
async def events(run_id: str, last_event_id: Annotated[str | None, Header()] = None) -> Response:
    """The events of a run as server-sent events: those so far, then live ones, until the run ends.

    A browser that has all events of a run that ended gets 204, which tells it not to connect again.
    """
    handle = await graph.aget(run_id)
    found = handle.aevents(after=last_event_id or None)
    first = None
    if (await handle.ainfo()).status in ("completed", "failed", "cancelled"):
        first = await anext(found, None)
        if first is None:
            return Response(status_code=204)

    # A run that hasn't ended is waited for in the stream alone, which ends when the browser is gone.
    async def stream() -> AsyncIterator[str]:
        if first is not None:
            yield as_text(first)
        async for event in found:
            yield as_text(event)

    return StreamingResponse(stream(), media_type="text/event-stream")


def as_text(event: dict[str, Any]) -> str:
    """An event as a server sends it."""
    return f"id: {event['cursor']}\nevent: {event['type']}\ndata: {json.dumps(event, default=str)}\n\n"


@app.post("/runs/{run_id}/answer")
async def answer(
    run_id: str, answer: Annotated[Any, Body()], question: Annotated[str | None, Body()] = None
) -> dict[str, Any]:
    """Answer what a run asks. The answer is stored when this returns, and a worker continues the run.

    With the id of a `question`, the answer counts for that one alone, however often it is sent.
    """
    handle = await graph.aget(run_id)
    if question is None:
        await handle.aanswer(answer)
    else:
        await handle.aanswer(answers={question: answer})
    return {"run_id": run_id}


@app.exception_handler(LimpetError)
async def refused(request: Request, error: LimpetError) -> JSONResponse:
    """What can't be done is answered with the reason. The advice of an error is for programmers."""
    return JSONResponse({"error": error.message}, 404 if isinstance(error, RunNotFound) else 409)
