"""A declared workflow: tasks, and what each depends on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from limpet.yaml_files import node_functions as calls
from limpet.yaml_files.build.builder import Building, Inside, check_settings
from limpet.yaml_files.node_functions import IN_WORKFLOWS, Work
from limpet.yaml_files.document import Value
from limpet.yaml_files.build.from_checkpoint import FromCheckpoint
from limpet.errors import DefinitionError
from limpet.graphs.workflow.tasks import OFFERED
from limpet.compile_options import WorkflowOptions
from limpet.workflow import Workflow

_SETTINGS = ("store", "preserve", "lease", "max_concurrency", "on_save_error", "on_mismatch", "keep")


class DeclaredWorkflow(FromCheckpoint, Workflow):
    """A `Workflow` that came from a file. Its runs go on from a checkpoint, if the file or `load` names one."""


class WorkflowBuilding(Building):
    """One workflow while it is built."""

    variables = IN_WORKFLOWS
    kind = "workflow"

    def define(self, name: str) -> DeclaredWorkflow:
        """The workflow, with all of its tasks. Notes what is wrong with it."""
        self.import_modules()
        given = self.settings(("max_layers", "observers"))
        flow: DeclaredWorkflow = self.attempt(
            self.value.at("config"), lambda: DeclaredWorkflow(name, **given), DeclaredWorkflow(name)
        )
        places: dict[str, Value] = {}
        for each in self.value.all("tasks"):
            if task := each.text("name"):
                places.setdefault(task, each.at("name"))
                self._add_task(flow, task, each)
        if not self.partial:
            self._check(flow, places)
        return flow

    def interrupts(self) -> tuple[list[str], list[str]]:
        """A workflow has none."""
        return [], []

    def compile(self, flow: DeclaredWorkflow, overrides: Mapping[str, Any]) -> None:
        """Fix how it runs, as `config` says unless somebody says otherwise."""
        check_settings(overrides, ["store", *WorkflowOptions.__annotations__])
        given = {**self.settings(_SETTINGS), **overrides}
        self.attempt(self.value.at("config"), lambda: flow.compile(**given))

    def _add_task(self, flow: DeclaredWorkflow, name: str, each: Value) -> None:
        owner = f"task {name!r}"
        if name in OFFERED:
            taken = f"a task can't be called {name!r}, which is what templates call something else"
            self.mistakes.note(each.at("name"), taken)
            return
        work, options = self.work_of(each, owner), self.policy(each)
        if isinstance(work, Work):
            work = calls.task_function(work)
        elif isinstance(work, Inside):
            work = work.graph
        condition = each.get("condition")
        if condition is not None and isinstance(condition.data, str):
            template = self.compiler.expression(condition, f"{owner}, condition")
            options["condition"] = None if template is None else calls.task_condition(template)
        for key in ("depends_on", "optional", "safe_to_fail", "arguments"):
            if key in each.data and not self.partial:
                options[key] = each.data[key].plain()
        if work is not None:
            self.attempt(each.at("name"), lambda: flow.add_task(name, work, **options))

    def _check(self, flow: DeclaredWorkflow, places: Mapping[str, Value]) -> None:
        try:
            flow.validate()
        except DefinitionError as problem:
            for text in problem.mistakes:
                about = next((place for name, place in places.items() if f"task {name!r}" in text), None)
                self.mistakes.note(about or self.value.at("tasks"), text)
