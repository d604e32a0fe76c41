"""Workflows from YAML."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from swe_ai_fleet.domain.workflow import Workflow


def read_workflow(
    text: str | bytes,
    *,
    file: str = "",
    tools: Collection[str] | None = None,
    workflows: Mapping[str, Workflow] | None = None,
) -> Workflow:
    """SIGNATURE ONLY for now. The checked workflow of a YAML file, its sub-workflows by name resolved from `workflows`.

    Raises InvalidWorkflow with every fault found. Blocking (up to some 100 ms for 256 KiB): call it in a thread.
    `tools` None: names of tools are not checked; `workflows` None: names of sub-workflows are not checked or resolved.
    """
    raise NotImplementedError
