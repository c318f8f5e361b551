"""Builds a workflow from a file: tasks, and what each depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpet.compile_options import WorkflowOptions
from limpet.errors import DefinitionError
from limpet.graphs.workflow.tasks import TASK_PARAMETERS
from limpet.workflow import Workflow
from limpet.yaml_files.build.builder import DeclarationBuilder, NestedGraph, check_settings
from limpet.yaml_files.build.from_checkpoint import ResumesFromCheckpoint
from limpet.yaml_files.document import Value
from limpet.yaml_files.node_functions import (
    TASK_VARIABLES,
    TEMPLATE_VARIABLES,
    BoundAction,
    task_condition,
    task_function,
)
from limpet.yaml_files.templates import TemplateCompiler

_COMPILE_SETTINGS = (
    "store",
    "preserve",
    "keep_result",
    "lease",
    "max_concurrency",
    "on_save_error",
    "on_mismatch",
    "keep",
    "deadline",
    "queue",
    "opentelemetry",
)


class DeclaredWorkflow(ResumesFromCheckpoint, Workflow):
    """A `Workflow` from a file. Its runs resume from a checkpoint if the file or `load` names one."""


class WorkflowBuilder(DeclarationBuilder):
    """Builds one workflow."""

    variables = TASK_VARIABLES
    kind = "workflow"

    def define(self, name: str) -> DeclaredWorkflow:
        """The workflow with all of its tasks. Notes its mistakes."""
        self.import_modules()
        self.import_resources()
        self.limits.read(self.is_partial)
        self.check_config()
        options = self.settings(("max_layers", "layers", "on_error", "observers"))
        flow: DeclaredWorkflow = self.attempt(
            self.value.place_of("config"),
            lambda: DeclaredWorkflow(name, **options),
            DeclaredWorkflow(name),
        )
        flow._use_resources(self.resources)
        places: dict[str, Value] = {}
        for declared in self.value.items("tasks"):
            task = declared.text("name")
            if task:
                places.setdefault(task, declared.place_of("name"))
                self._add_task(flow, task, declared)
        for declared in self.value.items("templates"):
            template = declared.text("name")
            if template:
                self._add_template(flow, template, declared)
        handler = self.value.get("after_layer")
        if handler is not None and not self.is_partial:
            self.attempt(handler, lambda: flow.after_layer(self.object_at(handler)))
        if not self.is_partial:
            self._check(flow, places)
        return flow

    def interrupts(self) -> tuple[list[str], list[str]]:
        """The interrupts before and after tasks. A workflow has none."""
        return [], []

    def compile(self, flow: DeclaredWorkflow, overrides: Mapping[str, Any]) -> None:
        """Compile the workflow with the settings of `config`, and those of the caller in place of them."""
        check_settings(overrides, ["store", *WorkflowOptions.__annotations__])
        settings = {
            **self.settings(_COMPILE_SETTINGS),
            "limits": self.limits.of_graph(),
            **overrides,
            **self.all_resources(overrides),
        }
        self.attempt(self.value.place_of("config"), lambda: flow.compile(**settings))

    def _add_task(self, flow: DeclaredWorkflow, name: str, declared: Value) -> None:
        owner = f"task {name!r}"
        if name in TASK_PARAMETERS:
            message = (
                f"a task can't be called {name!r}: templates and functions use that name for something else"
            )
            self.mistakes.note(declared.place_of("name"), message)
            return
        work = self.work_of(declared, owner)
        options = self._options(declared, owner, self.compiler)
        if isinstance(work, BoundAction):
            work = task_function(work)
        elif isinstance(work, NestedGraph):
            work = work.graph
        for key in ("depends_on", "optional", "arguments"):
            if key in declared.data and not self.is_partial:
                options[key] = declared.data[key].plain_data()
        if work is not None:
            self.attempt(declared.place_of("name"), lambda: flow.add_task(name, work, **options))

    def _add_template(self, flow: DeclaredWorkflow, name: str, declared: Value) -> None:
        owner = f"template {name!r}"
        compiler = TemplateCompiler(self.mistakes, TEMPLATE_VARIABLES)
        work = self.work_of(declared, owner, compiler)
        options = self._options(declared, owner, compiler)
        if isinstance(work, BoundAction):
            work = task_function(work, of_template=True)
        elif isinstance(work, NestedGraph):
            work = work.graph
        if work is not None:
            self.attempt(declared.place_of("name"), lambda: flow.add_template(name, work, **options))

    def _options(self, declared: Value, owner: str, compiler: TemplateCompiler) -> dict[str, Any]:
        """What a task and a template for tasks have besides their work."""
        options = self.policy_of(declared)
        condition = declared.get("condition")
        if condition is not None and isinstance(condition.data, str):
            template = compiler.expression(condition, f"{owner}, condition")
            options["condition"] = None
            if template is not None:
                options["condition"] = task_condition(template, of_template=compiler is not self.compiler)
        if "safe_to_fail" in declared.data and not self.is_partial:
            options["safe_to_fail"] = declared.data["safe_to_fail"].plain_data()
        return options

    def _check(self, flow: DeclaredWorkflow, places: Mapping[str, Value]) -> None:
        """Note the mistakes of the workflow as a whole at the tasks that they name."""
        try:
            flow.validate()
        except DefinitionError as problem:
            for text in problem.mistakes:
                place = next((place for name, place in places.items() if f"task {name!r}" in text), None)
                self.mistakes.note(place or self.value.place_of("tasks"), text)
