"""The units and manifests of the page on deployment: their commands exist, and what kills them waits long enough."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from limpet.cli.arguments import make_parser

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "deployment.md").read_text(encoding="utf-8")
SHORTEST_MARGIN = 5
"""Seconds that a worker has for its store after its nodes' grace, at least: see `STORE_GRACE`."""


class Command(NamedTuple):
    """A command of the page: its words, and the seconds that it has from SIGTERM to SIGKILL."""

    words: list[str]
    patience: float | None


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.M | re.S)


def commands() -> list[Command]:
    (image,) = blocks("dockerfile")
    found = [Command(yaml.safe_load(re.findall(r"^CMD (.*)$", image, re.M)[0]), None)]
    (text,) = blocks("ini")
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    service = unit["Service"]
    found.append(Command(service["ExecStart"].split()[1:], float(service["TimeoutStopSec"])))
    for text in blocks("yaml"):
        document = yaml.safe_load(text)
        found += of_compose(document, found[0].words)
        if document.get("kind") == "Deployment":
            pod = document["spec"]["template"]["spec"]
            found += [
                Command(each["args"], pod.get("terminationGracePeriodSeconds")) for each in pod["containers"]
            ]
    return found


def of_compose(document: dict[str, Any], default: list[str]) -> list[Command]:
    return [
        Command(each.get("command", default), float(each.get("stop_grace_period", "10s").removesuffix("s")))
        for each in document.get("services", {}).values()
    ]


def test_every_command_exists_with_its_options() -> None:
    """H11, H19: the image's, the unit's, and those of the manifests."""
    seen = [make_parser().parse_args(each.words) for each in commands()]
    assert {each.words[0] for each in commands()} == {"worker", "serve"}
    assert len(seen) == 6


def test_what_kills_a_worker_waits_for_longer_than_its_grace() -> None:
    """H11: else nodes that would have finished run again, and a run may be quarantined for its deployments."""
    workers = [each for each in commands() if each.words[0] == "worker" and each.patience is not None]
    assert len(workers) == 3
    for each in workers:
        grace = float(each.words[each.words.index("--grace") + 1])
        assert each.patience is not None
        assert each.patience >= grace + SHORTEST_MARGIN


@pytest.mark.parametrize("kind", ["Deployment", "HorizontalPodAutoscaler"])
def test_a_manifest_is_about_its_own_pods(kind: str) -> None:
    """H19: labels and selectors agree, and what is scaled is the Deployment of the workers."""
    documents = [yaml.safe_load(text) for text in blocks("yaml")]
    found = [each for each in documents if each.get("kind") == kind]
    assert found
    for each in found:
        if kind == "Deployment":
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"] == labels == {"app": each["metadata"]["name"]}
        else:
            assert each["spec"]["scaleTargetRef"]["name"] == "limpet-worker"
