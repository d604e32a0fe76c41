"""What the runs of one process share: models, services, caches, and what the operator decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swe_ai_fleet.agents.model_middleware import WatchedModel
from swe_ai_fleet.agents.planning import ModeRules
from swe_ai_fleet.agents.repository_facts import FactsCache
from swe_ai_fleet.agents.sub_agents import SubAgentLimits
from swe_ai_fleet.agents.sub_agents.memory import MemorySearch, RepositoryMemory
from swe_ai_fleet.domain.budget import Prices
from swe_ai_fleet.domain.candidate import Perspective
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import PlanningMode, Task
from swe_ai_fleet.ports import Baselines, ChatModel, Hear, LiveText, ModelSessions, Patience, Workspace
from swe_ai_fleet.tools.audit import AuditTrail
from swe_ai_fleet.tools.catalogue import ToolAccess
from swe_ai_fleet.tools.result_cache import ResultCache, SharedResults
from swe_ai_fleet.tools.secrets import Secrets

ANY_MODEL = "*"
"""Under this name stands the price of every model that has none of its own."""


@dataclass(frozen=True, kw_only=True)
class Equipment:
    """Made once a process; nothing in it belongs to a single run.

    Attributes:
        models: By profile; the empty name is the default.
        access: What tools may use beside the workspace.
        mask: Hides secrets.
        facts: What repositories say of themselves.
        results: Results of lookups that other runs of a tenant may use; None: each run has its own only.
        alone: Whether nobody else changes the workspaces; only then may a result stand for a second, equal call.
        prices: By model name; `*` is every other.
        token_profiles: Model profiles whose replies are recorded with token ids and log-probabilities.
        planning_mode: Of tasks that do not say.
        mode_rules: How it is chosen between the modes.
        parallel: Whether calls of one reply run at the same time.
        sub_agents: How many, how deep, how costly.
        live: Where people listen to models; None: nowhere.
        remembering: Makes of a task and its repository what `search_memory` asks, where the task reads memory; None:
            the repository alone is asked.
        baselines: What is known of untouched commits; None: nothing.
    """

    models: Mapping[str, ChatModel]
    access: ToolAccess = field(default_factory=ToolAccess)
    mask: Secrets = field(default_factory=Secrets)
    facts: FactsCache = field(default_factory=FactsCache)
    results: SharedResults | None = None
    alone: bool = True
    prices: Mapping[str, Prices] = field(default_factory=dict[str, Prices])
    token_profiles: frozenset[str] = frozenset()
    planning_mode: PlanningMode = PlanningMode.AGENTIC
    mode_rules: ModeRules = field(default_factory=ModeRules)
    parallel: bool = True
    sub_agents: SubAgentLimits = field(default_factory=SubAgentLimits)
    live: LiveText | None = None
    remembering: Callable[[Task, MemorySearch], MemorySearch] | None = None
    baselines: Baselines | None = None

    def memory_search(self, task: Task, workspace: Workspace) -> MemorySearch:
        """What `search_memory` asks in a run."""
        repository = RepositoryMemory(workspace)
        if self.remembering is None or not task.memory.read:
            return repository
        return self.remembering(task, repository)

    def model(self, task: Task, perspective: Perspective, trail: AuditTrail, hear: Hear | None = None) -> ChatModel:
        """The model of one run, which stays with its server and is heard by whoever listens.

        `hear` is told when it waits for a model server (see `Patience`).
        Raises InvalidRequest for a profile that is not there.
        """
        profile = perspective.model_profile
        if profile not in self.models:
            raise InvalidRequest(f"there is no model profile {profile[:64]!r}", field="model_profile")
        model = self.models[profile]
        if isinstance(model, ModelSessions):
            patience = Patience(seconds=task.model_patience_seconds, hear=hear)
            name = f"{task.execution_id}/{trail.agent_id}"
            model = model.session(name, tenant=task.tenant, priority=task.priority, patience=patience)
        if self.live is None:
            return model
        return WatchedModel(
            model,
            self.live,
            tenant=task.tenant,
            execution_id=task.execution_id,
            agent_id=trail.agent_id,
            secrets=self.mask,
        )

    def price(self, model: str) -> Prices | None:
        """What a model costs; None where nothing is known."""
        return self.prices.get(model) or self.prices.get(ANY_MODEL)

    def cache(self, task: Task) -> ResultCache | None:
        """The cache of one run, if it may have one."""
        return ResultCache(tenant=task.tenant, shared=self.results) if self.alone else None
