"""Reviewers' proofs of faults: commands, run on the candidate, the untouched commit and the reviewer's own change."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256

from swe_ai_fleet.domain.assignment import ReviewAssignment
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.command import Command, CommandResult
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.review import Critique, Finding, Proof, ProofOutcome, Review
from swe_ai_fleet.domain.task import ApprovalPolicy, Task
from swe_ai_fleet.domain.text import shortened, well_formed
from swe_ai_fleet.ports import BlobStore, Clone, EvidenceWorkspaces, SecretMask
from swe_ai_fleet.tools.policy import Policy
from swe_ai_fleet.tools.shell import ShellTool, interpreter

MAX_PROOFS = 5
"""Proofs of one review, of all its candidates together; further ones are not run."""
PROOF_SECONDS = 60.0
"""The time limit of one run of a command, unless the task's own limit is shorter."""
MAX_SEEN_CHARS = 1_500
_RUNS = 2
_NAME_CHARS = 16
_WORD = re.compile(r"[^\W\d]\w{2,}")
_MOST_WORDS = 32
_LOOK_SECONDS = 30.0
_OUTPUT_BYTES = 16 * 1024


def may_run(task: Task, policy: Policy) -> bool:
    """Whether reviewers of a task may run commands: its agents may, and no person must approve single commands."""
    shell = ShellTool.definitions["run_command"].spec
    return policy.offers(shell) and task.approval in (ApprovalPolicy.NONE, ApprovalPolicy.PLAN)


def proof_command(line: str, task: Task, environment: Environment) -> Command:
    """A shell line whose exit code proves something about a source, with limited time and output."""
    return Command(
        argv=(interpreter(environment), "-c", line),
        timeout_seconds=min(PROOF_SECONDS, task.constraints.limits.command_timeout_seconds),
        output_limit=_OUTPUT_BYTES,
        merge_stderr=True,
    )


@dataclass(frozen=True, kw_only=True)
class Proving:
    """Runs the proofs of one review, each in clean clones.

    A failing command proves a fault only if it passes elsewhere: on the untouched commit (the candidate breaks it), or
    on the reviewer's own change (it can be done), unless it uses a name that only that change has. A command that fails
    on all of them may be wrong itself. Reproduced proofs are run on the other candidates, too.
    """

    assignment: ReviewAssignment
    workspaces: EvidenceWorkspaces
    blobs: BlobStore
    environment: Environment
    mask: SecretMask

    async def run(self, review: Review) -> Review:
        patches = {
            subject.candidate.candidate_id: subject.candidate.artifacts.patch for subject in self.assignment.subjects
        }
        proofs_left, critiques = MAX_PROOFS, list[Critique]()
        for critique in review.critiques:
            findings: list[Finding] = []
            for finding in critique.findings:
                if finding.proof is not None and finding.must_fix and proofs_left:
                    proofs_left -= 1
                    proof = await self._run_proof(finding.proof, patches[critique.candidate_id])
                    others = {name: patch for name, patch in patches.items() if name != critique.candidate_id}
                    finding = replace(finding, proof=await self._elsewhere(proof, others))
                findings.append(finding)
            critiques.append(replace(critique, findings=tuple(findings)))
        return replace(review, critiques=tuple(critiques))

    async def _run_proof(self, proof: Proof, patch: BlobRef | None) -> Proof:
        seen = ""
        try:
            for _ in range(_RUNS):
                result = await self._run(proof, patch)
                end = "it ran out of time" if result.timed_out else f"exit code {result.exit_code}"
                seen = self._safe_text(f"{end}\n{result.stdout.text().strip()[-MAX_SEEN_CHARS:]}".strip())
                if result.ok:
                    # A command that fails only sometimes proves nothing.
                    return replace(proof, outcome=ProofOutcome.PASSES, seen=seen)
            own = self.assignment.own
            passes_on_own = own is not None and (await self._run(proof, own)).ok
            if (await self._run(proof, None)).ok:
                outcome = ProofOutcome.REPRODUCED
            elif passes_on_own and own is not None:
                alone = await self._only_in(own, proof.command)
                outcome = ProofOutcome.OWN_INTERFACE if alone else ProofOutcome.REPRODUCED
            else:
                outcome = ProofOutcome.FAILS_EVERYWHERE
        except FleetError as error:
            return replace(proof, outcome=ProofOutcome.NOT_RUN, seen=self._safe_text(str(error)))
        return replace(proof, outcome=outcome, seen=seen, passes_on_own=passes_on_own)

    async def _elsewhere(self, proof: Proof, patches: Mapping[str, BlobRef | None]) -> Proof:
        if proof.outcome is not ProofOutcome.REPRODUCED:
            return proof
        passes: dict[str, bool] = {}
        for name, patch in patches.items():
            # A candidate that cannot be checked out counts neither way.
            with suppress(FleetError):
                passes[name] = (await self._run(proof, patch)).ok or (await self._run(proof, patch)).ok
        return replace(
            proof,
            passes_on=tuple(name for name, ok in passes.items() if ok),
            fails_on=tuple(name for name, ok in passes.items() if not ok),
        )

    async def _run(self, proof: Proof, patch: BlobRef | None) -> CommandResult:
        """Run the command on the untouched commit, or on that with a patch. Raises as `_clone` does."""
        async with self._clone(patch) as clone:
            return await clone.run(proof_command(proof.command, self.assignment.task, clone.environment))

    async def _only_in(self, own: BlobRef, command: str) -> bool:
        """Whether a command uses a name that only the reviewer's own change has, neither the task nor the commit."""
        patch = (await self.blobs.get(own)).decode("utf-8", "replace")
        added = {word for line in patch.splitlines() if line.startswith("+") for word in _WORD.findall(line)}
        task = self.assignment.task
        own_names = (added & set(_WORD.findall(command))).difference(*map(_WORD.findall, task.texts))
        if not own_names:
            return False
        async with self._clone(None) as clone:
            for word in sorted(own_names)[:_MOST_WORDS]:
                grep = ("git", "-c", "core.fsmonitor=false", "grep", "--quiet", "-w", "-F", "-I", "-e", word)
                files = ("git", "-c", "core.fsmonitor=false", "ls-files", "--", f"*{word}*")
                if (await clone.run(Command(argv=grep, light=True, timeout_seconds=_LOOK_SECONDS))).ok:
                    continue
                if not (await clone.run(Command(argv=files, light=True, timeout_seconds=_LOOK_SECONDS))).stdout.total:
                    return True
        return False

    @asynccontextmanager
    async def _clone(self, patch: BlobRef | None) -> AsyncGenerator[Clone]:
        """A clean clone of the untouched commit, or of that with a patch. Raises FleetErrors of git and environment."""
        assignment, repository, environment = self.assignment, self.assignment.repository, self.environment
        if patch is not None:
            data = await self.blobs.get(patch)
            repository = await self.workspaces.patched(assignment.execution_id, repository, data)
            clone_environment = await self.workspaces.environment(repository, assignment.task.environment)
            environment = replace(clone_environment, network=environment.network)
        name = f"proof-{sha256(assignment.agent_id.encode()).hexdigest()[:_NAME_CHARS]}"
        async with self.workspaces.open(assignment.execution_id, name, repository, environment) as clone:
            yield clone

    def _safe_text(self, text: str) -> str:
        return shortened(self.mask(well_formed(text)), MAX_SEEN_CHARS)
