"""`fleet judge` and `fleet deliver`: patches from anywhere are judged, people deliver what they choose."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Annotated

import typer

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.calls import caller_name
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.edge import carry_out, carry_out_with
from swe_ai_fleet.cli.exits import CommandFault, Exit, fault_of
from swe_ai_fleet.cli.options import Execution, Json, Server, Token
from swe_ai_fleet.cli.order import made_up_id, repo_ref
from swe_ai_fleet.cli.pairs import pairs
from swe_ai_fleet.cli.place import chosen_client, fleet_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.task import UncommittedChanges, check_identifier

STDIN = "-"
MAX_PATCH_BYTES = 3 * 1024 * 1024
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_NAME_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeOrder:
    """Patches to be judged, as the command line gives them."""

    repo: str
    base: str
    patches: tuple[str, ...]
    description: str = ""
    checks: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    path: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    require_verified: bool = False
    task_id: str = ""
    name: str = field(default_factory=lambda: secrets.token_hex(3))
    upload: bool = False
    fetch: bool = False

    def request(self) -> pb.SubmitTaskRequest:
        """The request, its patches read. Raises CommandFault naming the option that is wrong."""
        try:
            wanted = self.task_id or made_up_id(self.description, self.name, otherwise="judge")
            task_id = check_identifier(wanted, field="task_id")
        except FleetError as error:
            raise fault_of(error) from None
        environment = pb.EnvironmentSpec(
            setup_commands=self.setup, variables=pairs(self.variables, "--env"), path_directories=self.path
        )
        return pb.SubmitTaskRequest(
            judge=pb.JudgePatchesRequest(
                task_id=task_id,
                repo=repo_ref(self.repo, ref=self.base, uncommitted=UncommittedChanges.IGNORE),
                patches=[
                    pb.SubmittedPatch(name=name, diff=_read(place))
                    for name, place in zip(names(self.patches), self.patches, strict=True)
                ],
                task_description=self.description,
                constraints=pb.TaskConstraints(
                    checks=[pb.CheckSpec(command=command) for command in self.checks],
                    network=pb.NetworkPolicy(allowed_hosts=self.network) if self.network else None,
                    require_verified=self.require_verified,
                ),
                environment=environment if self.setup or self.variables or self.path else None,
            )
        )


def names(places: Sequence[str]) -> list[str]:
    """The candidates' ids: each file's name without `.patch` or `.diff`, made an id and unique."""
    found: list[str] = []
    for place in places:
        name = "stdin" if place == STDIN else re.sub(r"\.(patch|diff)$", "", Path(place).name)
        name = _NOT_IN_A_NAME.sub("-", name)[:_NAME_CHARS].strip("-._") or "patch"
        numbered = (f"{name}.{number}" for number in count(2))
        found.append(name if name not in found else next(one for one in numbered if one not in found))
    return found


def _read(place: str) -> bytes:
    """A patch of at most `MAX_PATCH_BYTES`. Raises CommandFault."""
    try:
        if place == STDIN:
            content = sys.stdin.buffer.read(MAX_PATCH_BYTES + 1)
        else:
            with Path(place).open("rb") as file:
                content = file.read(MAX_PATCH_BYTES + 1)
    except OSError as error:
        raise CommandFault(f"cannot read {place}: {error.strerror}", exit_code=Exit.USAGE, field="patch") from None
    if len(content) > MAX_PATCH_BYTES:
        hint = f"at most {MAX_PATCH_BYTES} bytes, all patches together"
        raise CommandFault(f"{place} is too large", exit_code=Exit.USAGE, field="patch", hint=hint)
    if not content.strip():
        raise CommandFault(f"{place} is empty", exit_code=Exit.USAGE, field="patch", hint="as `git diff` writes it")
    return content


def judge(
    *,
    patch: Annotated[
        list[str], typer.Option(metavar="FILE", help="A patch as `git diff` writes it; - is standard input; repeat it.")
    ],
    repo: Annotated[str, typer.Option(metavar="PATH|URL", help="The repository that they are for.")] = ".",
    base: Annotated[
        str, typer.Option(metavar="REF", help="The commit that they apply to. Default: what is checked out.")
    ] = "",
    task: Annotated[str, typer.Option(metavar="TEXT", help="What they are for; tests that it names must pass.")] = "",
    check: options.Check = None,
    setup: options.Setup = None,
    env: options.Env = None,
    path: options.Path_ = None,
    network: options.Network = None,
    require_verified: options.RequireVerified = False,
    task_id: Annotated[str, typer.Option(help="Makes the call repeatable: the same id is the same task.")] = "",
    local: options.Local = False,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Judge patches from anywhere: environment, baseline, verdict and rank; no agent and no model server."""
    from swe_ai_fleet.cli.run import run as work

    order = JudgeOrder(
        repo=repo,
        base=base,
        patches=tuple(patch),
        description=task,
        checks=tuple(check or ()),
        setup=tuple(setup or ()),
        variables=tuple(env or ()),
        path=tuple(path or ()),
        network=tuple(network or ()),
        require_verified=require_verified,
        task_id=task_id,
    )
    carry_out(
        lambda screen, settings: work(
            screen, chosen_client(settings, screen, local=local, server=server, token=token), order
        ),
        json=json,
    )


def deliver(
    name: Execution,
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help="As `fleet show` names it.")],
    *,
    branch: Annotated[str, typer.Option(help="The branch to create. Default: fleet/<task id>-<candidate>.")] = "",
    push: Annotated[bool, typer.Option("--push", help="Push it to where the repository came from.")] = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, for the log.")] = "",
    approver: Annotated[str, typer.Option("--as", metavar="NAME", help="Who decides, for the log. Default: you.")] = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Put a candidate of an ended execution on a branch, whatever its verdict; the log keeps who decided it."""

    async def work(screen: Screen, client: FleetClient) -> Exit:
        request = pb.DeliverCandidateRequest(
            candidate_id=candidate, branch=branch, push=push, reason=reason, approver=approver or caller_name()
        )
        request.execution_id = await client.find(name)
        answer = await client.deliver(request)
        document = {
            "execution_id": answer.execution_id,
            "candidate_id": candidate,
            "branch": answer.branch,
            "commit": answer.commit_sha,
        }
        screen.result(document, f"{candidate} stands on branch {answer.branch} as {answer.commit_sha}")
        return Exit.ACCEPTED

    carry_out_with(fleet_client, work, server=server, token=token, json=json)
