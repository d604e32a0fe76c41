"""The run dependencies from settings: what the runs of one process share.

Also from settings: the councils, and the clients of third-party agents in them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import fields
from typing import Self, TypeVar, cast, get_origin

from swe_ai_fleet.adapters.agent_service import AgentServiceClient
from swe_ai_fleet.agents.planning.plan_run import ModeRules
from swe_ai_fleet.agents.recollections import FleetMemory
from swe_ai_fleet.agents.run_deps import RunDeps
from swe_ai_fleet.agents.sub_agents.memory import MemorySearch
from swe_ai_fleet.agents.sub_agents.toolkit import SubAgentLimits
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.budget import Limits, Prices
from swe_ai_fleet.domain.council import EndpointRules
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import items
from swe_ai_fleet.domain.memory import MemoryScope, task_namespaces
from swe_ai_fleet.domain.message import Sampling
from swe_ai_fleet.domain.task import PlanningMode, Task
from swe_ai_fleet.orchestrator.council_store import CouncilStore, read_councils
from swe_ai_fleet.orchestrator.councils import CouncilRules
from swe_ai_fleet.orchestrator.quotas import Rules
from swe_ai_fleet.ports import ChatModel, KeyValue, LiveText, Memories, SecretMask
from swe_ai_fleet.runtime.factories import model_admission, model_client, open_model, other_model
from swe_ai_fleet.runtime.model_servers import ModelServers, model_endpoints
from swe_ai_fleet.runtime.tool_services import secret_mask, tool_access
from swe_ai_fleet.settings import Settings, listed
from swe_ai_fleet.tools.result_cache import SharedResults

_PROFILE_FIELDS = ("model", "url", "api_key", "record_tokens")
_PRICED = frozenset(field.name for field in fields(Prices))
COUNCILS_BUCKET = "councils"
T = TypeVar("T")
KNOWN = "base_url, api_key, timeout, num_retries, temperature, top_p, seed, max_tokens, stop, extra_body"
"""The parameters of a model. Each request has those of sampling, and the fields of `extra_body`."""
_REQUEST_FIELDS = frozenset(
    ("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "response_format")
)
_LONGEST_WAIT = 60.0


def remembering(memories: Memories, mask: SecretMask) -> Callable[[Task, MemorySearch], MemorySearch]:
    """Returns a function that extends the repository's memory of a task by the fleet's memories."""

    def search(task: Task, repository: MemorySearch) -> MemorySearch:
        scope = MemoryScope(tenant=task.tenant, namespaces=task_namespaces(task))
        return FleetMemory(memories, scope, repository, mask=mask)

    return search


@asynccontextmanager
async def open_run_deps(
    settings: Settings, *, live: LiveText | None = None, alone: bool = True, memories: Memories | None = None
) -> AsyncGenerator[RunDeps]:
    """The dependencies of runs, with their models connected until the context ends.

    `alone` says that only the agents change their workspaces. Tasks that read memory recall from `memories`. Raises
    InvalidRequest naming a malformed setting, ModelRejected for a malformed URL.
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
        yield RunDeps(
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
            sub_agents=sub_agent_limits(settings),
            live=live,
            remembering=remembering(memories, mask) if memories is not None else None,
        )


def chat_limits(settings: Settings) -> Limits:
    """The limits of what a person waits for: a chat's answer, a plan's proposal, an interactive agent."""
    return Limits(
        max_iterations=settings.chat_max_iterations,
        max_tool_calls=settings.chat_max_tool_calls,
        timeout_seconds=settings.chat_timeout_seconds,
    )


def sub_agent_limits(settings: Settings) -> SubAgentLimits:
    """The limits of the sub-agents of one run."""
    each = Limits(max_iterations=5, max_tool_calls=12, timeout_seconds=settings.sub_agent_seconds)
    return SubAgentLimits(depth=settings.sub_agent_depth, number=settings.sub_agents, each=each)


def profile_settings(settings: Settings) -> Mapping[str, Settings]:
    """The settings of each model profile. Raises InvalidRequest for an unknown field."""
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
    """The prices of models. Raises InvalidRequest for a malformed setting."""
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
        tenants: The endpoints of third-party agents that each tenant may use, among those of settings; None: all.
    """
    rules = CouncilRules(
        profiles=profile_settings(settings),
        endpoints=_endpoints(settings),
        harnesses=settings.harnesses,
        max_agents=settings.max_agents,
    )
    defaults = read_councils(settings.councils_file) if settings.councils_file else ()

    def places(tenant: str) -> EndpointRules:
        return EndpointRules(patterns=tenants(tenant).agent_endpoints if tenants is not None else ())

    return CouncilStore(store, defaults=defaults, rules=rules, places=None if tenants is None else places)


def council_models(settings: Settings) -> Mapping[str, str]:
    """The model of each profile, empty if settings do not name it; the empty profile is the default."""
    return {name: chosen.model for name, chosen in {"": settings, **profile_settings(settings)}.items()}


def outside_agents(settings: Settings, mask: SecretMask) -> AgentServiceClient:
    """The client of third-party agents. Raises InvalidRequest naming a malformed setting."""
    return AgentServiceClient(_endpoints(settings), mask=mask, token=settings.agent_service_token)


def _endpoints(settings: Settings) -> EndpointRules:
    return EndpointRules(patterns=listed(settings.agent_endpoints))


class NamedModel:
    """The configured model. Entered as a context, all runs share one client; otherwise each run opens its own.

    Args:
        model_name: `<provider>/<model>` or a model; empty: that of settings.
        model_params: The parameters in `KNOWN`; `api_base` also stands for `base_url`.
        litellm_params: Another name of `model_params`.
        settings: For all that the others leave out; None: from the environment.

    Raises:
        ValueError: An unknown parameter, one of a wrong type, or both names for them.
        InvalidRequest: Settings give a malformed price.
    """

    def __init__(
        self,
        model_name: str,
        model_params: Mapping[str, object] | None,
        litellm_params: Mapping[str, object] | None,
        settings: Settings | None,
    ) -> None:
        if model_params is not None and litellm_params is not None:
            raise ValueError("model_params and litellm_params are the same; give one of them")
        parameters = dict(model_params if model_params is not None else litellm_params or {})
        chosen = settings or Settings()
        url, key = _take(parameters, str, "base_url", "api_base"), _take(parameters, str, "api_key")
        timeout = _take(parameters, float, "timeout", "request_timeout")
        if timeout is not None and timeout <= 0:
            raise ValueError("the model parameter timeout must be above 0")
        other = other_model(chosen, model=model_name or "", url=url or "", api_key=key or "")
        self._settings = other.model_copy(update={"model_timeout_seconds": timeout or chosen.model_timeout_seconds})
        self.parallel_calls = chosen.parallel_calls
        limited = bool(chosen.model_max_in_flight or chosen.model_tokens_per_minute)
        servers = listed(self._settings.model_url)
        self.pooled = limited or len(servers) > 1 or bool(ModelServers(settings=self._settings).source)
        """Whether the model is a pool, which retries by itself."""
        self._retries = _take(parameters, int, "num_retries")
        if self._retries is not None and (self._retries < 0 or self.pooled):
            why = (
                "is below 0" if self._retries < 0 else "cannot be set with several servers or limits; the pool retries"
            )
            raise ValueError(f"the model parameter num_retries {why}")
        stop = parameters.pop("stop", None)
        stops = [stop] if isinstance(stop, str) else items(stop)
        if not all(isinstance(text, str) for text in stops) or (stop and not stops):
            raise ValueError(f"the model parameter stop is a {type(stop).__name__}, not a text or a list of texts")
        extra = _take(parameters, dict[str, object], "extra_body") or {}
        if reserved := _REQUEST_FIELDS & extra.keys():
            raise ValueError(f"extra_body may not hold {', '.join(sorted(reserved))}, which each request sets itself")
        self.sampling = Sampling(
            temperature=_take(parameters, float, "temperature"),
            top_p=_take(parameters, float, "top_p"),
            seed=_take(parameters, int, "seed"),
            max_tokens=_take(parameters, int, "max_tokens", "max_completion_tokens"),
            stop=tuple(map(str, stops)),
            extra=extra,
        )
        if parameters:
            raise ValueError(f"unknown model parameters: {', '.join(map(str, parameters))}; known are: {KNOWN}")
        self.mask = secret_mask(self._settings)
        self.name = self._settings.model
        self.prices = model_prices(self._settings)
        self._exit_stack = AsyncExitStack()
        self._model: ChatModel | None = None

    def waits(self, usual: Sequence[float]) -> tuple[float, ...]:
        """The seconds before each retry of a call: `num_retries` of them if it is set, else the usual ones."""
        if self.pooled or self._retries is None:
            return () if self.pooled else tuple(usual)
        first = usual[0] if usual else 0.0
        return tuple(min(first * 2**number, _LONGEST_WAIT) for number in range(self._retries))

    async def __aenter__(self) -> Self:
        self._model = await self._exit_stack.enter_async_context(self._make())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._model = None
        await self._exit_stack.aclose()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[ChatModel]:
        """The model, for one run."""
        if self._model is not None:
            yield self._model
            return
        async with self._make() as model:
            yield model

    def _make(self) -> AbstractAsyncContextManager[ChatModel]:
        """A client of the only server; a pool, if there are several servers or limits on calls."""
        chosen = self._settings
        if self.pooled:
            return open_model(chosen)
        (endpoint,) = model_endpoints(chosen)
        return model_client(endpoint, chosen)


def _take(parameters: dict[str, object], kind: type[T], *names: str) -> T | None:
    """Remove a parameter, under any of its names, and return it. Raises ValueError if it has another type."""
    values_given = [value for name in names if (value := parameters.pop(name, None)) is not None]
    if not values_given:
        return None
    value = float(values_given[0]) if kind is float and type(values_given[0]) is int else values_given[0]
    if not isinstance(value, get_origin(kind) or kind) or isinstance(value, bool):
        raise ValueError(f"the model parameter {names[0]} is a {type(value).__name__}, not a {kind.__name__}")
    return cast("T", value)
