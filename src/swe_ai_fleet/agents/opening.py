"""The first messages of a run: who the agent is, where it stands, what it is to do; and the baseline's results.

Everything that the candidates of one task share comes first and is byte-identical between them, so that a model
server's prefix cache serves it; what makes a candidate differ comes last. The results of the untouched commit's tests
are told once, as soon as they are known.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from swe_ai_fleet.agents.prompting import rendered
from swe_ai_fleet.agents.repository_facts import RepositoryFacts
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.message import Message, SystemMessage, UserMessage
from swe_ai_fleet.domain.task import Role, Task
from swe_ai_fleet.domain.test_run import TestRun, suite_baseline
from swe_ai_fleet.ports import Baselines, SecretMask, Workspace
from swe_ai_fleet.tools.pipeline import ToolLimits

TITLE = "Tests on the untouched commit: "
ROLES = {
    Role.DEV: "a software developer",
    Role.QA: "a quality engineer: you look for what breaks, and prove it with tests",
    Role.ARCHITECT: "a software architect: you care for structure, boundaries and what the change costs later",
    Role.DEVOPS: "a platform engineer: you care for builds, deployment and operation",
    Role.DATA: "a data engineer: you care for schemas, migrations and the truth of numbers",
}


@dataclass(kw_only=True)
class BaselineNews:
    """The baseline of one run's clone.

    Attributes:
        baselines: Where it is found; None: nowhere.
        told: Whether the agent knows it already.
    """

    baselines: Baselines | None
    task: Task
    environment: Environment
    mask: SecretMask
    is_known: bool = False

    async def failing(self) -> Collection[str] | None:
        """The tests that fail on the untouched commit; None until the agent has been told of it."""
        run = await self.run() if self.is_known else None
        return None if run is None else frozenset(run.failing)

    async def run(self) -> TestRun | None:
        """The tests of the untouched commit, told or not; None where they are not known."""
        return None if self.baselines is None else await self.baselines.known(self.task, self.environment)

    async def line(self) -> str:
        """The baseline in a line, told or not; empty where it is not known."""
        run = await self.run()
        return "" if run is None else self.mask(suite_baseline(run).line)

    async def text(self) -> str:
        """The news, one line, the first time that there is any; empty before and afterwards."""
        line = "" if self.is_known else await self.line()
        self.is_known = self.is_known or bool(line)
        return f"{TITLE}{line}." if line else ""

    def resume(self, messages: Sequence[Message]) -> None:
        """Take note of a conversation that goes on."""
        self.is_known = self.is_known or any(TITLE in message.content for message in messages)


def opening_messages(
    task: Task,
    *,
    workspace: Workspace,
    limits: ToolLimits,
    perspective: Perspective,
    facts: RepositoryFacts | None = None,
    mask: SecretMask | None = None,
    notes: Sequence[str] = (),
    background: str = "",
) -> tuple[Message, ...]:
    """The system and the first user message of one candidate's run.

    `notes` say in a line each what there is; `background` is what the project knows, its untrusted parts fenced off.
    """
    constraints, environment, facts = task.constraints, workspace.environment, facts or RepositoryFacts()
    system = rendered(
        "system",
        role_article=ROLES[task.role],
        mount=workspace.mount,
        command_seconds=f"{limits.command_timeout_seconds:g}",
        observation_chars=limits.observation_chars,
        notes=(*environment.notes, *notes),
        hosts=_hosts(workspace),
        role_template=f"roles/{task.role.lower()}.md.j2",
        test_command=shlex.join(environment.test_command),
        linters=facts.linters,
        read_only=not task.enable_tools,
    )
    user = rendered(
        "task",
        facts=facts,
        description=task.description.strip(),
        context=task.context.strip(),
        background=background.strip(),
        requirements=constraints.requirements,
        rubric=constraints.rubric.strip(),
        checks=constraints.checks,
        allowed_paths=constraints.allowed_paths,
        perspective=perspective.instructions,
    )
    hidden = mask or str
    return SystemMessage(content=hidden(system)), UserMessage(content=hidden(user))


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondGo:
    """What an author is told who revises: `text`, behind the messages that its `first` run began with.

    Without those (the log does not have them any more) they are made anew.
    """

    text: str
    first: tuple[Message, ...] = ()

    def behind(self, opening: Sequence[Message]) -> tuple[Message, ...]:
        """An opening with the text at the end of its last message: chat templates want turns that alternate."""
        *before, last = opening
        return (*before, UserMessage(content=f"{last.content}\n\n{self.text}"))


def _hosts(workspace: Workspace) -> tuple[str, ...]:
    grant = workspace.environment.network
    return tuple(dict.fromkeys((*grant.hosts, *grant.private_hosts))) if grant else ()
