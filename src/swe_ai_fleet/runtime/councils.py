"""From settings to councils and to the agents in them that others run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from swe_ai_fleet.adapters.agent_service import AgentServiceClient
from swe_ai_fleet.domain.endpoint import EndpointRules
from swe_ai_fleet.orchestrator.council_book import CouncilBook
from swe_ai_fleet.orchestrator.council_file import read_councils
from swe_ai_fleet.orchestrator.council_rules import CouncilRules
from swe_ai_fleet.orchestrator.quotas import Rules
from swe_ai_fleet.ports import KeyValue, SecretMask
from swe_ai_fleet.runtime.equipment import profile_settings
from swe_ai_fleet.settings import Settings, listed

COUNCILS_BUCKET = "councils"


def council_book(settings: Settings, store: KeyValue, tenants: Rules | None = None) -> CouncilBook:
    """The councils in a store, and those of `councils_file`. Raises InvalidRequest naming the setting or the key.

    Args:
        settings: Which profiles and endpoints there are.
        store: Where councils are kept.
        tenants: Where each tenant may have agents that others run, within what settings allow; None: anywhere there.
    """
    rules = CouncilRules(
        profiles=profile_settings(settings), endpoints=_endpoints(settings), max_agents=settings.max_agents
    )
    defaults = read_councils(settings.councils_file) if settings.councils_file else ()
    return CouncilBook(store, defaults=defaults, rules=rules, places=None if tenants is None else _places(tenants))


def council_models(settings: Settings) -> Mapping[str, str]:
    """The model behind each profile, as far as settings name it; the empty name is the default's."""
    return {name: chosen.model for name, chosen in {"": settings, **profile_settings(settings)}.items()}


def outside_agents(settings: Settings, mask: SecretMask) -> AgentServiceClient:
    """The way to agents that others run. Raises InvalidRequest naming a malformed setting."""
    return AgentServiceClient(_endpoints(settings), mask=mask, token=settings.agent_service_token)


def _places(tenants: Rules) -> Callable[[str], EndpointRules]:
    return lambda tenant: EndpointRules(patterns=tenants(tenant).agent_endpoints)


def _endpoints(settings: Settings) -> EndpointRules:
    return EndpointRules(patterns=listed(settings.agent_endpoints))
