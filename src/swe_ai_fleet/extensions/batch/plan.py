"""The plan of a batch, and the requests for its records."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.order import Order, repo_ref
from swe_ai_fleet.cli.screen import CommandFault
from swe_ai_fleet.domain.task import UncommittedChanges
from swe_ai_fleet.extensions.batch.records import TaskRecord, task_id
from swe_ai_fleet.extensions.batch.verification import repository_path
from swe_ai_fleet.runtime.library_requests import is_url

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_OWNER_AND_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PATH_STARTS = ("/", "~", "./", "../")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A batch.

    Args:
        name: Part of the task ids; with another name everything is run again.
        order: The options for records that do not set their own.
        report: The path of the report, written as `.md` and `.json`; None: no report.
        repo: The repository of records that name none.
        repo_root: The directory with clones of `owner/name`.
        repo_template: A URL with `{repo}` for `owner/name`.
        stagger: Seconds between the starts of two records.
        retry: Whether records that ended without a winner run again, as a new attempt.
        strict: Whether a line without a valid task stops the batch before it begins.
        hints: Whether agents get `hints_text`.
        evaluate: Whether hidden tests are run on the candidates.
        form: The format of predictions, as of `write_predictions`.
        images: Whether tasks with an image run in it; otherwise they and their tests use this machine's tools.
        only: Patterns for the ids of records to run; none: all.
        limit: The largest number of them; 0: all.
        candidates: The number of agents, overriding records; 0: that of the record or the order.
        reviewed: Whether there are reviews, overriding records.
    """

    file: Path
    name: str
    order: Order
    results: Path
    predictions: Path
    repositories: Path
    report: Path | None = None
    repo: str = ""
    repo_root: Path | None = None
    repo_template: str = ""
    parallel: int = 4
    stagger: float = 1.0
    retry: bool = False
    strict: bool = False
    hints: bool = False
    evaluate: bool = False
    model: str = "swe-ai-fleet"
    form: str = "list"
    images: bool = True
    only: tuple[str, ...] = ()
    limit: int = 0
    candidates: int = 0
    reviewed: bool = True

    def request(self, record: TaskRecord, *, attempt: int = 1) -> pb.SubmitTaskRequest:
        """The request for a record, without its hidden tests. Raises CommandFault."""
        created = str(repository_path(self.repositories, record.instance_id)) if record.creates_repository else ""
        reference = repo_ref(created, ref="", uncommitted=UncommittedChanges.IGNORE) if created else self.source(record)
        order = replace(
            self.order,
            description=record.description,
            repo=reference.path or reference.url,
            ref=reference.ref,
            role=record.role or self.order.role,
            checks=record.checks or self.order.checks,
            setup=record.setup or self.order.setup,
            variables=(*self.order.variables, *record.variables),
            network=() if record.offline else record.network or self.order.network,
            path=record.path or self.order.path,
            image=record.image or self.order.image,
            agents=self.candidates or record.agents or self.order.agents,
            rounds=0 if not self.reviewed else self.order.rounds if record.rounds is None else record.rounds,
            timeout_seconds=record.timeout_seconds or self.order.timeout_seconds,
            task_id=task_id(self.name, record.instance_id),
        )
        request = order.request()
        inner = request.deliberate if request.WhichOneof("task") == "deliberate" else request.orchestrate
        inner.repo.CopyFrom(reference)
        inner.attempt = attempt
        hints = f"What was said about it elsewhere:\n{record.hints}" if self.hints and record.hints else ""
        inner.context = "\n\n".join(part for part in (record.context, hints) if part)
        return request

    def source(self, record: TaskRecord) -> pb.RepoRef:
        """The repository that a record names. Raises CommandFault."""
        exact = record.base_commit if _COMMIT.fullmatch(record.base_commit) else ""
        named = bool(record.base_commit or record.ref)
        reference = repo_ref(
            self._location(record.repo or self.repo),
            ref=record.ref or ("" if exact else record.base_commit),
            # Uncommitted changes of a clone are not part of a named commit.
            uncommitted=UncommittedChanges.IGNORE if named else UncommittedChanges.REFUSE,
        )
        reference.commit = exact
        return reference

    def _location(self, repo: str) -> str:
        """The path or URL of a record's repository. Raises CommandFault."""
        if not repo:
            raise CommandFault("the record has no repository", hint="--repo sets one for all records")
        if is_url(repo):
            return repo
        beside = self.file.absolute().parent
        if repo.startswith(_PATH_STARTS) or repo == ".":
            return str(beside / Path(repo).expanduser())
        if self.repo_root is not None:
            root = self.repo_root.expanduser().resolve()
            for name in (repo, repo.replace("/", "__"), repo.rpartition("/")[2]):
                clone = (root / name).resolve()
                if clone.is_dir() and clone.is_relative_to(root):
                    return str(clone)
        if self.repo_template and _OWNER_AND_NAME.fullmatch(repo):
            return self.repo_template.replace("{repo}", repo)
        if (beside / repo).is_dir():
            return str(beside / repo)
        raise CommandFault(
            f"its repository {repo[:200]!r} was not found",
            hint="--repo-root DIR has clones, --repo-template URL with {repo} in it says where to clone from",
        )
