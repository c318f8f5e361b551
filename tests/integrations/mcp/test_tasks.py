"""The tasks extension, by a client that speaks it through the SDK: a run that takes long is a task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from mcp import Client
from mcp.client import ClientExtension, advertise
from mcp.client.extension import ClaimContext, ResultClaim
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict

from limpet import MemoryStore, Runs
from limpet.integrations.mcp import run_calls, server
from limpet.integrations.mcp.tasks import TASKS
from support.mcp_clients import Person, call, data, says, serving, talk
from support.mcp_graphs import article, asking, failing, listening, vault
from support.waiting import SOON, until


class TaskParams(RequestParams):
    """What a request about a task has."""

    taskId: str
    inputResponses: dict[str, Any] | None = None


class TaskRequest(Request[TaskParams, str]):
    """A request about a task."""

    method: str
    params: TaskParams
    name_param = "taskId"


class Task(Result):
    """A task, as any answer has it."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"


class AnyResult(Result):
    """What the server answers."""

    model_config = ConfigDict(extra="allow")


async def ask(session: Any, method: str, task_id: str, replies: Any = None) -> dict[str, Any]:
    """The answer to a request about a task."""
    request = TaskRequest(method=method, params=TaskParams(taskId=task_id, inputResponses=replies))
    answer = await session.send_request(request, AnyResult)
    found: dict[str, Any] = answer.model_extra
    return found


class Tasks(ClientExtension):
    """A client that looks at tasks until they end, and gives prepared replies."""

    identifier = TASKS

    def __init__(self, **replies: Any) -> None:
        self.replies = replies
        self.statuses: list[str] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Task, resolve=self.resolve)]

    async def resolve(self, created: Task, context: ClaimContext) -> CallToolResult:
        task: dict[str, Any] = created.model_extra or {}
        self.statuses.append(task["status"])
        replied: set[str] = set()
        async with asyncio.timeout(SOON):
            while "result" not in task and task["status"] != "cancelled":
                await asyncio.sleep(0.01)
                task = await ask(context.session, "tasks/get", task["taskId"])
                if task["status"] != self.statuses[-1]:
                    self.statuses.append(task["status"])
                asked = task.get("inputRequests", {})
                replies = {key: self.reply_to(each) for key, each in asked.items() if key not in replied}
                if replies:
                    await ask(context.session, "tasks/update", task["taskId"], replies)
                    replied |= set(replies)
        return CallToolResult.model_validate(task["result"], by_name=False)

    def reply_to(self, request: dict[str, Any]) -> dict[str, Any]:
        prompt = request["params"]["message"]
        return {"action": "accept", "content": says(self.replies[prompt.split()[0].strip("?")])}


@pytest.fixture(scope="module")
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def shop(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server[Any]]:
    """A server in which a call becomes a task at once, unless its run has ended."""
    monkeypatch.setattr(run_calls, "TASK_AFTER", 0.0)
    with serving([article(), listening(), failing(), vault(), asking("name", "Name?")], store) as made:
        yield made


def person_with_tasks(extension: Any) -> dict[str, Any]:
    return {"extensions": [extension], "person": Person()}


def test_a_run_that_takes_long_is_a_task_with_its_id(shop: Server[Any], store: MemoryStore) -> None:
    """P13: it is stored before the client gets it, and asks for input by itself."""
    extension = Tasks(Publish="yes")
    given = {"topic": "kelp", "run_id": "t"}
    done = data(call(shop, "article", given, **person_with_tasks(extension)))
    assert done["result"]["verdict"] == "yes"
    assert extension.statuses[0] == "working"
    assert extension.statuses[-1] == "completed"
    assert "input_required" in extension.statuses
    assert Runs(store).get("t").status == "completed"


def test_another_server_of_the_store_knows_the_task(shop: Server[Any], store: MemoryStore) -> None:
    """P13: after a restart, say. A failed run is a completed task, whose result is an error."""
    graphs = [article(), listening(), failing(), vault()]
    call(shop, "failing", {"run_id": "bad"})
    other = server(store, graphs, read_only=True)

    async def look(client: Client) -> dict[str, Any]:
        return await ask(client.session, "tasks/get", "bad")

    task = talk(other, look, extensions=[advertise(TASKS)])
    assert task["status"] == "completed"
    assert task["result"]["isError"] is True
    assert task["result"]["structuredContent"]["error"]["message"] == "the line is busy"
    assert task["ttlMs"] is None
    assert task["createdAt"].endswith("Z")


def test_a_task_is_cancelled(shop: Server[Any], store: MemoryStore) -> None:
    """P13: by its own request; one that has ended stays as it is."""

    async def start_and_cancel(client: Client) -> list[Any]:
        created = await client.session.call_tool("listening", {"run_id": "l"}, allow_claimed=True)
        assert isinstance(created, Task)
        await ask(client.session, "tasks/cancel", "l")
        async with asyncio.timeout(SOON):
            while (task := await ask(client.session, "tasks/get", "l"))["status"] != "cancelled":
                await asyncio.sleep(0.01)
        await ask(client.session, "tasks/cancel", "l")
        return [task["status"], "result" in task]

    assert talk(shop, start_and_cancel, **person_with_tasks(Tasks())) == ["cancelled", False]
    until(lambda: Runs(store).get("l").status == "cancelled", "the cancellation")


def test_replies_that_do_not_fit_leave_the_form_open(shop: Server[Any]) -> None:
    """P13: old and unknown ones are ignored; a secret has no form."""

    async def reply(client: Client) -> None:
        await client.session.call_tool("article", {"topic": "kelp", "run_id": "u"}, allow_claimed=True)
        async with asyncio.timeout(SOON):
            while "inputRequests" not in (task := await ask(client.session, "tasks/get", "u")):
                await asyncio.sleep(0.01)
        (key,) = task["inputRequests"]
        wrong = {key: {"action": "accept", "content": says("maybe")}}
        with pytest.raises(MCPError, match="is not one of yes, no"):
            await ask(client.session, "tasks/update", "u", wrong)
        for ignored in ({"nothing": wrong[key]}, {key: {"action": "decline"}}):
            await ask(client.session, "tasks/update", "u", ignored)
        assert list((await ask(client.session, "tasks/get", "u"))["inputRequests"]) == [key]
        right = {key: {"action": "accept", "content": says("no")}}
        for _ in range(2):  # the second is ignored
            await ask(client.session, "tasks/update", "u", right)
        await client.session.call_tool("vault", {"token": "t", "run_id": "v"}, allow_claimed=True)
        async with asyncio.timeout(SOON):
            while "paused" not in (task := await ask(client.session, "tasks/get", "v"))["statusMessage"]:
                await asyncio.sleep(0.01)
        assert task["status"] == "working"
        assert "limpet answer v" in task["statusMessage"]

    talk(shop, reply, **person_with_tasks(Tasks()))


@pytest.mark.parametrize(
    ("mode", "extensions", "task", "code"),
    [
        ("auto", [], "nowhere", -32021),
        ("auto", [advertise(TASKS)], "nowhere", -32602),
        ("legacy", [advertise(TASKS)], "nowhere", -32601),
    ],
)
def test_only_clients_that_know_tasks_get_them(
    shop: Server[Any], mode: str, extensions: Any, task: str, code: int
) -> None:
    """P13: others wait for their calls, as ever."""

    async def look(client: Client) -> int:
        with pytest.raises(MCPError) as refused:
            await ask(client.session, "tasks/get", task)
        return refused.value.code

    assert talk(shop, look, mode, extensions=extensions) == code
    done = data(call(shop, "name", mode=mode, person=Person(says("Ann"))))
    assert done["result"] == {"out": "Ann"}
