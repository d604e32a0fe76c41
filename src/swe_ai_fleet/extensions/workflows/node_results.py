"""Results of nodes that later nodes build on: commits and outputs of their executions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.candidate import CheckReport
from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.task import PinnedRepository
from swe_ai_fleet.domain.workflow import JsonValue, NodeStatus, Workflow
from swe_ai_fleet.extensions.workflows.graph import ordered, upstream
from swe_ai_fleet.orchestrator.delivery import BUNDLE_TYPE, at_delivered, commit_message
from swe_ai_fleet.orchestrator.execution_context import ExecutionContext
from swe_ai_fleet.ports import MergeRequest

MAX_PATCH_BYTES = 40_000
"""Of a longer patch a node's output has only the digest."""


@dataclass(kw_only=True)
class NodeResults:
    """The commit that each node begins with: that of the nodes before it, else the workflow's base commit.

    Args:
        work: The workflow's execution.
        known: The last updates of the nodes under earlier drivers.
    """

    work: ExecutionContext
    known: Mapping[str, NodeUpdated]
    _commits: dict[str, PinnedRepository] = field(default_factory=dict[str, PinnedRepository])
    _loaded: bool = False
    _loading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def base(self, node_id: str) -> PinnedRepository:
        """The commit that a node begins with: of the last node before it that changed something. Raises FleetError."""
        async with self._loading:
            if not self._loaded:
                await self._load()
        base = self.work.repository
        if self.work.task.workflow is not None:
            for earlier in _before(self.work.task.workflow.workflow, node_id):
                inside = [name for name in sorted(self._commits) if name.startswith((f"{earlier}[", f"{earlier}/"))]
                for name in (*inside, earlier):
                    base = self._commits.get(name, base)
        return base

    async def take_output(self, node_id: str, state: ExecutionState) -> dict[str, JsonValue]:
        """A node's output, from its own execution; from now on later nodes build on its commit."""
        commit = await self._commit_of(state)
        if commit is not None:
            self._commits[node_id] = commit
        winner = state.candidates.get(state.winner_id)
        delivered = state.delivered
        ref = (winner.artifacts.patch if winner else None) or (delivered.patch if delivered else None)
        patch = (
            (await self.work.deps.blobs.get(ref)).decode("utf-8", "replace")
            if ref and ref.size <= MAX_PATCH_BYTES
            else ""
        )
        report = state.delivery_report or state.reports.get(state.winner_id)
        return {
            "summary": winner.summary if winner else "",
            "execution_id": state.execution_id,
            "status": str(state.status),
            "winner": winner.author if winner else "",
            "commit_sha": commit.commit if commit is not None else "",
            "branch": delivered.branch if delivered else "",
            "files_changed": list(winner.artifacts.files_changed) if winner else [],
            "patch": patch,
            "patch_digest": ref.digest if ref else "",
            "checks": _checks(report),
        }

    async def _load(self) -> None:
        """Load the commits of node executions that ended under an earlier driver."""
        for node_id, update in self.known.items():
            if update.status is NodeStatus.COMPLETED and update.execution_id and node_id not in self._commits:
                state = await self.work.children.wait(self.work.task.tenant, update.execution_id)
                commit = await self._commit_of(state)
                if commit is not None:
                    self._commits[node_id] = commit
        self._loaded = True

    async def _commit_of(self, state: ExecutionState) -> PinnedRepository | None:
        """The resulting commit of an execution, readable on every host; None where it changed nothing."""
        base = state.repository
        if state.delivered is not None:
            head = at_delivered(base, state.delivered)
            if base.commit == self.work.repository.commit:
                return head
            # A bundle must build on a commit that the location has; it may lack the base.
            exported = await self.work.deps.workspaces.export(
                head,
                self.work.repository.shared_commit,
                state.delivered.branch,
                since=self.work.repository.shared_commit,
            )
            return await self._bundled(head, exported.bundle)
        winner = state.candidates.get(state.winner_id)
        if winner is None or winner.artifacts.patch is None:
            return None
        merge = await self.work.deps.workspaces.merge(
            MergeRequest(
                execution_id=self.work.task.execution_id,
                head=base,
                base=base,
                patch=await self.work.deps.blobs.get(winner.artifacts.patch),
                since=self.work.repository.shared_commit,
                message=commit_message(state.task, winner),
                author_name=self.work.task.delivery.author_name,
                author_email=self.work.task.delivery.author_email,
                at=state.finished_at or state.updated_at,
            )
        )
        if not merge.bundle:
            return None
        return await self._bundled(replace(base, commit=merge.commit), merge.bundle)

    async def _bundled(self, head: PinnedRepository, bundle: bytes) -> PinnedRepository:
        ref = await self.work.deps.blobs.put(self.work.task.tenant, self.work.task.execution_id, bundle, BUNDLE_TYPE)
        return replace(head, bundle=ref, snapshot_of="")


def _before(workflow: Workflow, node_id: str) -> Iterator[str]:
    """The ids of all nodes that end before a node begins: first those outside of it, otherwise in their order."""
    prefix, inner = "", workflow
    for segment in node_id.split("/"):
        name = segment.partition("[")[0]
        ids = [node.id for node in inner.nodes]
        edges = [(edge.source, edge.target) for edge in inner.edges]
        earlier = upstream(ids, edges).get(name, frozenset())
        yield from (f"{prefix}{other}" for other in ordered(ids, edges) if other in earlier)
        node = next((node for node in inner.nodes if node.id == name), None)
        node = node.node if node is not None and node.node is not None and "[" in segment else node
        if node is None or not isinstance(node.workflow, Workflow):
            return
        prefix, inner = f"{prefix}{segment}/", node.workflow


def _checks(report: CheckReport | None) -> JsonValue:
    results = report.results if report is not None else ()
    return [
        {"name": result.name, "passed": result.passed, "required": result.required, "message": result.message[:500]}
        for result in results
        if not result.skipped_reason
    ]
