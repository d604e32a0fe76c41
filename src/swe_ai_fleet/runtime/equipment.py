"""Equipment from settings: what the runs of one process share, the context service among it.

Councils, and the agents in them that others run, come from settings too.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields

from swe_ai_fleet.adapters.acp import Harness, HarnessAgents
from swe_ai_fleet.adapters.agent_service import AgentServiceClient
from swe_ai_fleet.adapters.context_service import ContextServiceClient
from swe_ai_fleet.agents.equipment import Equipment
from swe_ai_fleet.agents.planning import ModeRules
from swe_ai_fleet.agents.sub_agents import SubAgentLimits
from swe_ai_fleet.agents.sub_agents.memory import MemorySearch
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.budget import Limits, Prices
from swe_ai_fleet.domain.council import EndpointRules
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.memory import MemoryScope, task_namespaces
from swe_ai_fleet.domain.task import PlanningMode, Task
from swe_ai_fleet.memory.searching import FleetMemory
from swe_ai_fleet.orchestrator.council_store import CouncilStore, read_councils
from swe_ai_fleet.orchestrator.councils import CouncilRules
from swe_ai_fleet.orchestrator.quotas import Rules
from swe_ai_fleet.ports import ChatModel, KeyValue, LiveText, Memories, SecretMask
from swe_ai_fleet.runtime.channels import channel_credentials, channel_tls, target
from swe_ai_fleet.runtime.factories import model_admission, open_model, other_model
from swe_ai_fleet.runtime.tool_services import secret_mask, tool_access
from swe_ai_fleet.settings import Settings, listed
from swe_ai_fleet.tools.catalogue import ToolAccess
from swe_ai_fleet.tools.result_cache import SharedResults

_PROFILE_FIELDS = ("model", "url", "api_key", "record_tokens")
_PRICED = frozenset(field.name for field in fields(Prices))
COUNCILS_BUCKET = "councils"


@asynccontextmanager
async def open_context_client(settings: Settings) -> AsyncGenerator[ContextServiceClient | None]:
    """A client of it until the context ends; None where settings name no context service."""
    if not settings.context_url:
        yield None
        return
    tls = channel_tls(settings, settings.context_url)
    async with ContextServiceClient(
        target(settings.context_url),
        settings.context_token,
        credentials=None if tls is None else channel_credentials(tls),
        server_name="" if tls is None else tls.name,
    ) as client:
        yield client


def remembering(memories: Memories, mask: SecretMask) -> Callable[[Task, MemorySearch], MemorySearch]:
    """What makes of a task and its repository's memory one that asks what the fleet remembers too."""

    def search(task: Task, repository: MemorySearch) -> MemorySearch:
        scope = MemoryScope(tenant=task.tenant, namespaces=task_namespaces(task))
        return FleetMemory(memories, scope, repository, mask=mask)

    return search


@asynccontextmanager
async def open_equipment(
    settings: Settings, *, live: LiveText | None = None, alone: bool = True, memories: Memories | None = None
) -> AsyncGenerator[Equipment]:
    """The models connected and the rest made, until the context ends.

    `alone` says whether nobody but the agents changes their workspaces; tasks that read memory recall from `memories`.
    Raises InvalidRequest naming a malformed
    setting, ModelRejected for a URL that is none.
    """
    prices, mask = model_prices(settings), secret_mask(settings)
    async with AsyncExitStack() as stack:
        admission = model_admission(settings)
        if admission is not None:
            await stack.enter_async_context(admission)
        models: dict[str, ChatModel] = {}
        profiles = {"": settings, **profile_settings(settings)}
        for name, chosen in profiles.items():
            models[name] = await stack.enter_async_context(open_model(chosen, admission=admission))
        yield Equipment(
            models=models,
            access=tool_access(settings),
            mask=mask,
            results=SharedResults(max_bytes=settings.result_cache_mb << 20) if settings.result_cache_mb else None,
            alone=alone,
            prices=prices,
            token_profiles=frozenset(name for name, chosen in profiles.items() if chosen.model_record_tokens),
            planning_mode=PlanningMode(settings.planning_mode),
            mode_rules=ModeRules(threshold=settings.hybrid_threshold),
            parallel=settings.parallel_calls,
            sub_agents=SubAgentLimits(
                depth=settings.sub_agent_depth,
                number=settings.sub_agents,
                each=Limits(max_iterations=5, max_tool_calls=12, timeout_seconds=settings.sub_agent_seconds),
            ),
            live=live,
            remembering=remembering(memories, mask) if memories is not None else None,
        )


def profile_settings(settings: Settings) -> Mapping[str, Settings]:
    """The settings of each model profile. Raises InvalidRequest for a field that is none."""
    profiles: dict[str, Settings] = {}
    for name, profile in settings.model_profiles.items():
        if unknown := profile.keys() - set(_PROFILE_FIELDS):
            raise InvalidRequest(
                f"the model profile {name!r} has the unknown field {sorted(unknown)[0]!r}",
                field="model_profiles",
                hint=f"one of {', '.join(_PROFILE_FIELDS)}",
            )
        if not name or "," in name:
            raise InvalidRequest(f"{name!r} is not a valid name for a model profile", field="model_profiles")
        profiles[name] = other_model(settings, **profile)
    return profiles


def model_prices(settings: Settings) -> Mapping[str, Prices]:
    """What models cost. Raises InvalidRequest for a malformed setting."""
    for model, price in settings.model_prices.items():
        if unknown := price.keys() - _PRICED:
            raise InvalidRequest(
                f"the price of {model!r} has the unknown field {sorted(unknown)[0]!r}",
                field="model_prices",
                hint=f"one of {', '.join(sorted(_PRICED))}",
            )
    try:
        return {model: from_plain(Prices, price) for model, price in settings.model_prices.items()}
    except ValueError as error:
        raise InvalidRequest(f"FLEET_MODEL_PRICES is malformed: {error}", field="model_prices") from None


def council_store(settings: Settings, store: KeyValue, tenants: Rules | None = None) -> CouncilStore:
    """The councils in a store, and those of `councils_file`. Raises InvalidRequest naming the setting or the key.

    Args:
        settings: Which profiles and endpoints there are.
        store: Where councils are kept.
        tenants: Where each tenant may have agents that others run, within what settings allow; None: anywhere there.
    """
    rules = CouncilRules(
        profiles=profile_settings(settings),
        endpoints=_endpoints(settings),
        harnesses=settings.harnesses,
        max_agents=settings.max_agents,
    )
    defaults = read_councils(settings.councils_file) if settings.councils_file else ()
    return CouncilStore(store, defaults=defaults, rules=rules, places=None if tenants is None else _places(tenants))


def council_models(settings: Settings) -> Mapping[str, str]:
    """The model behind each profile, as far as settings name it; the empty name is the default's."""
    return {name: chosen.model for name, chosen in {"": settings, **profile_settings(settings)}.items()}


def outside_agents(settings: Settings, mask: SecretMask) -> AgentServiceClient:
    """The way to agents that others run. Raises InvalidRequest naming a malformed setting."""
    return AgentServiceClient(_endpoints(settings), mask=mask, token=settings.agent_service_token)


def harnesses(settings: Settings) -> Mapping[str, Harness]:
    """The harnesses that settings name. Raises InvalidRequest naming a malformed setting."""
    harness_tables: dict[str, Harness] = {}
    for name, table in settings.harnesses.items():
        try:
            harness_tables[name] = from_plain(Harness, table)
        except ValueError as error:
            words = str(error).splitlines()[0]
            raise InvalidRequest(f"the harness {name!r} is malformed: {words}", field=f"harnesses.{name}") from None
        harness_tables[name].check(name)
    return harness_tables


def harness_agents(settings: Settings, access: ToolAccess) -> HarnessAgents:
    """The way to the harnesses of this installation. Raises InvalidRequest naming a malformed setting."""
    return HarnessAgents(
        harnesses=harnesses(settings),
        sandbox=access.sandbox,
        approval_timeout_seconds=settings.approval_timeout_seconds,
    )


def _places(tenants: Rules) -> Callable[[str], EndpointRules]:
    return lambda tenant: EndpointRules(patterns=tenants(tenant).agent_endpoints)


def _endpoints(settings: Settings) -> EndpointRules:
    return EndpointRules(patterns=listed(settings.agent_endpoints))
