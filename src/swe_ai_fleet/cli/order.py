"""The options of `fleet run` and `fleet judge`, and the requests built from them."""

from __future__ import annotations

import operator
import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.messages import field_of, has_field, put
from swe_ai_fleet.cli.options import argument, option, option_of, word
from swe_ai_fleet.cli.screen import CommandFault, fault_of
from swe_ai_fleet.domain.errors import FleetError, InvalidRequest
from swe_ai_fleet.domain.task import Role, UncommittedChanges
from swe_ai_fleet.domain.text import check_identifier
from swe_ai_fleet.runtime.library_requests import repository_reference

UNCOMMITTED = {None: UncommittedChanges.REFUSE, True: UncommittedChanges.INCLUDE, False: UncommittedChanges.IGNORE}
"""The meaning of `IncludeDirty`'s values."""
IncludeDirty = Annotated[
    UncommittedChanges,
    option(
        "Start from uncommitted changes too, or without them.",
        "repo.uncommitted",
        words="--include-dirty/--ignore-dirty",
        kind=bool | None,
        turn=UNCOMMITTED.__getitem__,
    ),
]
_SLUG_LENGTH = 40
_NO_SLUG = re.compile(r"[^a-z0-9]+")


def _seats(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The options of a task. A number 0 means the server's default."""

    description: Annotated[str, argument("The task, in your own words.", "task_description", metavar="TASK")]
    repo: options.Repo = "."
    ref: options.Ref = ""
    credential: Annotated[
        str,
        option("The server's credential for a URL. Default: its host's.", "repo.credential_ref", metavar="NAME"),
    ] = ""
    agents: Annotated[
        int | None,
        option("Number of agents. Default: the council's, or 3.", "options.num_agents", "num_agents", min=1),
    ] = None
    max_agents: Annotated[
        int,
        option(
            "Most agents: further ones start while no candidate is convincing.",
            "options.max_agents",
            "max_agents",
            min=0,
        ),
    ] = 0
    seats: Annotated[
        tuple[str, ...],
        option(
            "The agents: fleet, or acp:NAME for a harness; comma-separated, instead of --agents.",
            "seats",
            kind=str,
            default="",
            turn=_seats,
            metavar="SEATS",
        ),
    ] = ()
    probes: Annotated[
        bool,
        option(
            "Derive no probes (commands that test every candidate) from the task.",
            "options.probes",
            "probes",
            words="--no-probes",
            kind=bool,
            default=False,
            turn=operator.not_,
        ),
    ] = False
    rounds: options.Rounds = None
    role: options.Role = "DEV"
    checks: options.Check = ()
    setup: options.Setup = ()
    variables: options.Env = ()
    path: options.Path_ = ()
    test_command: options.TestCommand = ""
    no_detect: options.NoDetect = False
    image: options.Image = ""
    image_credential: options.ImageCredential = ""
    network: options.Network = ()
    require_verified: options.RequireVerified = False
    branch: Annotated[str, option("The branch for the winner. Default: fleet/<task id>.", "delivery.branch")] = ""
    uncommitted: IncludeDirty = UncommittedChanges.REFUSE
    task_id: options.TaskId = ""
    attempt: Annotated[
        int | None,
        option("Run a finished task again: 2 for the second time. Default: 1.", "attempt", min=1, metavar="N"),
    ] = None
    timeout_seconds: options.Timeout = 0
    deliberate_only: Annotated[bool, option("Rank candidates, apply nothing.")] = False
    approve: options.Approve = ""
    mode: options.Mode = ""
    profile: options.Profiles = ""
    max_cost: options.MaxCost = 0.0
    max_tokens: Annotated[
        int | None,
        option("Most tokens an agent may use. Default: the server's.", "constraints.max_tokens", min=1, metavar="N"),
    ] = None
    priority: Annotated[int, option("Waiting tasks with a higher priority start first.", "priority", min=0, max=9)] = 0
    architect: Annotated[
        int,
        option(
            "Let an architect choose among the best K. Default: votes.",
            "options.architect_top_k",
            "architect_top_k",
            min=0,
            max=16,
            metavar="K",
        ),
    ] = 0
    subtasks: Annotated[
        bool, option("Split the task first; merge the results of its parts.", "options.derive_subtasks")
    ] = False
    recall: Annotated[bool, option("Give agents the memories that match the task.", "memory.read")] = False
    remember: Annotated[bool, option("Store the outcome as a memory.", "memory.write")] = False
    namespaces: Annotated[
        tuple[str, ...],
        option(
            "Namespace of memories: fleet, agent:ID, repository:NAME. Default: the repository's.",
            "memory.namespaces",
            words="--namespace -n",
            metavar="NAME",
        ),
    ] = ()
    entities: Annotated[
        tuple[str, ...],
        option(
            "Give agents the memories about NAME; may be repeated. Implies --recall.",
            "memory.entities",
            words="--entity",
            metavar="NAME",
        ),
    ] = ()
    story: Annotated[str, option("The task's story; agents get its context.", "story_id", metavar="ID")] = ""
    upload: Annotated[bool, option("Upload the repository. Default: only to a server on another machine.")] = False
    fetch: Annotated[bool, option("After an upload, put the winner's branch into the repository.")] = False
    detach: Annotated[bool, option("Only submit it; `fleet watch` shows it.")] = False
    name: str = field(default_factory=lambda: secrets.token_hex(3))

    def request(self) -> pb.SubmitTaskRequest:
        """The request. Raises CommandFault naming the wrong option."""
        request = pb.SubmitTaskRequest()
        task = request.deliberate if self.deliberate_only else request.orchestrate
        try:
            wanted = self.task_id or made_up_id(self.description, self.name, otherwise="task")
            task_id = check_identifier(wanted, field="task_id")
            role = str(Role.parse(self.role))
        except FleetError as error:
            raise fault_of(error) from None
        self._check()
        fill(task, self)
        task.repo.CopyFrom(repo_ref(self.repo, ref=self.ref, uncommitted=self.uncommitted, credential=self.credential))
        task.task_id, task.role = task_id, role
        # --entity implies --recall.
        task.memory.read = self.recall or bool(self.entities)
        if isinstance(task, pb.OrchestrateRequest):
            task.options.enable_peer_review = self.rounds != 0
            task.options.enable_architect_selection = self.architect > 0
        elif self.rounds is not None:
            task.enable_peer_review = self.rounds > 0
        return request

    def _check(self) -> None:
        """Raises CommandFault for options that exclude each other."""
        if not self.description.strip():
            raise _wrong("task", "it is empty", "say what is to be done")
        if self.detach and self.fetch:
            raise _wrong("fetch", "--detach does not wait for a branch; they exclude each other", "fetch it later")
        if self.deliberate_only and self.branch:
            raise _wrong(
                "branch", "a deliberation applies nothing; they exclude each other", "orchestrate, or name none"
            )
        if self.deliberate_only and self.subtasks:
            raise _wrong("subtasks", "they and a deliberation exclude each other: subtasks are merged, and so applied")
        if self.namespaces and not (self.recall or self.remember or self.entities):
            raise _wrong(
                "namespace",
                "--namespace does nothing without --recall or --remember",
                "--recall reads memories there, --remember writes them",
            )
        if self.deliberate_only and self.story:
            raise _wrong("story", "it belongs to a delivery, not to a deliberation")


def fill(request: Any, order: object) -> None:
    """Set the options of a dataclass, each in the first of its fields that the request has.

    Messages are skipped, and so is the repository, whose options form one reference.
    """
    for name, kind in get_type_hints(type(order), include_extras=True).items():
        info, value = option_of(kind), getattr(order, name)
        fields = info.of.fields if info else ()
        path = next((path for path in fields if has_field(request.DESCRIPTOR, path)), "")
        whole = path and field_of(request.DESCRIPTOR, path).message_type
        is_message = whole and not whole.GetOptions().map_entry
        if path and not is_message and not path.startswith("repo."):
            put(request, path, value, named=word(name, kind).strip("-").replace("-", "_"))


def made_up_id(text: str, name: str, *, otherwise: str) -> str:
    """A task id from the first words of a text and a unique name."""
    words = _NO_SLUG.sub("-", text.lower())[:_SLUG_LENGTH].strip("-")
    return f"{words or otherwise}-{name}"


def repo_ref(location: str, *, ref: str, uncommitted: UncommittedChanges, credential: str = "") -> pb.RepoRef:
    """The repository at `location`, a directory of this machine or a URL. Raises CommandFault."""
    try:
        named = repository_reference(location, ref=ref, uncommitted=uncommitted)
    except InvalidRequest as fault:
        raise _wrong("repo", fault.message, fault.hint) from None
    if credential and not named.url:
        raise _wrong("credential", "it is for repositories behind URLs")
    named.credential_ref = credential
    return named


def named_repository(text: str) -> str:
    """The directory or URL of a repository; empty for none. Raises CommandFault."""
    named = repo_ref(text, ref="", uncommitted=UncommittedChanges.IGNORE) if text else pb.RepoRef()
    return named.path or named.url


def _wrong(field: str, message: str, hint: str = "") -> CommandFault:
    return CommandFault(message, field=field, hint=hint)


STDIN = "-"
MAX_PATCH_BYTES = 3 * 1024 * 1024
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOrder:
    """The options of a judgement, with its patches."""

    patches: Annotated[
        tuple[str, ...],
        option(
            "A patch in the format of `git diff`; - is standard input; may be repeated.",
            "patches",
            words="--patch",
            metavar="FILE",
        ),
    ]
    repo: Annotated[str, option("The repository of the patches.", "repo", metavar="PATH|URL")] = "."
    base: Annotated[
        str, option("The commit that the patches apply to. Default: the checked-out one.", "repo.ref", metavar="REF")
    ] = ""
    description: Annotated[
        str,
        option(
            "The patches' purpose; tests that it names must pass.", "task_description", words="--task", metavar="TEXT"
        ),
    ] = ""
    checks: options.Check = ()
    setup: options.Setup = ()
    variables: options.Env = ()
    path: options.Path_ = ()
    network: options.Network = ()
    require_verified: options.RequireVerified = False
    task_id: options.TaskId = ""
    name: str = field(default_factory=lambda: secrets.token_hex(3))
    upload: bool = False
    fetch: bool = False

    def request(self) -> pb.SubmitTaskRequest:
        """The request, with its patches read. Raises CommandFault naming the wrong option."""
        request = pb.SubmitTaskRequest()
        task = request.judge
        wanted = self.task_id or made_up_id(self.description, self.name, otherwise="judge")
        task_id = check_identifier(wanted, field="task_id")
        fill(task, self)
        task.task_id = task_id
        task.repo.CopyFrom(repo_ref(self.repo, ref=self.base, uncommitted=UncommittedChanges.IGNORE))
        for name, path in zip(names(self.patches), self.patches, strict=True):
            task.patches.add(name=name, diff=_read(path))
        return request


def names(paths: Sequence[str]) -> list[str]:
    """The candidates' ids: each file's name without `.patch` or `.diff`, as a valid and unique id."""
    ids: list[str] = []
    for path in paths:
        name = "stdin" if path == STDIN else re.sub(r"\.(patch|diff)$", "", Path(path).name)
        name = _NOT_IN_A_NAME.sub("-", name)[:_NAME_CHARS].strip("-._") or "patch"
        numbered = (f"{name}.{number}" for number in count(2))
        ids.append(name if name not in ids else next(other for other in numbered if other not in ids))
    return ids


def _read(path: str) -> bytes:
    """A patch of at most `MAX_PATCH_BYTES`. Raises CommandFault."""
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(MAX_PATCH_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(MAX_PATCH_BYTES + 1)
    except OSError as error:
        raise CommandFault(f"cannot read {path}: {error.strerror}", field="patch") from None
    if len(content) > MAX_PATCH_BYTES:
        hint = f"at most {MAX_PATCH_BYTES} bytes, all patches together"
        raise CommandFault(f"{path} is too large", field="patch", hint=hint)
    if not content.strip():
        raise CommandFault(f"{path} is empty", field="patch", hint="as `git diff` writes it")
    return content
