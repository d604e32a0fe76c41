"""Sub-agents, and the search of memory that comes before them, as operations of a run.

Limits say how many sub-agents a run may have, how deep, and what each may spend; profiles say which a run is shown
from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, TypeVar

from pydantic import BeforeValidator, Field

from swe_ai_fleet.agents.budget import Budget
from swe_ai_fleet.agents.structured_output import (
    OutputShape,
    PlanShape,
    ResearchShape,
    ScheduleShape,
    Shape,
    VerdictShape,
    as_texts,
    flat,
    opening,
    reply_in_shape,
)
from swe_ai_fleet.agents.sub_agents.exploring import (
    Explored,
    described,
    explore,
    format_check,
    key_of,
    listed,
    offered,
    researched,
    result,
    sub_agents_of,
    trace_metadata,
    unfinished,
    verdict,
)
from swe_ai_fleet.agents.sub_agents.memory import MemoryResults, MemorySearch, RepositoryMemory
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.budget import Limits
from swe_ai_fleet.domain.message import Message
from swe_ai_fleet.domain.run import sub_agent_usage
from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.domain.tool import Risk, ToolResult
from swe_ai_fleet.ports import ChatModel, Workspace
from swe_ai_fleet.tools.definition import ToolFailure, ToolRefusal
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline

SHARE = 0.5
"""Of what its parent has left a sub-agent gets so much at most: the parent must be able to use what it is told."""
MIN_TOKENS = 256
"""With fewer no sub-agent can say anything of use."""
S = TypeVar("S", bound=Shape)
WEB_OPERATIONS = ("web_search", "read_webpage", "http_get", "search_wikipedia")
LOOKING_OPERATIONS = (
    "files_read_file", "files_search_in_files", "files_list_files", "files_repo_map", "git_status", "git_diff",
    "git_log", "search_memory", "research",
)  # fmt: skip
"""What the verifier looks around with, as far as the run has it."""
MAX_GAPS = 40
MAX_RESEARCH_ITERATIONS = 10
MAX_WORDS_CHARS = 40_000
# A sub-agent's own budget ends it; this stands behind that, its final prompt included.
_SECONDS = 900.0
Words = Annotated[str, BeforeValidator(flat), Field(max_length=MAX_WORDS_CHARS)]
Names = Annotated[list[str], BeforeValidator(as_texts)]
SHOWN: Mapping[Role, frozenset[str]] = {Role.ARCHITECT: frozenset({"search_memory", "call_verifier"})}
"""By role. A schema costs tokens and a choice with each request, so the others ask for what they need."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubAgentLimits:
    """Limits of all sub-agents of one run.

    `depth` counts levels below the run: with 1 its sub-agents have none of their own. `number` counts all of them, at
    whatever level. `each` is what one may spend.
    """

    depth: int = 2
    number: int = 8
    each: Limits = field(default_factory=lambda: Limits(max_iterations=5, max_tool_calls=12, timeout_seconds=90.0))


class SubAgentBudget:
    """What a run's sub-agents may still use; one object for all levels."""

    def __init__(self, limits: SubAgentLimits, *, used: int = 0) -> None:
        self.limits = limits
        self.used = used

    @contextmanager
    def grant(self, name: str, parent: Budget, *, max_iterations: int = 0) -> Generator[Budget]:
        """The budget of one more sub-agent, with so many turns where they are given.

        Raises ToolRefusal where there may be no more of them, or too little is left.
        """
        if self.used >= self.limits.number:
            raise ToolRefusal(
                f"{name} was not started: this run had its {self.limits.number} sub-agents; go on with what you have"
            )
        limits = _shared(self.limits.each, parent)
        limits = replace(limits, max_iterations=max_iterations or limits.max_iterations)
        if parent.tokens_left is not None and limits.max_tokens < MIN_TOKENS:
            raise ToolRefusal(f"{name} was not started: {parent.tokens_left} tokens are left; go on with what you have")
        self.used += 1
        with parent.child(limits) as budget:
            yield budget


def _shared(limits: Limits, parent: Budget) -> Limits:
    tokens, cost = parent.tokens_left, parent.cost_left
    return replace(
        limits,
        max_tool_calls=min(limits.max_tool_calls, int(parent.tool_calls_left * SHARE)),
        max_tokens=limits.max_tokens if tokens is None else min(limits.max_tokens or tokens, int(tokens * SHARE)),
        max_cost=limits.max_cost if cost is None else min(limits.max_cost or cost, cost * SHARE),
        timeout_seconds=min(limits.timeout_seconds, parent.seconds_left * SHARE),
    )


class SubAgentTools(Toolkit):
    """`search_memory`, `research`, `call_planner`, `call_verifier`, `call_executor` and `call_generator`.

    Each but the first is a sub-agent: a prompt and a short history of its own, a part of the run's budget, an answer in
    a fixed shape. None changes anything. What they spend is settled with the run's budget; the metadata of a result
    hold, under `sub_agent`, what it did and spent.

    Args:
        pipeline: The way every call goes, those of sub-agents too: same policy, audit trail and mask.
        budget: What the run may spend; each sub-agent gets a part of what is left when it is called.
        toolkits: The run's own, by name. Of them `research` gets the web and `call_verifier` what only reads.
    """

    name: ClassVar[str] = "sub_agents"
    bare: ClassVar[bool] = True

    def __init__(
        self,
        workspace: Workspace,
        pipeline: Pipeline | None = None,
        *,
        model: ChatModel,
        budget: Budget,
        toolkits: Mapping[str, Toolkit] | None = None,
        without: Collection[str] = (),
        memory: MemorySearch | None = None,
        limits: SubAgentLimits | None = None,
        used: int = 0,
        searched: list[MemoryResults] | None = None,
    ) -> None:
        super().__init__(workspace, pipeline)
        self._model = model
        self._budget = budget
        self._toolkits = dict(toolkits or {})
        self._without = frozenset(without)
        self._memory = memory or RepositoryMemory(workspace)
        self._allowance = SubAgentBudget(limits or SubAgentLimits(), used=used)
        self._depth = 1
        self._gaps: dict[str, str] = {}
        self._searched = searched if searched is not None else []

    @property
    def used(self) -> int:
        return self._allowance.used

    @property
    def can_research(self) -> bool:
        return bool(self._web())

    def settle(self, result: ToolResult) -> None:
        """Count the sub-agent that an earlier process had, and what it spent, as its result tells."""
        self._allowance.used += sub_agents_of(result)
        self._budget.settle(sub_agent_usage(result))

    def know(self, results: MemoryResults) -> None:
        """Take in what somebody else asked memory: its gaps may be researched."""
        self._gaps |= {key_of(gap): gap for gap in results.gaps}

    @operation(read_only=True, locks=(), time_limit_seconds=120.0)
    async def search_memory(
        self,
        entities: Annotated[Names, Field(description="Names to look for exactly as written.")] = [],  # noqa: B006
        queries: Annotated[Names, Field(description="Questions or key words.")] = [],  # noqa: B006
    ) -> ToolResult:
        """Search what the project knows: its documents, docstrings and commit messages.

        Says how much of what was asked it covers, and which of it are gaps.
        """
        results = await self._memory.search(entities, queries)
        texts = (" ".join(text.split()) for text in (*entities, *queries))
        results = replace(results, asked=tuple(dict.fromkeys(text for text in texts if text)))
        self.know(results)
        self._searched.append(results)
        return ToolResult(
            success=True, operation="search_memory", content=described(results), metadata=to_plain(results)
        )

    @operation(read_only=True, risk=Risk.MEDIUM, network=True, locks=(), time_limit_seconds=_SECONDS)
    async def research(
        self,
        gaps: Annotated[Names, Field(description="Gaps that search_memory named, as it wrote them.")],
        max_iterations: Annotated[
            int, Field(description="Turns of the researcher.", ge=1, le=MAX_RESEARCH_ITERATIONS)
        ] = 5,
    ) -> ToolResult:
        """Have the gaps of memory researched on the web; gives a summary, facts and sources."""
        open_gaps = self._researchable(gaps)
        web = self._web()
        if not web:
            raise ToolFailure("nothing here reaches the web; go on with what is known and say what is not")
        messages = opening(
            "sub_research", [("Gaps", "\n".join(f"- {gap}" for gap in open_gaps))], iterations=max_iterations
        )
        explored = await self._explore("research", messages, ResearchShape, self._toolkits, web, max_iterations)
        return researched(open_gaps, explored)

    @operation(read_only=True, locks=(), time_limit_seconds=_SECONDS)
    async def call_planner(
        self,
        goal: Annotated[Words, Field(description="What is to be reached.")],
        context: Annotated[Words, Field(description="What the planner must know; it sees nothing else.")] = "",
        approach: Annotated[Words, Field(description="How to go about it, if that is settled.")] = "",
    ) -> ToolResult:
        """Have a plan made: its steps and the reasoning behind them."""
        sections = [("Goal", goal), ("Context", context), ("Approach", approach)]
        plan, did = await self._ask("call_planner", opening("sub_planner", sections), PlanShape)
        return result("call_planner", listed(plan.plan, plan.reasoning), plan.model_dump(), did)

    @operation(read_only=True, locks=(), time_limit_seconds=_SECONDS)
    async def call_verifier(
        self,
        plan: Annotated[Words, Field(description="The plan, whole.")],
        context: Annotated[Words, Field(description="What the verifier must know.")] = "",
        criteria: Annotated[Words, Field(description="What the plan must meet.")] = "",
    ) -> ToolResult:
        """Have a plan checked against the repository before it is carried out."""
        sections = [("Plan", plan), ("Context", context), ("Criteria", criteria)]
        toolkits = self._for_children()
        looks = offered(toolkits, self.pipeline, [name for name in LOOKING_OPERATIONS if name not in self._without])
        messages = opening("sub_verifier", sections, looks=bool(looks))
        if not looks:
            judged, did = await self._ask("call_verifier", messages, VerdictShape)
            return verdict(judged, did)
        explored = await self._explore("call_verifier", messages, VerdictShape, toolkits, looks)
        did = trace_metadata("call_verifier", explored.trajectory)
        if explored.conclusion is None:
            return unfinished("call_verifier", explored.trajectory, did)
        return verdict(explored.conclusion, did)

    @operation(read_only=True, locks=(), time_limit_seconds=_SECONDS)
    async def call_executor(
        self,
        plan: Annotated[Words, Field(description="The plan, whole.")],
        context: Annotated[Words, Field(description="What the executor must know.")] = "",
        resources: Annotated[Words, Field(description="Tools, people, time and limits there are.")] = "",
    ) -> ToolResult:
        """Have a plan turned into concrete steps and a timeline. It carries nothing out."""
        sections = [("Plan", plan), ("Context", context), ("Resources", resources)]
        schedule, did = await self._ask("call_executor", opening("sub_executor", sections), ScheduleShape)
        return result("call_executor", listed(schedule.steps, schedule.timeline), schedule.model_dump(), did)

    @operation(read_only=True, locks=(), time_limit_seconds=_SECONDS)
    async def call_generator(
        self,
        data: Annotated[Words, Field(description="All that the output is made of.")],
        format: Annotated[Words, Field(description="Such as json, csv, markdown.")] = "markdown",  # noqa: A002
    ) -> ToolResult:
        """Have an output made out of data, in a format."""
        messages = opening("sub_generator", [("Format", format), ("Data", data)])
        output, did = await self._ask("call_generator", messages, OutputShape, check=format_check(format))
        return result("call_generator", output.output, {"output": output.output, "format": format}, did)

    async def _explore(
        self,
        name: str,
        messages: Sequence[Message],
        shape: type[S],
        toolkits: Mapping[str, Toolkit],
        names: Sequence[str],
        max_iterations: int = 0,
    ) -> Explored[S]:
        """What a sub-agent finds with these operations; one of its own spends its budget."""
        with self._allowance.grant(name, self._budget, max_iterations=max_iterations) as budget:
            if isinstance(below := toolkits.get(self.name), SubAgentTools):
                below._budget = budget
            return await explore(
                self._model, messages, shape, toolkits=toolkits, pipeline=self.pipeline, names=names, budget=budget
            )

    async def _ask(
        self,
        name: str,
        messages: Sequence[Message],
        shape: type[S],
        *,
        check: Callable[[S], str] | None = None,
    ) -> tuple[S, Mapping[str, object]]:
        with self._allowance.grant(name, self._budget) as budget:
            answer = await reply_in_shape(self._model, messages, shape, budget=budget, check=check)
            usage = budget.total()
        return answer, {"name": name, "iterations": usage.model_calls, "usage": to_plain(usage)}

    def _web(self) -> tuple[str, ...]:
        return offered(self._toolkits, self.pipeline, [name for name in WEB_OPERATIONS if name not in self._without])

    def _researchable(self, gaps: Sequence[str]) -> list[str]:
        """Those that memory named as gaps. Raises ToolFailure where none is."""
        open_gaps = {key_of(gap): self._gaps[key_of(gap)] for gap in gaps if key_of(gap) in self._gaps}
        if not open_gaps:
            known = "; ".join(self._gaps.values())
            raise ToolFailure(
                f"only gaps that search_memory named are researched; open are: {known}"
                if known
                else "only gaps that search_memory named are researched, and it named none: search memory first"
            )
        return list(open_gaps.values())[:MAX_GAPS]

    def _for_children(self) -> dict[str, Toolkit]:
        """The toolkits a sub-agent chooses from; sub-agents of its own only above the deepest level."""
        kits = {name: kit for name, kit in self._toolkits.items() if name != self.name}
        if self._depth < self._allowance.limits.depth:
            below = SubAgentTools(
                self.workspace,
                self.pipeline,
                model=self._model,
                budget=self._budget,
                toolkits=kits,
                without=self._without,
                memory=self._memory,
            )
            below._allowance, below._depth = self._allowance, self._depth + 1
            kits[self.name] = below
        return kits


def idle_sub_agents(
    role: Role, asked: Collection[str] = (), *, can_research: bool = True
) -> tuple[frozenset[str], frozenset[str]]:
    """(idle, unlisted) as a toolbox takes them: what is not shown at first, and what of it is not told of at all.

    Where nothing `can_research`, reaches the web, research is of no use.
    """
    names = frozenset(SubAgentTools.definitions)
    shown = names if SubAgentTools.name in asked else SHOWN.get(role, frozenset()) | names.intersection(asked)
    idle = names - shown
    return idle, frozenset[str]() if can_research else idle & {"research"}
