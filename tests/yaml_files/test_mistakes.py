"""The mistakes of a file are listed all at once, each with its place and the nearest right word."""

from __future__ import annotations

import sys

import pytest

from limpet import DeclarationError, DefinitionError, LimpetError, UsageError, load, loads
from limpet.yaml_files.loading import check_text


def mistakes(text: str) -> list[str]:
    """What loading finds, which looking finds as well."""
    with pytest.raises(DeclarationError) as caught:
        loads(text, name="f.yaml")
    with pytest.raises(DeclarationError) as looked:
        check_text(text, "f.yaml")
    assert looked.value.mistakes == caught.value.mistakes
    assert [f"f.yaml:{line}:{column}" for line, column in caught.value.places] == [
        ":".join(each.split(":")[:3]) for each in caught.value.mistakes
    ]
    return caught.value.mistakes


def test_all_mistakes_of_a_file_are_listed_at_once_in_its_order() -> None:
    """F13: keys, types, names, templates and references between nodes."""
    found = mistakes(
        """\
nmae: agent
state: {value: itn, log: {reducer: apend}}
nodes:
  - name: prepare
    run: "return {'x': 1}"
    tiemout: 5
  - name: review
    uses: shel
    with: {command: [ls, "{{ stat.x }}"]}
    interrupt: befor
  - name: a/b
  - {name: ask, uses: prompt, with: {txt: hm}}
edges:
  - {from: prepare, to: revew}
  - {from: review, when: state.x, to: END}
  - {from: review, condition: "state.x >", to: END}
config: {interrupt_before: review, max_iterations: 0, stoer: memory}
"""
    )
    assert found == [
        "f.yaml:1:1: a graph has no key 'nmae'; did you mean 'name'?",
        "f.yaml:2:16: state.value can't be 'itn'; did you mean 'int'?",
        "f.yaml:2:36: reducer can't be 'apend'; did you mean 'append'?",
        "f.yaml:5:10: run must be a function as module:function (code is in modules, not in the file), "
        "not \"return {'x': 1}\"",
        "f.yaml:6:5: node 'prepare' has no key 'tiemout'; did you mean 'timeout'?",
        "f.yaml:8:11: there is no action 'shel'; did you mean 'shell'?",
        "f.yaml:9:26: node 'review': '{{ stat.x }}' uses the unknown variable 'stat'; did you mean 'state'?",
        "f.yaml:10:16: interrupt can't be 'befor'; did you mean 'before'?",
        "f.yaml:11:11: name must be a name without '/', and not START or END, not 'a/b'",
        "f.yaml:12:37: with of prompt needs the key 'text'",
        "f.yaml:12:38: with of prompt has no key 'txt'; did you mean 'text'?",
        "f.yaml:15:20: edges[1] has no key 'when'; did you mean 'condition'?",
        "f.yaml:16:31: the edge from 'review', condition: 'state.x >' can't be parsed: unexpected 'end of template'",
        "f.yaml:17:28: interrupt_before must be a list of the names of nodes, not 'review'",
        "f.yaml:17:52: max_iterations must be a whole number of at least 1, not 0",
        "f.yaml:17:55: config has no key 'stoer'; did you mean 'store'?",
    ]


def test_mistakes_between_nodes_have_their_places() -> None:
    """F13, G2: where a name is wrong, and where a node is that can't be reached."""
    found = mistakes(
        """\
nodes:
  - {name: a}
  - {name: b, goto: [c, {to: d, condition: state.x}]}
  - {name: lonely, goto: END}
  - name: dead
edges:
  - {from: a, to: b}
  - {from: nowhere, to: b}
  - {from: c, choose: state.x, cases: {1: z, 2: END}}
  - {from: a, parallel: [b, q], fan_in: r}
entry: a
finish: zz
"""
    )
    assert found == [
        "f.yaml:3:22: an edge from 'b': there is no node 'c'",
        "f.yaml:3:30: an edge from 'b': there is no node 'd'",
        "f.yaml:4:12: node 'lonely' can't be reached from the entry point",
        "f.yaml:5:11: node 'dead' can't be reached from the entry point",
        "f.yaml:5:11: node 'dead' leads nowhere: give it a goto or an edge; END ends the run",
        "f.yaml:8:12: an edge from nowhere: there is no node 'nowhere'",
        "f.yaml:9:12: an edge from nowhere: there is no node 'c'",
        "f.yaml:9:43: an edge from 'c': there is no node 'z'",
        "f.yaml:10:29: an edge from 'a': there is no node 'q'",
        "f.yaml:10:41: an edge from 'a': there is no node 'r'",
        "f.yaml:12:9: a finish point: there is no node 'zz'",
    ]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            "nodes: [{name: a, goto: a}]",
            "1:8: no finish point: say where the run may end, by finish: name or an edge to END",
        ),
        (
            "nodes: [{name: a, run: 'm:f', prompt: x}]",
            "1:31: node 'a' has 'run' and 'prompt'; only one of them is allowed",
        ),
        ("nodes: [{name: a, with: {}}]", "1:19: 'with' needs 'uses'"),
        ("nodes: [{name: a, run: 'm:f', output: x}]", "1:31: 'output' needs 'uses' or 'prompt'"),
        ("nodes: [{name: a, inputs: {}}]", "1:19: 'inputs' needs 'graph'"),
        (
            "nodes: [{name: a}]\nedges: [{from: a}]",
            "2:9: edges[0] needs one of 'to', 'choose', 'parallel', 'each'",
        ),
        ("nodes: [{name: a}]\nedges: [{from: a, parallel: [a]}]", "2:19: 'parallel' needs 'fan_in'"),
        ("nodes: [{name: a}]\nedges: [{from: a, each: a, fan_in: a}]", "2:19: 'each' needs 'over'"),
        ("nodes: [{name: a}]\nedges: [{from: a, to: END, cases: {1: a}}]", "2:28: 'cases' needs 'choose'"),
        (
            "nodes: [{name: a}]\nedges: [{from: a, to: START}]",
            "2:23: nothing leads to START, and nothing follows END",
        ),
        (
            "nodes: [{name: a}]\nedges: [{from: END, to: a}]",
            "2:25: nothing leads to START, and nothing follows END",
        ),
        ("nodes: [{name: a}]\nedges: [{from: START, choose: '1'}]", "2:16: START leads to one node"),
        ("nodes: [{name: a, goto: END}]\nedges: [{from: a, to: END}]", "1:25: node 'a' has a goto and edges"),
        (
            "nodes: [{name: START}]",
            "1:16: name must be a name without '/', and not START or END, not 'START'",
        ),
        ("nodes: [{name: 5}]", "1:16: name must be a name without '/', and not START or END, not 5"),
        ("nodes: [{name: ''}]", "1:16: name must be a name"),
        ("nodes: [{name: a}]\nentry: b", "2:8: the entry point: there is no node 'b'"),
        ("nodes: [{name: a}, {name: a}]", "1:27: a node named 'a' already exists"),
        ('nodes: [{name: "a\\u0007"}]', "1:16: a node's name must be a printable str"),
        (
            "nodes: [{name: a}]\nstate: {x: {type: int, reducer: append}}",
            "2:33: append adds to a list, and x is int",
        ),
        (
            "nodes: [{name: a}]\nstate: {x: {type: list, reducer: merge}}",
            "2:34: merge adds to a dict, and x is list",
        ),
        (
            "nodes: [{name: a}]\nstate: {x: {type: int, default: [1]}}",
            "2:33: the default of x is a list of 1, and its type is int",
        ),
        (
            "nodes: [{name: a}]\nstate: {x: {type: int, default: true}}",
            "2:33: the default of x is true, and its type is int",
        ),
        (
            "nodes: [{name: a}]\nstate: {x: {reducer: merge, default: 5}}",
            "2:38: the default of x is 5, and its type is dict",
        ),
        ("nodes: [a]", "1:9: nodes[0] must be a mapping, not 'a'"),
        ("nodes: {a: b}", "1:8: nodes must be a list of nodes, not a mapping (a)"),
        ("nodes: 5", "1:8: nodes must be a list of nodes, not 5"),
        ("name: x", "1:1: a graph needs the key 'nodes'"),
        ("5", "1:1: a declaration must be a mapping that declares a graph or a workflow, not 5"),
        ("nodes: [{name: a}]\ntasks: [{name: b, run: 'm:f'}]", "1:1: a workflow has no key 'nodes'"),
        (
            "nodes: [{name: a}]\nstate: {x: int}\nstate_schema: {x: int}",
            "3:1: a graph has 'state' and 'state_schema'",
        ),
        ("nodes: [{name: a}]\nstate: {1: int}", "2:9: a key of state must be a text: write '1', in quotes"),
        (
            "nodes: [{name: a}]\nconfig: {checkpoint_dir: '{{ env.DIR }}'}",
            "2:26: checkpoint_dir can't be a template: config is read when the file is loaded",
        ),
        ("nodes: [{name: a}]\nconfig: {store: 'sqlite:///{{ x }}.db'}", "2:17: store can't be a template"),
        ("nodes: [{name: a}]\nconfig: {checkpoint: '{{ state.c }}'}", "2:22: checkpoint can't be a template"),
        ("nodes: [{name: a, timeout: 0}]", "1:28: timeout must be a number of seconds above 0, not 0"),
        ("nodes: [{name: a, timeout: .nan}]", "1:28: timeout must be a number of seconds above 0, not nan"),
        ("nodes: [{name: a, timeout: true}]", "1:28: timeout must be a number of seconds above 0, not true"),
        ("nodes: [{name: a, retry: 0}]", "1:26: retry must be a whole number of at least 1, not 0"),
        (
            "nodes: [{name: a, retry: {attempt: 3}}]",
            "1:27: retry has no key 'attempt'; did you mean 'attempts'?",
        ),
        (
            "nodes: [{name: a, retry: {on: Valuerror}}]",
            "1:26: 'Valuerror' is not an exception; did you mean 'ValueError'?",
        ),
        ("nodes: [{name: a, retry: {on: int}}]", "1:26: 'int' is not an exception"),
        ("nodes: [{name: a, interrupt: [before, never]}]", "1:39: interrupt[1] can't be 'never'"),
        ("nodes: [{name: a, graph: x.txt}]", "1:26: graph must be the path of a .yaml file"),
        (
            "nodes: [{name: a, graph: {nodes: [{nam: x}]}}]",
            "1:36: nodes[0] has no key 'nam'; did you mean 'name'?",
        ),
        (
            "nodes: [{name: a, graph: {nodes: [{name: x, goto: y}]}}]",
            "1:51: an edge from 'x': there is no node 'y'",
        ),
        ("nodes: [{name: a}]\nimports: [a b]", "2:11: imports[0] must be the name of a module, not 'a b'"),
        ("nodes: [{name: a}]\nconfig: {interrupt_after: [b], store: memory}", "there is no node 'b'"),
    ],
)
def test_a_mistake_has_its_place_and_says_what_would_be_right(text: str, mistake: str) -> None:
    """F13."""
    assert any(mistake in each for each in mistakes(text)), mistakes(text)


def test_a_mistake_in_a_file_is_a_mistake_in_a_definition() -> None:
    """F13: `except DefinitionError` catches these; the code is its own."""
    with pytest.raises(DefinitionError) as caught:
        loads("nodes: 5")
    assert (caught.value.code, issubclass(DeclarationError, LimpetError)) == ("declaration", True)


def test_missing_code_is_listed_with_its_place_and_all_at_once() -> None:
    """F13: when a graph is loaded; looking at it imports nothing."""
    text = """\
nodes:
  - {name: a, run: "no_such_module:f"}
  - {name: b, run: "os.path:joim"}
  - {name: c, run: "os:sep"}
  - {name: d, retry: {on: "json:JSONDecodeErorr"}}
  - {name: e, run: "limpet:append"}
state: {x: "json:JSONDecoder", y: "os:sep", z: {reducer: "os:sep"}, u: "gone_module:T"}
"""
    check_text(text)
    with pytest.raises(DeclarationError) as caught:
        loads(text, name="f.yaml")
    found = caught.value.mistakes
    for start, reason in (
        ("f.yaml:2:20: ", "there is no module 'no_such_module' to import"),
        ("f.yaml:3:20: ", "there is no 'joim' in os.path; did you mean 'join'?"),
        ("f.yaml:4:12: ", "node 'c' is not callable: '/'"),
        ("f.yaml:5:22: ", "did you mean 'JSONDecodeError'?"),
        ("f.yaml:6:12: ", "node 'e' has an unknown parameter 'new'"),
        ("f.yaml:7:35: ", "'os:sep' is not a class"),
        ("f.yaml:7:72: ", "there is no module 'gone_module'"),
        ("f.yaml:7:58: ", "'os:sep' is not a function (old, new)"),
    ):
        assert any(each.startswith(start) and reason in each for each in found), (start, found)
    assert len(found) == 8


def test_a_class_that_describes_no_state_is_a_mistake_at_its_place() -> None:
    """F13."""
    with pytest.raises(DeclarationError, match="<text>:2:8: a schema must be a dict of types"):
        loads("nodes: [{name: a}]\nstate: json:JSONDecoder")


def test_settings_that_there_are_not_are_the_callers_mistake() -> None:
    """F13: with the nearest one."""
    for text in ("nodes: [{name: a}]", "tasks: [{name: a, prompt: x}]"):
        with pytest.raises(UsageError, match="there is no setting 'stoer'; did you mean 'store'"):
            loads(text, stoer="memory")


def test_without_the_extra_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """F13: it names what to install."""
    from limpet.yaml_files.templates import sandbox

    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match=r"pip install 'limpet\[yaml\]'"):
        loads("nodes: [{name: a}]")
    with pytest.raises(UsageError, match="there is no file"):
        load("gone.yaml")
    monkeypatch.undo()
    sandbox.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert loads("nodes: [{name: a}]").execute({}) == {}
    with pytest.raises(UsageError, match=r"pip install 'limpet\[yaml\]'"):
        loads("nodes: [{name: a, prompt: '{{ state.x }}'}]")


def test_mistakes_in_texts_are_reported_along_with_all_others() -> None:
    """F13, H17, H18: each at its line, of graphs and of workflows, when the file is only checked, too."""
    text = """
limits:
  openai: {rate: 60/mn, queues: ["c,d"]}
nodes:
  - name: ask
    set: {x: 1}
    limits: [openai]
schedules:
  - {name: often, every: 1h, timezone: X, queue: "e/f"}
  - {name: nightly, cron: a b c d e}
config:
  queue: a,b
  lease: soon
"""
    for kind in ("nodes", "tasks"):
        declared = text.replace("nodes", kind)
        found = mistakes(declared)
        assert [int(each.split(":")[1]) for each in found] == [3, 3, 9, 9, 10, 12, 13]
        assert mistakes(declared.replace("soon", "5")) == found[:-1]
