"""Which model servers settings name; what asks them is made in `factories`, which takes a second to load."""

from __future__ import annotations

import re

from swe_ai_fleet.adapters.model_providers import ModelEndpoint, provider_endpoint
from swe_ai_fleet.settings import Settings, listed


def model_endpoints(settings: Settings) -> tuple[ModelEndpoint, ...]:
    """The model servers that settings name, each with the key that is its own."""
    return tuple(
        provider_endpoint(settings.model, url, settings.model_api_key, provider_keys=settings.provider_keys)
        for url in listed(settings.model_url) or ("",)
    )


def shown_url(endpoint: ModelEndpoint) -> str:
    """Where a server is, without what may be a secret: user, password and query."""
    return re.sub(r"//[^/]*@", "//", endpoint.base_url).partition("?")[0]
