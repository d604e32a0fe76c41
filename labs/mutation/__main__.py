"""`make mutants`: small changes of the modules that decide; each must make one of the tests named here fail.

Nothing is installed and no file is changed: a mutant lives in a fork of this process. `docs/testing.md` says what
survived, and why it may. Ends with 1 where something else does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from labs.mutation.running import Survey, run

_CORE = "src/swe_ai_fleet"
_POOL = f"{_CORE}/adapters/model_pool"
_RANKING = (
    "tests/unit/test_selection.py",
    "tests/unit/test_behaviour.py",
    "tests/unit/test_judging.py",
    "tests/unit/test_examination_matrix.py",
)
_ADMISSION = (
    "tests/unit/test_model_admission.py",
    "tests/unit/test_model_leases.py",
    "tests/unit/test_model_pool_policy.py",
)
_REPLICAS = ("tests/unit/test_executions.py", "tests/unit/test_queue.py")
_FOLDS = (
    "tests/unit/test_execution_fold.py",
    "tests/unit/test_executions.py",
    "tests/unit/test_domain.py",
    "tests/unit/test_golden_logs.py",
    "tests/extensions/knowledge/test_ended_executions.py",
    "tests/unit/test_execution_approvals.py",
    "tests/extensions/workflows/test_workflow_drives.py",
    "tests/simulation/test_folds.py",
)

TARGETS: Mapping[str, Sequence[str]] = {
    f"{_CORE}/orchestrator/ranking.py": _RANKING,
    f"{_CORE}/orchestrator/score.py": _RANKING,
    f"{_CORE}/domain/execution.py": _FOLDS,
    f"{_CORE}/domain/run.py": ("tests/unit/test_run_fold.py", *_FOLDS),
    f"{_CORE}/orchestrator/projection.py": (
        "tests/unit/test_projection.py",
        "tests/unit/test_retention.py",
        "tests/unit/test_snapshots.py",
        *_REPLICAS,
    ),
    f"{_CORE}/extensions/knowledge/graph.py": (
        "tests/extensions/knowledge/test_context_graph.py",
        "tests/extensions/knowledge/test_context_store.py",
        "tests/extensions/knowledge/test_context_blocks.py",
    ),
    f"{_POOL}/ledger.py": _ADMISSION,
    f"{_POOL}/admission.py": _ADMISSION,
    f"{_CORE}/adapters/jetstream/buckets.py": (
        "tests/contract/test_key_value.py",
        "tests/contract/test_event_log.py",
        "tests/integration/test_nats.py",
        "tests/attacks/test_hosts_on_nats.py",
        "tests/attacks/test_storage.py::test_what_is_stored_counts_for_its_tenant_until_it_is_given_back",
    ),
    f"{_CORE}/runtime/replicas.py": ("tests/unit/test_lease_keeper.py", "tests/integration/test_leases.py"),
    f"{_CORE}/tools/policy.py": ("tests/unit/test_tool_rules.py", "tests/unit/test_pipeline.py"),
    f"{_CORE}/tools/catalogue.py": ("tests/unit/test_tool_rules.py",),
    f"{_CORE}/tools/audit.py": ("tests/unit/test_audit_trail.py", "tests/unit/test_pipeline.py"),
    f"{_CORE}/domain/audit.py": (
        "tests/unit/test_domain.py",
        "tests/unit/test_codec.py",
        "tests/unit/test_cli_audit.py",
    ),
    f"{_CORE}/domain/audit_chains.py": ("tests/unit/test_cli_audit.py", "tests/unit/test_golden_logs.py"),
    "services/roles.py": ("tests/unit/test_access_store.py",),
    "services/access/store.py": ("tests/unit/test_access_store.py",),
}
JUDGED = Path(__file__).parent / "judged.txt"
"""Survivors that may live: `module: function: change`, under headings that say why."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m labs.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="parts of the modules' paths, such as domain/run; default: all")
    wanted: list[str] = parser.parse_args().modules
    targets = {one: tests for one, tests in TARGETS.items() if not wanted or any(part in one for part in wanted)}
    judged = {line for line in JUDGED.read_text().splitlines() if line and not line.startswith("#")}
    unjudged: list[str] = []
    told: list[str] = []

    def heard(module: str, survey: Survey) -> None:
        living = [f"{module}: {one.function}: {one.change}" for one in survey.survivors]
        new = [one for one in living if one not in judged]
        unjudged.extend(new)
        told.append(f"{module}: {survey.killed} killed, {len(living) - len(new)} judged, {len(new)} to be judged")

    code = run(targets, heard)
    print("\n".join([*told, *unjudged]))
    return int(code) or int(bool(unjudged))


if __name__ == "__main__":
    sys.exit(main())
