"""What nodes can do by name: each action as a user meets it, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from limpet import (
    ActionFailed,
    AnswerRefused,
    CheckpointNotFound,
    DeclarationError,
    ExecutionError,
    MemoryStore,
    RunPaused,
    UsageError,
    action,
    loads,
    register_action,
)
from limpet.yaml_files.actions import registry
from limpet.yaml_files.actions.builtin import BUILT_IN
from limpet.yaml_files.loading import check_text


def run(uses: str, given: dict[str, Any], state: dict[str, Any] | None = None, **settings: Any) -> Any:
    """The result of an action."""
    node = {"name": "n", "uses": uses, "with": given, "output": "out"}
    return loads(json.dumps({"nodes": [node]}), **settings).execute(state or {}, run_id="r")["out"]


def failing(uses: str, given: dict[str, Any], state: dict[str, Any] | None = None) -> ActionFailed:
    with pytest.raises(ExecutionError) as caught:
        run(uses, given, state)
    assert isinstance(caught.value.cause, ActionFailed), repr(caught.value.cause)
    assert caught.value.cause.action == uses
    return caught.value.cause


def refused(uses: str, given: dict[str, Any]) -> str:
    with pytest.raises(DeclarationError) as caught:
        run(uses, given)
    text = str(caught.value)
    with pytest.raises(DeclarationError, match="<text>"):
        check_text(json.dumps({"nodes": [{"name": "n", "uses": uses, "with": given}]}))
    return text


# shell


def test_a_program_is_run_with_its_arguments_and_no_shell_in_between() -> None:
    """F13: data can't be taken for commands."""
    evil = "x; touch gone $(id) `id`"
    done = run("shell", {"command": ["printf", "%s|%s", "{{ state.s }}", 5]}, {"s": evil})
    assert done == {"code": 0, "stdout": f"{evil}|5", "stderr": ""}


def test_a_script_gets_data_by_its_environment_only(tmp_path: Path) -> None:
    """F13: a template in a script would be a way to inject commands, so it is refused."""
    given = {
        "script": 'echo "$WHO" $N; pwd; cat',
        "env": {"WHO": "{{ state.s }}", "N": 3},
        "cwd": str(tmp_path),
    }
    done = run("shell", {**given, "input": "{{ state.s }}"}, {"s": "$(id)"})
    assert done["stdout"] == f"$(id) 3\n{os.path.realpath(tmp_path)}\n$(id)"
    assert "script can't be a template: pass data by env" in refused(
        "shell", {"script": "echo {{ state.s }}"}
    )
    assert "command[0] can't be a template" in refused("shell", {"command": ["{{ state.s }}"]})
    assert "command must be a list" in refused("shell", {"command": "ls -l"})
    assert "needs one of 'command', 'script'" in refused("shell", {"cwd": "/"})
    assert "only one of them is allowed" in refused("shell", {"command": ["ls"], "script": "ls"})


def test_a_program_that_fails_fails_the_node_unless_it_may() -> None:
    """F13."""
    script = {"script": "echo out; echo no good >&2; exit 3"}
    assert failing("shell", script).reason == "'the script' ended with the exit code 3: no good"
    assert run("shell", {**script, "check": False}) == {"code": 3, "stdout": "out\n", "stderr": "no good\n"}
    secret = failing("shell", {"command": ["false", "--token=hunter2"]})
    assert "hunter2" not in str(secret)
    assert "can't be started" in str(failing("shell", {"command": ["no-such-program-here"]}))
    assert "can't be started" in str(failing("shell", {"command": ["ls"], "cwd": "/no/such/place"}))
    assert "a text or a number" in str(failing("shell", {"command": ["ls", "{{ state.l }}"]}, {"l": [1]}))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the test looks at processes in /proc")
@pytest.mark.parametrize("end", ["; wait", ""])
def test_a_program_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path, end: str) -> None:
    """F13, H8: also where it has ended itself, and left something behind that holds on to its pipes."""
    script = f"sleep 600 & echo $! > {tmp_path}/pid{end}"
    assert "took longer than 2 s" in str(failing("shell", {"script": script, "timeout": 2}))
    started = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    deadline = time.monotonic() + 30
    while started.exists() and started.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "what the script has started still runs"
        time.sleep(0.01)


# files


def test_files_are_written_whole_and_read_back(tmp_path: Path) -> None:
    """F13: as text, as data and as bytes; directories are made, and nothing temporary is left."""
    target = tmp_path / "a" / "b.txt"
    assert run("file.write", {"path": str(target), "content": "{{ state.s }}\n"}, {"s": "käse"}) == str(
        target
    )
    assert run("file.read", {"path": "{{ state.p }}", "root": str(tmp_path)}, {"p": str(target)}) == "käse\n"
    assert run("file.read", {"path": str(target), "format": "bytes"}) == "käse\n".encode()
    data = {"a": [1, {"b": None}], "c": 1.5}
    run("file.write", {"path": str(target), "content": "{{ state.d }}", "format": "json"}, {"d": data})
    assert run("file.read", {"path": str(target), "format": "json"}) == data
    assert os.listdir(target.parent) == ["b.txt"]


def test_a_file_keeps_its_rights_and_a_new_one_gets_the_usual_ones(tmp_path: Path) -> None:
    """F13."""
    target = tmp_path / "x"
    usual = tmp_path / "usual"
    usual.touch()
    run("file.write", {"path": str(target), "content": "x"})
    assert stat.S_IMODE(target.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)
    target.chmod(0o640)
    run("file.write", {"path": str(target), "content": "y"})
    assert (stat.S_IMODE(target.stat().st_mode), target.read_text()) == (0o640, "y")


def test_files_that_cannot_be_read_or_written_fail_with_the_reason(tmp_path: Path) -> None:
    """F13."""
    assert "No such file" in str(failing("file.read", {"path": str(tmp_path / "gone")}))
    (tmp_path / "x").write_bytes(b"\xff{")
    assert "can't be read as text" in str(failing("file.read", {"path": str(tmp_path / "x")}))
    (tmp_path / "x").write_bytes(b"{")
    assert "can't be read as json" in str(
        failing("file.read", {"path": str(tmp_path / "x"), "format": "json"})
    )
    given = {"path": str(tmp_path / "x" / "y"), "content": "z"}
    assert "can't be written" in str(failing("file.write", given))
    assert "write data with format: json" in str(
        failing("file.write", {"path": str(tmp_path / "n"), "content": [1]})
    )
    assert "path must be a path, not this int" in str(
        failing("file.read", {"path": "{{ state.n }}"}, {"n": 5})
    )
    assert not (tmp_path / "n").exists()


# checkpoints


def test_a_checkpoint_is_saved_and_loaded_by_actions_and_resumed_from(tmp_path: Path) -> None:
    """F13, F7, F9."""
    text = f"""
name: steps
state: {{step_name: str}}
nodes:
  - name: save_progress
    uses: checkpoint.save
    with: {{path: "{tmp_path}/{{{{ state.step_name }}}}.pkl"}}
    output: save_result
  - name: load_previous
    uses: checkpoint.load
    with: {{path: "{tmp_path}/one.pkl"}}
    output: loaded_checkpoint
"""
    graph = loads(text)
    final = graph.execute({"step_name": "one"}, {"user": "Ann"})
    path = str(tmp_path / "one.pkl")
    assert final["save_result"] == {"path": path, "node": "save_progress"}
    loaded = final["loaded_checkpoint"]
    assert (loaded["state"], loaded["node"], loaded["config"]) == (
        {"step_name": "one"},
        "save_progress",
        {"user": "Ann"},
    )
    assert (loaded["version"], loaded.keys()) == ("1.0", {"state", "node", "config", "timestamp", "version"})
    again = loads(text, checkpoint=path).stream()
    assert [event["node"] for event in again if event["type"] == "state"] == [
        "save_progress",
        "load_previous",
    ]
    onward = loads(text.replace('.pkl"}\n    output: save', '.pkl", node: load_previous}\n    output: save'))
    onward.execute({"step_name": "two"})
    rest = onward.stream(checkpoint=str(tmp_path / "two.pkl"))
    assert [event["node"] for event in rest if event["type"] == "state"] == ["load_previous"]


def test_a_checkpoint_that_is_missing_fails_the_node(tmp_path: Path) -> None:
    """F13, F10."""
    with pytest.raises(ExecutionError) as caught:
        run("checkpoint.load", {"path": str(tmp_path / "gone.pkl")})
    assert isinstance(caught.value.cause, CheckpointNotFound)


# prompts


def test_a_prompt_pauses_until_an_answer_fits() -> None:
    """F13, P1: with choices, which are words, and with types and schemas."""
    graph = loads(
        """
nodes:
  - name: ask
    uses: prompt
    with: {text: "Ship {{ state.what }}?", choices: [yes, no]}
    output: ship
  - name: many
    prompt: {text: How many?, schema: int}
    output: count
  - name: address
    prompt: {text: Where to?, schema: {type: object, required: [city]}}
    output: where
  - {name: last, prompt: Anything else?, output: more}
""",
        store=MemoryStore(),
    )
    with pytest.raises(RunPaused) as paused:
        graph.execute({"what": "kelp"}, run_id="r")
    (question,) = paused.value.questions
    assert (question.prompt, question.choices) == ("Ship kelp?", ["yes", "no"])
    with pytest.raises(AnswerRefused):
        graph.resume("r", True)
    for given, wrong in (("yes", "x"), (3, {}), ({"city": "Bergen"}, None)):
        with pytest.raises(RunPaused):
            graph.resume("r", given)
        if wrong is not None:
            with pytest.raises(AnswerRefused):
                graph.resume("r", wrong)
    assert graph.resume("r", "no") == {
        "what": "kelp",
        "ship": "yes",
        "count": 3,
        "where": {"city": "Bergen"},
        "more": "no",
    }


# python


def test_python_calls_a_function_with_arguments_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """F13, H7: sync or async; only the file names the function."""

    async def later(n: int) -> int:
        return n + 1

    module = ModuleType("called")
    module.double = lambda n, times=2: n * times  # type: ignore[attr-defined]  # of this test
    module.later = later  # type: ignore[attr-defined]  # of this test
    module.number = 5  # type: ignore[attr-defined]  # of this test
    monkeypatch.setitem(sys.modules, "called", module)
    given = {"function": "called:double", "arguments": {"n": "{{ state.n }}"}}
    assert run("python", given, {"n": [1]}) == [1, 1]
    assert run("python", {"function": "called:later", "arguments": {"n": 1}}) == 2
    assert "can't be a template" in refused("python", {"function": "{{ state.f }}"})
    for function, reason in (
        ("called:doubel", "did you mean 'double'"),
        ("called:number", "is not a function"),
        ("gone_module:f", "there is no module 'gone_module'"),
        ("called:double", "takes 'n', which it isn't given"),
        ("builtins:len", "can't be called by name, as it takes 'obj' by position"),
    ):
        with pytest.raises(DeclarationError, match=reason):
            run("python", {"function": function})
    with pytest.raises(DeclarationError, match="doesn't take 'time'; did you mean 'times'"):
        run("python", {"function": "called:double", "arguments": {"n": 1, "time": 3}})


# http


class Server(BaseHTTPRequestHandler):
    """Answers as the path demands, and records the requests."""

    seen: list[dict[str, Any]]
    port: int

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        self.seen.append(
            {"method": self.command, "path": self.path, "body": body, "headers": dict(self.headers)}
        )
        path = self.path.partition("?")[0]
        if path.startswith("/to/"):
            where = {
                "file": "file:///etc/passwd",
                "loop": "/to/loop",
                "ok": "/json",
                "ftp": "ftp://localhost/x",
                "other": f"http://localhost:{self.port}/json",
            }[path[4:]]
            self.send_response(302)
            self.send_header("Location", where)
            self.end_headers()
            return
        status = int(path[8:]) if path.startswith("/status/") else 200
        answers = {"/json": b'{"n": [1, 2]}', "/broken.json": b"{", "/long": b"x" * 1000}
        answer = answers.get(path, b"plain")
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if "json" in path else "text/plain")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_POST = do_PUT = do_HEAD = do_DELETE = do_GET

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A real server, and what it has been asked."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    seen: list[dict[str, Any]] = []
    handler = type("Handler", (Server,), {"seen": seen})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as listening:
        handler.port = listening.server_port  # type: ignore[attr-defined]  # of this server
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", seen
        listening.shutdown()
        thread.join()


def test_a_request_gives_status_headers_and_data(server: tuple[str, list[dict[str, Any]]]) -> None:
    """F13: JSON is data, everything else text."""
    url, seen = server
    done = run(
        "http.request",
        {"url": "{{ state.u }}/json", "query": {"q": "a b&c"}, "headers": {"X-A": "1"}},
        {"u": url},
    )
    assert (done["status"], done["body"]) == (200, {"n": [1, 2]})
    assert done["headers"]["content-type"] == "application/json"
    assert (seen[0]["method"], seen[0]["path"], seen[0]["headers"]["X-A"]) == ("GET", "/json?q=a+b%26c", "1")
    given = {"url": f"{url}/x", "json": {"a": "{{ state.n }}"}}
    assert run("http.request", given, {"n": 5})["body"] == "plain"
    assert (seen[1]["method"], seen[1]["body"]) == ("POST", '{"a": 5}')
    run("http.request", {"url": f"{url}/x", "method": "PUT", "body": "hello"})
    assert (seen[2]["method"], seen[2]["body"]) == ("PUT", "hello")
    assert run("http.request", {"url": f"{url}/broken.json"})["body"] == "{"
    assert run("http.request", {"url": f"{url}/kä se", "method": "HEAD"})["body"] == ""
    assert seen[4]["path"] == "/k%C3%A4%20se"
    unsendable = failing("http.request", {"url": url, "json": {"x": "{{ state.s }}"}}, {"s": {1}})
    assert "json can't be sent" in unsendable.reason
    assert "no answer" in failing("http.request", {"url": "http://[::1"}).reason


def test_a_request_can_carry_the_key_of_its_step(server: tuple[str, list[dict[str, Any]]]) -> None:
    """F13, H8: the same at each attempt."""
    url, seen = server
    for given in (True, "X-Key"):
        request = {"url": f"{url}/status/500", "method": "POST", "idempotency_key": given}
        node = {
            "name": "pay",
            "uses": "http.request",
            "with": request,
            "retry": {"attempts": 2, "backoff": 0},
        }
        with pytest.raises(ExecutionError):
            loads(json.dumps({"nodes": [node]})).execute({}, run_id="r")
    keys = [each["headers"].get("Idempotency-Key") or each["headers"].get("X-Key") for each in seen]
    assert keys == ["r/1/pay"] * 4


def test_a_bad_answer_fails_the_node_unless_it_may_be_bad(server: tuple[str, list[dict[str, Any]]]) -> None:
    """F13: without anything that may be secret."""
    url, _ = server
    secret = url.replace("http://", "http://user:hunter2@") + "/status/404?token=hunter3"
    problem = failing("http.request", {"url": secret, "headers": {"Authorization": "hunter4"}})
    assert (
        problem.reason == "GET http://127.0.0.1/status/404: the server answered 404"
        or "no answer" in problem.reason
    )
    assert "hunter" not in str(problem)
    assert run("http.request", {"url": f"{url}/status/404", "check": False})["status"] == 404
    assert "longer than 100 bytes" in str(failing("http.request", {"url": f"{url}/long", "max_bytes": 100}))
    gone = failing("http.request", {"url": "http://127.0.0.1:1/", "timeout": 2})
    assert "no answer" in gone.reason
    assert "no answer" in failing("http.request", {"url": f"{url}/x", "headers": {"A": "b\r\nc: d"}}).reason


def test_redirects_lead_to_http_only_and_carry_no_secrets_elsewhere(
    server: tuple[str, list[dict[str, Any]]],
) -> None:
    """F13: never to a file, never round and round, and not with a body."""
    url, seen = server
    assert run("http.request", {"url": f"{url}/to/ok"})["body"] == {"n": [1, 2]}
    for path in ("file", "ftp", "loop"):
        assert "the server answered 302" in str(failing("http.request", {"url": f"{url}/to/{path}"}))
    assert run("http.request", {"url": f"{url}/to/file", "check": False})["status"] == 302
    assert run("http.request", {"url": f"{url}/to/ok", "redirects": 0, "check": False})["status"] == 302
    assert run("http.request", {"url": f"{url}/to/ok", "body": "x", "check": False})["status"] == 302
    seen.clear()
    run("http.request", {"url": f"{url}/to/other", "headers": {"Authorization": "s", "X-A": "1"}})
    assert [("Authorization" in each["headers"], "X-A" in each["headers"]) for each in seen] == [
        (True, True),
        (False, True),
    ]


def test_what_templates_come_to_is_checked_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """F13: it may be a secret that came from the environment."""
    monkeypatch.setenv("TOKEN", "hunter2")
    for uses, given in (
        ("http.request", {"url": "{{ env.TOKEN }}"}),
        ("http.request", {"url": "http://127.0.0.1:1", "method": "{{ env.TOKEN }}"}),
        ("http.request", {"url": "http://127.0.0.1:1", "timeout": "{{ env.TOKEN }}"}),
        ("shell", {"command": ["ls"], "input": "{{ [env.TOKEN] }}"}),
    ):
        assert "hunter2" not in str(failing(uses, given))


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/y", "/x", "localhost", "data:text/plain,x"])
def test_only_http_is_asked(url: str) -> None:
    """F13: as written in the file, and as the result of a template."""
    assert "http://" in refused("http.request", {"url": url})
    assert "http://" in str(failing("http.request", {"url": "{{ state.u }}"}, {"u": url}))


# actions of users


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actions that are removed after the test."""
    monkeypatch.setattr(registry, "_registered", {})


@pytest.mark.usefixtures("added")
def test_an_action_of_ones_own_is_called_with_what_it_names() -> None:
    """F13, H7: sync or async; `with` goes before what is offered."""

    @action("mail.send")
    def send(to: str, subject: str = "-", *, ctx: Any, state: Any, node: str, config: Any) -> str:
        return f"{to} {subject} {ctx.run_id} {state['n']} {node} {config}"

    @action("later")
    async def later(state: str, run_id: str, parallel_results: Any) -> list[Any]:
        await asyncio.sleep(0)
        return [state, run_id, parallel_results]

    assert run("mail.send", {"to": "{{ state.n }}"}, {"n": 5}) == "5 - r 5 n {}"
    assert run("later", {"state": "mine"}) == ["mine", "r", []]
    with pytest.raises(DeclarationError, match=r"'mail\.send' doesn't take 'subjct'; did you mean 'subject'"):
        run("mail.send", {"to": "x", "subjct": "y"})
    with pytest.raises(DeclarationError, match="takes 'to', which it isn't given"):
        run("mail.send", {})
    with pytest.raises(DeclarationError, match=r"no action 'mail\.sned'; did you mean 'mail\.send'"):
        run("mail.sned", {})
    register_action("later", lambda **anything: anything)
    assert run("later", {"a": 1}) == {"a": 1}


@pytest.mark.usefixtures("added")
def test_what_cannot_be_an_action_is_refused() -> None:
    """F13."""
    for name, function, reason in (
        ("shell", print, "built in"),
        ("a b", print, "a word"),
        ("", print, "a word"),
        (5, print, "a word"),
        ("x", "y", "a function"),
    ):
        with pytest.raises(UsageError, match=reason):
            register_action(name, function)  # type: ignore[arg-type]  # on purpose
    assert set(BUILT_IN) == {
        "checkpoint.load",
        "checkpoint.save",
        "emit",
        "file.read",
        "file.write",
        "http.request",
        "join",
        "progress",
        "prompt",
        "python",
        "receive",
        "set",
        "shell",
        "sleep",
        "start",
    }


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """An installed package that brings actions."""

    def install(points: str) -> None:
        (tmp_path / "kelp_actions.py").write_text("def weigh(n):\n    return n * 2\n")
        info = tmp_path / "kelp-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kelp\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[limpet.actions]\n{points}\n")
        monkeypatch.syspath_prepend(tmp_path)

    yield install
    sys.modules.pop("kelp_actions", None)


@pytest.mark.usefixtures("added")
def test_packages_bring_actions_which_are_imported_when_a_graph_is_built(
    package: Callable[[str], None],
) -> None:
    """F13: looking at a file knows their names without importing them."""
    package("kelp.weigh = kelp_actions:weigh\nkelp.gone = kelp_actions:gone")
    text = json.dumps({"nodes": [{"name": "n", "uses": "kelp.weigh", "with": {"n": 4}, "output": "out"}]})
    check_text(text)
    assert "kelp_actions" not in sys.modules
    assert loads(text).execute({})["out"] == 8
    with pytest.raises(DeclarationError, match=r"'kelp\.gone' can't be loaded from kelp_actions:gone"):
        run("kelp.gone", {})


@pytest.mark.usefixtures("added")
def test_modules_that_a_file_imports_bring_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F13: while such a file is only checked, unknown actions may be theirs."""
    (tmp_path / "own_actions.py").write_text(
        "import limpet\n\n@limpet.action('own.add')\ndef add(a, b):\n    return a + b\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = "imports: [own_actions]\nnodes: [{name: n, uses: own.add, with: {a: 1, b: 2}, output: out}]"
    check_text(text)
    assert "own_actions" not in sys.modules
    assert loads(text).execute({})["out"] == 3
    sys.modules.pop("own_actions")
    with pytest.raises(DeclarationError, match="no module 'own_action' to import"):
        loads(text.replace("own_actions", "own_action"))
    (tmp_path / "broken_actions.py").write_text("1 / 0")
    with pytest.raises(DeclarationError, match="'broken_actions' can't be imported: ZeroDivisionError"):
        loads(text.replace("own_actions", "broken_actions"))


def test_actions_of_a_fan_in_see_the_results_of_branches() -> None:
    """F13, F12."""
    graph = loads("""
nodes:
  - name: go
  - {name: a, uses: python, with: {function: "builtins:dict", arguments: {n: 1}}, output: x}
  - {name: b, uses: python, with: {function: "builtins:dict", arguments: {n: 2}}, output: x}
  - name: sum
    uses: python
    with: {function: "builtins:dict", arguments: {all: "{{ parallel_results | map(attribute='x.n') | list }}"}}
    output: total
edges: [{from: go, parallel: [a, b], fan_in: sum}, {from: sum, to: END}]
""")
    assert graph.execute({})["total"] == {"all": [1, 2]}


def test_templates_distinguish_branches_and_see_which_failed() -> None:
    """F13, F12: by attribute what the branch is, by key what its state has."""
    graph = loads("""
nodes:
  - name: go
  - {name: good, uses: python, with: {function: "builtins:dict", arguments: {n: 1}}, output: error}
  - {name: bad, uses: file.read, with: {path: /no/such/file}, output: x}
  - name: sum
    uses: python
    with:
      function: builtins:dict
      arguments:
        branches: "{{ parallel_results | map(attribute='branch') }}"
        failed: "{% for r in parallel_results if r.error %}{{ r.error.node }}: {{ r.error.message }}{% endfor %}"
        key: "{{ parallel_results[0]['error'] }}"
    output: total
edges: [{from: go, parallel: [good, bad], fan_in: sum, on_error: collect}, {from: sum, to: END}]
""")
    assert graph.execute({})["total"] == {
        "branches": ["good", "bad"],
        "failed": "bad/bad: file.read: /no/such/file can't be read as text: No such file or directory",
        "key": {"n": 1},
    }


def test_set_updates_the_state_with_what_templates_compute() -> None:
    """F13: exact types, reducers, nested data, and values as they are written."""
    graph = loads("""
state: {n: int, log: {type: list, reducer: append}}
nodes:
  - name: compute
    set:
      n: "{{ state.n * 2 + 1 }}"
      half: "{{ state.n / 2 }}"
      log: "n was {{ state.n }}"
      nested: {list: ["{{ state.n }}", 7], plain: "state.n"}
      none: null
  - {name: again, uses: set, with: {n: "{{ state.n + 1 }}"}}
  - {name: apart, uses: set, with: {a: "{{ state.n }}"}, output: kept}
""")
    state = graph.execute({"n": 3})
    assert state["n"] == 8
    assert state["half"] == 1.5
    assert state["log"] == ["n was 3"]
    assert state["nested"] == {"list": [3, 7], "plain": "state.n"}
    assert state["none"] is None
    assert state["kept"] == {"a": 8}
    assert "a" not in state


def test_set_reads_the_state_as_it_was_before() -> None:
    """F13"""
    graph = loads('nodes: [{name: swap, set: {a: "{{ state.b }}", b: "{{ state.a }}"}}]')
    state = graph.execute({"a": 1, "b": 2})
    assert (state["a"], state["b"]) == (2, 1)


@pytest.mark.parametrize(
    ("node", "mistake"),
    [
        ("{name: n, set: {}}", "set must be a mapping of names to values, not an empty"),
        ("{name: n, uses: set}", "nothing to set"),
        ("{name: n, set: 5}", "set must be a mapping"),
        ('{name: n, set: {a: "{{ stat.b }}"}}', "unknown variable 'stat'"),
        ('{name: n, set: {a: "{{ state.b + }}"}}', "can't be parsed"),
        ('{name: n, set: {a: 1}, run: "m:f"}', "'run' and 'set'"),
        ("{name: n, set: {a: 1}, output: b}", "output"),
    ],
)
def test_mistakes_of_set_have_their_places(node: str, mistake: str) -> None:
    """F13"""
    with pytest.raises(DeclarationError, match="<text>:1:") as caught:
        check_text(f"nodes: [{node}]")
    assert mistake in str(caught.value)


@pytest.mark.parametrize("text", ["{{ state.__class__ }}", "{{ ''.__class__.__mro__ }}", "{{ state.f() }}"])
def test_set_calls_no_code(text: str) -> None:
    """F13: a template reads data."""
    graph = loads(json.dumps({"nodes": [{"name": "n", "set": {"a": text}}]}))
    with pytest.raises(ExecutionError, match="node 'n'"):
        graph.execute({"n": 1})
