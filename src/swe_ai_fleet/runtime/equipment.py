"""From settings to what the runs of one process share."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import fields

from swe_ai_fleet.agents.equipment import Equipment
from swe_ai_fleet.agents.planning import ModeRules
from swe_ai_fleet.agents.sub_agents import SubAgentLimits
from swe_ai_fleet.codec import from_plain
from swe_ai_fleet.domain.budget import Limits, Prices
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.task import PlanningMode
from swe_ai_fleet.ports import ChatModel, LiveText, Memories
from swe_ai_fleet.runtime.admission import model_admission
from swe_ai_fleet.runtime.context_client import remembering
from swe_ai_fleet.runtime.factories import open_model, other_model
from swe_ai_fleet.runtime.tool_services import secret_mask, tool_access
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.tools.result_cache import SharedResults

_PROFILE_FIELDS = ("model", "url", "api_key")

_PRICED = frozenset(field.name for field in fields(Prices))


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
        for name, chosen in {"": settings, **profile_settings(settings)}.items():
            models[name] = await stack.enter_async_context(open_model(chosen, admission=admission))
        yield Equipment(
            models=models,
            access=tool_access(settings),
            mask=mask,
            results=SharedResults(max_bytes=settings.result_cache_mb << 20) if settings.result_cache_mb else None,
            alone=alone,
            prices=prices,
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
    found: dict[str, Settings] = {}
    for name, profile in settings.model_profiles.items():
        if unknown := profile.keys() - set(_PROFILE_FIELDS):
            raise InvalidRequest(
                f"the model profile {name!r} has the unknown field {sorted(unknown)[0]!r}",
                field="model_profiles",
                hint=f"one of {', '.join(_PROFILE_FIELDS)}",
            )
        if not name or "," in name:
            raise InvalidRequest(f"{name!r} cannot name a model profile", field="model_profiles")
        found[name] = other_model(settings, **profile)
    return found


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
