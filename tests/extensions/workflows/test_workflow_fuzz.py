"""The reader of workflows takes whatever it is given."""

from __future__ import annotations

from importlib.resources import files

import pytest

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.extensions import workflows
from swe_ai_fleet.extensions.workflows import read_workflow
from tests.fuzz import test_parsers

TEMPLATES = [one.read_text() for one in files(workflows).joinpath("templates").iterdir() if one.name.endswith(".yaml")]


@pytest.mark.timeout(120 + 2 * test_parsers.SECONDS)
def test_it_reads_a_workflow_or_says_no() -> None:
    test_parsers.test_it_reads_or_says_no(test_parsers.Target("workflow", read_workflow, sorted(TEMPLATES), FleetError))
