"""The code blocks of the documents that a reader can run, and the test that runs each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

ROOT = Path(__file__).parents[1]
HERE = "e2e/test_documented_commands.py::test_the_block_does_what_it_says"
TOUR = "e2e/test_readme.py::test_the_tour_is_walked_in_a_fresh_home"
LIBRARY = "e2e/test_documented_commands.py::test_the_library_block_runs"
KUBECTL = "manifests/test_documented.py::test_kubectl_is_asked_for_what_is_there"
SECURED = "e2e/test_secured.py::test_a_task_of_a_tenant_goes_through_and_only_that_tenant_hears_of_it"
FUNCTIONS = "integration/test_function_calling_runs.py::test_the_examples"
WORKFLOWS = "extensions/workflows/test_workflow_executor.py::test_the_document"
CHAPTERS = "extensions/chat/test_chat_document.py"
IMAGES = "../labs/images/test_containers.py::test_an_image_is_small_labelled_and_not_of_root"
IN_IMAGES = "e2e/test_container_image_runs.py::test_agents_and_checks_are_in_the_image_that_a_task_names"
CHAOS = "../labs/chaos/test_small.py::test_a_dozen_executions_survive_three_kills"
BY_HAND = "by hand"
"""Takes minutes of an idle machine, or another machine: its options are checked, it is not run by a test."""
VLLM = "e2e/test_cli.py::test_the_fleet_uses_the_server_and_takes_it_along"

RUN_BY: Mapping[str, tuple[str, ...]] = {
    "README.md": (
        "e2e/test_readme.py::test_the_evidence_picks_the_winner",
        "e2e/test_cli.py::test_run_local_starts_a_fleet_and_leaves_nothing_behind",
        "e2e/test_cli.py::test_up_serves_until_it_is_told_to_stop",
        TOUR,
        "e2e/test_readme.py::test_the_library_example",
        SECURED,
    ),
    "docs/access.md": (HERE,),
    "docs/api.md": ("integration/test_grpc_service.py::test_the_documented_commands_of_foreign_clients",),
    "docs/approvals.md": ("e2e/test_approvals.py::test_on_the_command_line",),
    "docs/backup.md": ("extensions/backup/test_backup_fleet.py::test_a_fleet_goes_on_from_its_backup", KUBECTL),
    "docs/batch.md": (
        "extensions/batch/test_batch.py::test_a_batch_is_interrupted_gone_on_with_and_evaluated",
        BY_HAND,
        "extensions/batch/test_benchmarks.py::test_records_run_as_their_benchmarks_mean_them",
        "extensions/batch/test_batch.py::test_a_benchmark_is_killed_gone_on_with_and_reported",
        BY_HAND,
    ),
    "docs/bench.md": (BY_HAND,),
    "docs/capacity.md": (BY_HAND, BY_HAND),
    "docs/chaos.md": (CHAOS,),
    "docs/chat.md": (
        HERE,
        f"{CHAPTERS}::test_the_formatting_example_runs",
        "extensions/chat/test_telegram.py",
        f"{CHAPTERS}::test_the_library_example_names_what_there_is",
    ),
    "docs/context.md": (
        "extensions/knowledge/test_context_blocks.py",
        "extensions/knowledge/test_cli_context.py",
        HERE,
    ),
    "docs/councils.md": ("integration/test_task_context.py::test_the_whole_fleet_from_the_command_line",),
    "docs/durability.md": ("e2e/test_replicas.py",),
    "docs/environments.md": (IN_IMAGES,),
    "docs/erasure.md": ("e2e/test_erasing.py::test_a_leaked_secret_is_erased_from_a_fleet_at_work",),
    "docs/function-calling.md": (FUNCTIONS,) * 4,
    "docs/harnesses.md": ("extensions/acp/test_harness_agents.py::test_a_harness_solves_beside_an_agent_of_ours",),
    "docs/http.md": (HERE,),
    "docs/images.md": (IMAGES, BY_HAND, IMAGES),
    "docs/intake.md": (LIBRARY,),
    "docs/kubernetes.md": (KUBECTL,) * 4,
    "docs/learning.md": (HERE, LIBRARY),
    "docs/memory.md": ("extensions/knowledge/test_memory_manager.py::test_the_example", HERE),
    "docs/metrics.md": (HERE,),
    "docs/tenants.md": (KUBECTL,),
    "docs/models.md": (
        "integration/test_model_pool.py",
        HERE,
        "integration/test_model_pool.py",
        VLLM,
        "../labs/vllm/test_supervised.py",
    ),
    "docs/nats-accounts.md": ("integration/test_nats_accounts.py::test_a_tenant_hears_what_is_its_own_by_short_names",),
    "docs/notifications.md": (
        "extensions/webhooks/test_webhook_tenants.py::test_approval_and_end_are_told_across_a_kill",
        "extensions/webhooks/test_webhook_tenants.py::test_the_example_for_receivers_runs",
    ),
    "docs/observability.md": (
        "e2e/test_metrics_exposed.py::test_only_metrics_are_served_there",
        "e2e/test_metrics_exposed.py::test_a_task_is_one_tree_of_spans_across_processes",
        HERE,
    ),
    "docs/orchestration.md": ("integration/test_integration_branch.py",),
    "docs/plan-sessions.md": (
        HERE,
        "e2e/test_approvals.py::test_entities_chosen_at_submission_are_seen_at_the_gate",
        LIBRARY,
    ),
    "docs/recordings.md": (
        HERE,
        HERE,
        "e2e/test_recordings.py::test_a_batch_is_a_trajectory_a_line_for_each_candidate",
        HERE,
        HERE,
    ),
    "docs/scale.md": ("../labs/simulation/test_scale.py",),
    "docs/study.md": (
        "extensions/batch/test_batch_service.py::test_each_part_of_a_study_has_tasks_and_results_of_its_own",
        "../labs/tokens/test_tokens.py::test_the_recorded_tasks_make_a_study",
    ),
    "docs/tls.md": (SECURED, SECURED),
    "docs/tools.md": (HERE, LIBRARY, LIBRARY),
    "docs/uploads.md": (HERE, HERE),
    "docs/watching.md": (
        "attacks/test_records.py::test_over_the_wire_and_offline",
        "integration/test_gateway_streams.py::test_the_client_of_the_document_shows_a_whole_execution",
        BY_HAND,
    ),
    "docs/workflows.md": (
        WORKFLOWS,
        WORKFLOWS,
        "extensions/workflows/test_workflow_cli.py::test_a_run_waits_for_people_and_is_stepped",
    ),
    "docs/workspace-runner.md": ("extensions/kubernetes_jobs/test_workspace_runner.py", KUBECTL),
}
"""Of each document its blocks in `sh`, `console`, `python` and `js`, in their order."""


def blocks(document: str) -> list[tuple[str, str]]:
    """The language and the text of each block of a document that can be run."""
    text = (ROOT / document).read_text()
    return re.findall(r"^```(sh|console|python|js)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def run_by(test: str) -> list[tuple[str, int]]:
    """The document and the place of each block that a test runs."""
    return [(document, place) for document, tests in RUN_BY.items() for place, by in enumerate(tests) if by == test]


async def run_python(text: str, names: dict[str, Any]) -> None:
    """Run a block of Python as it stands, its awaits too, with the names that blocks before it left."""
    code = compile(text, "a document", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(code, CodeType)
    done = FunctionType(code, names)()
    if done is not None:
        await done
