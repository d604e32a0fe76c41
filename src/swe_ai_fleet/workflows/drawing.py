"""A workflow as a picture."""

from __future__ import annotations

from collections.abc import Mapping

from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.workflow import Workflow


def mermaid(workflow: Workflow, nodes: Mapping[str, NodeUpdated] | None = None) -> str:
    """SIGNATURE ONLY for now. As Mermaid text; coloured by where the nodes of a run stand."""
    raise NotImplementedError


def svg(workflow: Workflow, nodes: Mapping[str, NodeUpdated] | None = None) -> str:
    """SIGNATURE ONLY for now. As an SVG document."""
    raise NotImplementedError
