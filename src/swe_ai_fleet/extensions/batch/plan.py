"""What a batch is to do, and the request that each of its records becomes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.order import Order, repo_ref
from swe_ai_fleet.cli.screen import CommandFault
from swe_ai_fleet.domain.task import UncommittedChanges
from swe_ai_fleet.extensions.batch.records import TaskRecord, task_id
from swe_ai_fleet.extensions.batch.verification import repository_place
from swe_ai_fleet.runtime.library_requests import is_url

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_OWNER_AND_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PATH_STARTS = ("/", "~", "./", "../")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A batch.

    Args:
        file: Its records, or a directory of task folders.
        name: Stands in the task ids; another name runs everything anew.
        order: What holds for every record that does not say otherwise.
        results: Where the results are kept.
        predictions: Where the patches are put at the end.
        repositories: Where repositories of tasks that bring files are made.
        report: Where the report is put, as `.md` and `.json`; None: nowhere.
        repo: The repository of records that name none.
        repo_root: The directory that has clones of `owner/name`.
        repo_template: A URL with `{repo}` in the place of `owner/name`.
        parallel: How many records are under way at a time.
        stagger: Seconds between the beginnings of two records.
        retry: Whether records that ended without a winner run again, as a new attempt.
        strict: Whether a line that holds no task stops the batch before it begins.
        hints: Whether agents are given `hints_text`.
        evaluate: Whether the hidden tests are run on what the agents made.
        model: What predictions are labelled with.
        form: How predictions are written, as `write_predictions` says.
        images: Whether tasks that name an image run in it; else on this machine's tools, and so do their tests.
        only: Patterns of the ids that are run; none: all.
        limit: How many of those, 0: all.
        candidates: How many agents solve each, whatever records say; 0: what they say, or the order.
        reviewed: Whether there are reviews at all, whatever records say.
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
        """The request for a record; nothing of what is hidden is in it. Raises CommandFault."""
        place = str(repository_place(self.repositories, record.instance_id)) if record.has_made_repository else ""
        reference = repo_ref(place, ref="", uncommitted=UncommittedChanges.IGNORE) if place else self.source(record)
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
            # What lies about in a clone is no part of a commit that was named.
            uncommitted=UncommittedChanges.IGNORE if named else UncommittedChanges.REFUSE,
        )
        reference.commit = exact
        return reference

    def _location(self, repo: str) -> str:
        """Where a record's repository is. Raises CommandFault."""
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
