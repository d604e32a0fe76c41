"""Councils: the agents of one task, and the perspective of each.

Rules say which councils and agents may be stored.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.council import HARNESS, Council, CouncilMember, EndpointRules, is_harness
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import number_in
from swe_ai_fleet.domain.task import (
    COUNCIL_ROUNDS,
    DEFAULT_AGENTS,
    DEFAULT_ROUNDS,
    PinnedRepository,
    Role,
    Task,
    TaskKind,
)
from swe_ai_fleet.domain.text import check_identifier, check_length, nearest

TEMPERATURE = "temperature"
INSTRUCTIONS = "instructions"
PARAMETERS = (TEMPERATURE, INSTRUCTIONS)
"""The `custom_params` of councils and tasks: the temperature of the fleet's agents, and instructions for all agents."""

_VIEWS = (
    "Prefer the smallest change that is complete.",
    "Think of the edge cases first: empty, huge, malformed and concurrent input. Cover them.",
    "Prefer the clearest structure, even where it takes a few lines more; reuse what the repository already has.",
    "Start from the tests: write down what must hold, then make it hold.",
    "Distrust the obvious cause. Find out why the code is as it is before you change it.",
)
_TEMPERATURES = (0.0, 0.4, 0.7, 0.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One agent run of a deliberation. `number` counts from 1; a member's further seats have different agent ids."""

    number: int
    agent_id: str
    member: CouncilMember


def agent_name(role: Role, number: int) -> str:
    """The name of a council's `number`-th agent, from 1: `agent-dev-1`."""
    return f"agent-{role.lower()}-{number}"


def own_agents(role: Role, count: int) -> tuple[CouncilMember, ...]:
    """So many agents of the fleet's own as members of a council."""
    return tuple(CouncilMember(agent_id=agent_name(role, number)) for number in range(1, count + 1))


def council_name(role: Role) -> str:
    """The id of a role's council: `council-dev`."""
    return f"council-{role.lower()}"


def adopted(task: Task, council: Council) -> Council:
    """A council for one task: a model profile that the task names replaces those of the council and its members."""
    if not task.model_profile:
        return council
    members = tuple(replace(member, model_profile="") for member in council.members)
    return replace(council, model_profile=task.model_profile, members=members)


def council_of(task: Task, council: Council | None, harnesses: Collection[str]) -> Council:
    """The council of a task that names its seats; everything but the members is the role's, where it has a council.

    Raises InvalidRequest.
    """
    if task.num_agents not in (0, len(task.seats)):
        raise InvalidRequest(
            f"there are {len(task.seats)} seats, and num_agents is {task.num_agents}",
            field="num_agents",
            hint="leave it out",
        )
    members: list[CouncilMember] = []
    for number, seat in enumerate(task.seats, start=1):
        field = f"seats[{number - 1}]"
        if seat == OWN_SEAT:
            members.append(CouncilMember(agent_id=agent_name(task.role, number)))
            continue
        if not is_harness(seat):
            hint = f"{OWN_SEAT}, or acp:NAME for a harness"
            raise InvalidRequest(f"{seat[:64]!r} is no seat", field=field, hint=hint)
        check_harness(seat, harnesses, field=field)
        members.append(CouncilMember(agent_id=f"{seat.removeprefix(HARNESS)}-{number}", endpoint=seat))
    base = council or Council(council_id=council_name(task.role), role=task.role, members=())
    return replace(base, members=tuple(members), agent_type="")


def seated(task: Task, council: Council | None = None) -> Task:
    """The task with agents, rounds and profile filled in from the council, or else from the fleet's defaults.

    A second call changes nothing. Without a council (or with an empty one) there are as many agents as are asked for;
    a task of the kind `judge` has none.
    """
    if task.kind is TaskKind.JUDGE:
        return replace(task, num_agents=0, max_agents=0, rounds=0)
    agents = len(task.seats) or task.num_agents or (len(council.members) if council else 0) or DEFAULT_AGENTS
    rounds = task.rounds
    if rounds == COUNCIL_ROUNDS:
        reviewed = council is None or council.peer_review
        rounds = ((council.rounds if council else 0) or DEFAULT_ROUNDS) if reviewed else 0
    profile = task.model_profile or (council.model_profile if council else "")
    task = replace(task, num_agents=agents, rounds=rounds, model_profile=profile)
    room = len(seats(task, council))
    return replace(task, num_agents=min(agents, room), max_agents=min(task.max_agents, room))


def seats(task: Task, council: Council | None = None) -> tuple[Seat, ...]:
    """The seats of a seated task, at most `most_agents`; the first `num_agents` of them start.

    Members are seated in their order. If there are fewer members than seats, the fleet's own agents get as many seats
    as needed, external ones as many as their `max_concurrent_tasks`.
    """
    members = (council.members if council else ()) or own_agents(task.role, task.most_agents)
    taken: list[Seat] = []
    turn = 0
    while len(taken) < task.most_agents:
        turn += 1
        free = [member for member in members if not member.elsewhere or member.max_concurrent_tasks >= turn]
        if not free:
            break
        for member in free[: task.most_agents - len(taken)]:
            name = member.agent_id if turn == 1 else f"{member.agent_id}-seat{turn}"
            taken.append(Seat(number=len(taken) + 1, agent_id=name, member=member))
    return tuple(taken)


def at_work(states: Iterable[ExecutionState], role: Role) -> Mapping[str, int]:
    """The number of executions that each agent of a role's council works for now, by its id."""
    counts: Counter[str] = Counter()
    for state in states:
        if state.task.role is not role or state.council is None or state.status is not ExecutionStatus.IN_PROGRESS:
            continue
        lost = {name for name, agent in state.agents.items() if agent.status == "lost"}
        task = seated(state.task, state.council)
        sitting = [
            seat
            for seat in seats(task, state.council)
            if seat.number <= task.num_agents or seat.agent_id in state.agents
        ]
        counts.update({seat.member.agent_id for seat in sitting if seat.agent_id not in lost | state.candidates.keys()})
    return counts


def assignments(
    task: Task, repository: PinnedRepository, council: Council | None = None
) -> tuple[CodingAssignment, ...]:
    """One assignment for each agent of the task; each gets an equal share of the totals."""
    task = seated(task, council)
    sitting = seats(task, council)
    limits = task.constraints.totals.share(task.constraints.limits, parts=len(sitting))
    task = replace(task, constraints=replace(task.constraints, limits=limits))
    return tuple(
        CodingAssignment(
            execution_id=task.execution_id,
            agent_id=seat.agent_id,
            task=task,
            repository=repository,
            perspective=_perspective(seat, task, council),
        )
        for seat in sitting
    )


def _perspective(seat: Seat, task: Task, council: Council | None) -> Perspective:
    """The perspective of a seat: the first samples greedily, the others with more variety; profiles take turns."""
    at, member, profiles = seat.number - 1, seat.member, task.profiles or ("",)
    custom = {**(council.custom_params if council else {}), **task.custom_params}
    return Perspective(
        temperature=float(custom.get(TEMPERATURE, _TEMPERATURES[at % len(_TEMPERATURES)])),
        seed=seat.number,
        instructions="\n".join(filter(None, (custom.get(INSTRUCTIONS, ""), _VIEWS[at % len(_VIEWS)]))),
        model_profile="" if member.elsewhere else member.model_profile or profiles[at % len(profiles)],
        endpoint=member.endpoint,
    )


OWN_SEAT = "fleet"
OWN_AGENTS = "tools"
OUTSIDE_AGENTS = "external"
AGENT_TYPES = ("", OWN_AGENTS, OUTSIDE_AGENTS)
MAX_AGENT_ID_CHARS = 48
MAX_MEMBER_CHARS = 4_000
MAX_PARAMETER_CHARS = 8_000
MAX_ROUNDS = 16
MAX_TEMPERATURE = 2.0
MAX_CONCURRENT_TASKS = 1_000
# Runs of an agent are named after it: its revisions, reviews, votes, further seats.
_RESERVED = re.compile(r"planner|.*-reviews-.*|.*-(?:r[0-9]+|seat[0-9]+|judges)")


@dataclass(frozen=True, kw_only=True)
class CouncilRules:
    """The rules of an installation for councils.

    Attributes:
        profiles: The model profiles that exist.
        endpoints: The endpoints that are allowed for external agents.
        harnesses: The harnesses that exist, by name.
        max_agents: The most agents of one council.
    """

    profiles: Collection[str] = ()
    endpoints: EndpointRules = field(default_factory=EndpointRules)
    harnesses: Collection[str] = ()
    max_agents: int = 300

    def check(self, council: Council) -> None:
        """Raises InvalidRequest naming the field, `members[0].…` for those of members."""
        self.check_settings(council)
        if len(council.members) > self.max_agents:
            raise InvalidRequest(
                f"{len(council.members)} agents; too many for one council",
                field="members",
                hint=f"at most {self.max_agents}",
            )
        seen: set[str] = set()
        for number, member in enumerate(council.members):
            where = f"members[{number}]."
            self.check_member(council, member, where)
            if member.agent_id in seen:
                raise InvalidRequest(f"two agents are called {member.agent_id!r}", field=f"{where}agent_id")
            seen.add(member.agent_id)

    def check_settings(self, council: Council) -> None:
        """Everything but the members."""
        if council.agent_type not in AGENT_TYPES:
            raise InvalidRequest(
                f"unknown agent_type {council.agent_type[:64]!r}",
                field="agent_type",
                hint="leave it out, or one of tools (the fleet's own agents) and external (agents with an endpoint)",
            )
        if not 0 <= council.rounds <= MAX_ROUNDS:
            raise InvalidRequest(f"rounds is {council.rounds}", field="rounds", hint=f"between 0 and {MAX_ROUNDS}")
        for name in filter(None, (part.strip() for part in council.model_profile.split(","))):
            self._check_profile(name, "model_profile")
        check_parameters(council.custom_params)

    def check_member(self, council: Council, member: CouncilMember, where: str = "") -> None:
        """One member of a council; `where` is the prefix of the names of its fields."""
        check_identifier(member.agent_id, field=f"{where}agent_id")
        check_length(member.agent_id, MAX_AGENT_ID_CHARS, field=f"{where}agent_id")
        if _RESERVED.fullmatch(member.agent_id):
            raise InvalidRequest(
                f"{member.agent_id!r} is reserved for runs of the fleet",
                field=f"{where}agent_id",
                hint="choose a name other than planner, without -r1, -seat2, -reviews- and -judges",
            )
        if member.model_profile:
            self._check_profile(member.model_profile, f"{where}model_profile")
        if not 1 <= member.max_concurrent_tasks <= MAX_CONCURRENT_TASKS:
            raise InvalidRequest(
                f"max_concurrent_tasks is {member.max_concurrent_tasks}",
                field=f"{where}max_concurrent_tasks",
                hint=f"between 1 and {MAX_CONCURRENT_TASKS}",
            )
        self._check_endpoint(council, member, where)
        words = (*member.supported_tasks, *member.languages, *member.metadata, *member.metadata.values())
        if (size := sum(map(len, words))) > MAX_MEMBER_CHARS:
            raise InvalidRequest(
                f"the description of the agent has {size} characters",
                field=f"{where}metadata",
                hint=f"at most {MAX_MEMBER_CHARS}, supported_tasks and languages among them",
            )

    def _check_endpoint(self, council: Council, member: CouncilMember, where: str) -> None:
        name = f"{where}endpoint"
        if is_harness(member.endpoint):
            check_harness(member.endpoint, self.harnesses, field=name)
        elif member.endpoint:
            self.endpoints.check(member.endpoint, field=name)
        if member.endpoint and council.agent_type == OWN_AGENTS:
            raise InvalidRequest(
                "a council of agent_type tools has no external agents", field=name, hint="leave the endpoint out"
            )
        if not member.endpoint and council.agent_type == OUTSIDE_AGENTS:
            raise InvalidRequest("each agent of an external council needs an endpoint", field=name, hint="host:port")

    def _check_profile(self, name: str, field_name: str) -> None:
        if name not in self.profiles:
            configured = ", ".join(sorted(self.profiles)) or "none is configured"
            raise InvalidRequest(f"there is no model profile {name[:64]!r}", field=field_name, hint=configured)


def check_harness(endpoint: str, harnesses: Collection[str], *, field: str) -> None:
    """Check that the harness of `acp:NAME` exists. Raises InvalidRequest."""
    name = endpoint.removeprefix(HARNESS)
    if name not in harnesses:
        hint = nearest(name, harnesses) or "none is configured (FLEET_HARNESSES)"
        raise InvalidRequest(f"there is no harness {name[:64]!r}", field=field, hint=hint)


def check_parameters(parameters: Mapping[str, str]) -> None:
    """Check `custom_params`. Raises InvalidRequest naming the invalid one."""
    for name, value in parameters.items():
        where = f"custom_params[{name[:64]}]"
        if name not in PARAMETERS:
            raise InvalidRequest(
                f"unknown parameter {name[:64]!r}", field=where, hint=f"one of {', '.join(PARAMETERS)}"
            )
        check_length(value, MAX_PARAMETER_CHARS, field=where)
        if name == TEMPERATURE and number_in(value, 0, MAX_TEMPERATURE) is None:
            raise InvalidRequest(f"{value[:64]!r} is not a temperature", field=where, hint=f"0 to {MAX_TEMPERATURE:g}")
