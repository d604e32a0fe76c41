"""`fleet judge`: patches from anywhere are judged."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.exits import CommandFault
from swe_ai_fleet.cli.options import option
from swe_ai_fleet.cli.order import fill, made_up_id, repo_ref
from swe_ai_fleet.domain.task import UncommittedChanges
from swe_ai_fleet.domain.text import check_identifier

STDIN = "-"
MAX_PATCH_BYTES = 3 * 1024 * 1024
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOrder:
    """Patches to be judged, as the command line gives them."""

    patches: Annotated[
        tuple[str, ...],
        option(
            "A patch as `git diff` writes it; - is standard input; repeat it.",
            "patches",
            words="--patch",
            metavar="FILE",
        ),
    ]
    repo: Annotated[str, option("The repository that they are for.", "repo", metavar="PATH|URL")] = "."
    base: Annotated[
        str, option("The commit that they apply to. Default: what is checked out.", "repo.ref", metavar="REF")
    ] = ""
    description: Annotated[
        str,
        option("What they are for; tests that it names must pass.", "task_description", words="--task", metavar="TEXT"),
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
        """The request, its patches read. Raises CommandFault naming the option that is wrong."""
        request = pb.SubmitTaskRequest()
        task = request.judge
        wanted = self.task_id or made_up_id(self.description, self.name, otherwise="judge")
        task_id = check_identifier(wanted, field="task_id")
        fill(task, self)
        task.task_id = task_id
        task.repo.CopyFrom(repo_ref(self.repo, ref=self.base, uncommitted=UncommittedChanges.IGNORE))
        for name, place in zip(names(self.patches), self.patches, strict=True):
            task.patches.add(name=name, diff=_read(place))
        return request


def names(places: Sequence[str]) -> list[str]:
    """The candidates' ids: each file's name without `.patch` or `.diff`, made an id and unique."""
    names_found: list[str] = []
    for place in places:
        name = "stdin" if place == STDIN else re.sub(r"\.(patch|diff)$", "", Path(place).name)
        name = _NOT_IN_A_NAME.sub("-", name)[:_NAME_CHARS].strip("-._") or "patch"
        numbered = (f"{name}.{number}" for number in count(2))
        names_found.append(
            name if name not in names_found else next(number for number in numbered if number not in names_found)
        )
    return names_found


def _read(place: str) -> bytes:
    """A patch of at most `MAX_PATCH_BYTES`. Raises CommandFault."""
    try:
        if place == STDIN:
            content = sys.stdin.buffer.read(MAX_PATCH_BYTES + 1)
        else:
            with Path(place).open("rb") as file:
                content = file.read(MAX_PATCH_BYTES + 1)
    except OSError as error:
        raise CommandFault(f"cannot read {place}: {error.strerror}", field="patch") from None
    if len(content) > MAX_PATCH_BYTES:
        hint = f"at most {MAX_PATCH_BYTES} bytes, all patches together"
        raise CommandFault(f"{place} is too large", field="patch", hint=hint)
    if not content.strip():
        raise CommandFault(f"{place} is empty", field="patch", hint="as `git diff` writes it")
    return content
