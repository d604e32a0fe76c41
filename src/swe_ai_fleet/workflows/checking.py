"""Whether a workflow can run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from swe_ai_fleet.domain.workflow import Workflow
from swe_ai_fleet.workflows.faults import WorkflowFault


def faults_of(
    workflow: Workflow, *, tools: Collection[str] | None = None, workflows: Mapping[str, Workflow] | None = None
) -> tuple[WorkflowFault, ...]:
    """SIGNATURE ONLY for now. All that is wrong with a workflow made in Python."""
    raise NotImplementedError


def checked(
    workflow: Workflow, *, tools: Collection[str] | None = None, workflows: Mapping[str, Workflow] | None = None
) -> Workflow:
    """SIGNATURE ONLY for now. The workflow with sub-workflows resolved. Raises InvalidWorkflow."""
    raise NotImplementedError
