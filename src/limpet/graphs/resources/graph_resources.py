"""Resources: live objects that nodes take as parameters, such as clients, pools and models. They are never stored.

`compile(resources={"llm": client})` gives an object, or a factory that makes it. A resource becomes part of the
function that takes it when the graph is compiled: `with_resources` wraps the function. So neither the loop nor the
journal knows of resources. In another process, such as one of a pool, the wrapped function arrives with the
factories, and the objects are made by them there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from limpet.errors import DefinitionError, ResourceFailed
from limpet.graphs.resources.live_resource import LiveResource, open_resources
from limpet.graphs.resources.opening import Resource, can_be_called

if TYPE_CHECKING:
    from limpet.graphs.workflow.tasks import TaskDefinition, TaskSignature

RESERVED: Final = frozenset(
    [
        "state",
        "config",
        "node",
        "graph",
        "parallel_results",
        "ctx",
        "error",
        "context",
        "inputs",
        "results",
        "layer",
    ]
)
"""The names of what nodes, tasks and handlers are given anyway: no resource can have one of them."""


class GivenObject(NamedTuple):
    """A resource that the user has opened, and closes."""

    name: str
    value: Any

    def get(self) -> Any:
        return self.value

    async def get_on_loop(self) -> Any:
        return self.value


class Resources(Mapping[str, "LiveResource | GivenObject"]):
    """The resources of a graph by name."""

    def __init__(self, resources: Iterable[LiveResource | GivenObject]) -> None:
        self._resources = {each.name: each for each in resources}

    def __getitem__(self, name: str) -> LiveResource | GivenObject:
        return self._resources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._resources)

    def __len__(self) -> int:
        return len(self._resources)

    def close(self) -> None:
        """Close those that are open, the newest first. Raises `ResourceFailed` once all were tried."""
        problems = []
        for resource in self._open_ones():
            try:
                resource.close()
            except ResourceFailed as problem:
                problems.append(problem)
        if problems:
            raise problems[0]

    async def aclose(self) -> None:
        """The same without blocking the event loop. Those that were opened on it are closed on it."""
        problems = []
        for resource in self._open_ones():
            try:
                await resource.aclose()
            except ResourceFailed as problem:
                problems.append(problem)
        if problems:
            raise problems[0]

    def _open_ones(self) -> list[LiveResource]:
        own = set(map(id, self._resources.values()))
        return [resource for resource in reversed(list(open_resources)) if id(resource) in own]


def read_resources(given: Any) -> Resources | None:
    """The resources that `compile()` was given. Raises `DefinitionError` that lists what is wrong with them."""
    if given is None or isinstance(given, Resources):
        return given
    if not isinstance(given, Mapping):
        raise DefinitionError(f"resources must be a dict of objects or factories by name, not {given!r}")
    mistakes: list[str] = []
    resources: list[LiveResource | GivenObject] = []
    for name, value in given.items():
        what = f"resource {name!r}"
        if not isinstance(name, str) or not name.isidentifier():
            mistakes.append(f"{what}: its name must be that of a parameter")
            continue
        if name in RESERVED:
            mistakes.append(f"{what} has the name of what nodes get anyway; give it another one")
        if not _is_factory(value):
            resources.append(GivenObject(name, value))
            continue
        made_by = value if isinstance(value, Resource) else Resource(value)
        mistakes += (f"{what}: {mistake}" for mistake in _mistakes(made_by))
        resources.append(LiveResource(name, made_by))
    if mistakes:
        raise DefinitionError(mistakes)
    return Resources(resources)


def _is_factory(value: Any) -> bool:
    """Whether a value makes the resource. An object that happens to be callable, as many clients are, doesn't."""
    return isinstance(value, (Resource, type, partial)) or inspect.isroutine(value)


def _mistakes(made_by: Resource) -> Iterator[str]:
    make, close = made_by
    if not callable(make):
        yield f"its factory is not callable: {make!r}"
    elif not can_be_called(make):
        yield "its factory is called without arguments, and it needs some: use functools.partial"
    if close is not None and not (callable(close) and can_be_called(close, None)):
        yield f"close must be a function of the object, not {close!r}"


class CallWithResources:
    """A function that some of its parameters are filled for: with these resources, by parameter."""

    def __init__(self, call: Callable[..., Any], resources: Mapping[str, LiveResource | GivenObject]) -> None:
        update_wrapper(self, call)  # first, as it may copy attributes of any name
        self._call = call
        self.resources = resources

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        opened = {parameter: each.get() for parameter, each in self.resources.items()}
        return self._call(*args, **kwargs, **opened)

    def __reduce__(self) -> Any:
        return type(self), (self._call, self.resources)


class AsyncCallWithResources(CallWithResources):
    """The same for an async function, which may need resources of the event loop that it runs on."""

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        opened = {parameter: await each.get_on_loop() for parameter, each in self.resources.items()}
        return await self._call(*args, **kwargs, **opened)


def with_resources(
    call: Callable[..., Any], is_async: bool, resources: Mapping[str, LiveResource | GivenObject]
) -> CallWithResources:
    """A function whose parameters of these names get the resources."""
    kind = AsyncCallWithResources if is_async else CallWithResources
    return kind(call, resources)


def task_with_resources(definition: TaskDefinition, resources: Mapping[str, Any]) -> TaskDefinition:
    """The code of a task, with the resources that its function and its condition take."""
    return definition._replace(
        signature=signature_with_resources(definition.signature, resources),
        condition=signature_with_resources(definition.condition, resources),
    )


def signature_with_resources(
    signature: TaskSignature | None, resources: Mapping[str, Any]
) -> TaskSignature | None:
    """A function of a workflow with the resources that its parameters name, which it takes no longer."""
    if signature is None:
        return None
    names = (*signature.required, *signature.optional)
    taken = {name: resources[name] for name in names if name in resources}
    if not taken:
        return signature
    return signature._replace(
        call=with_resources(signature.call, signature.is_async, taken),
        required=tuple(name for name in signature.required if name not in taken),
        optional=tuple(name for name in signature.optional if name not in taken),
    )


def unsendable(call: Any) -> list[str]:
    """The names of the resources of a function that can't be sent to another process, nor made there."""
    if not isinstance(call, CallWithResources):
        return []
    from multiprocessing.reduction import ForkingPickler

    found = []
    for resource in call.resources.values():
        try:
            ForkingPickler.dumps(resource)
        except Exception:
            found.append(resource.name)
    return found
