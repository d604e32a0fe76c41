"""Settings as the variables that another process reads them from."""

from __future__ import annotations

import json
from collections.abc import Mapping

from swe_ai_fleet.settings import Settings


def variables_of(settings: Settings) -> Mapping[str, str]:
    """Every setting that is not its default, under its own name; a process started with them has the same settings.

    But for the keys that sign audit heads and let hosts in on NATS, which are the orchestrator's alone.
    """
    plain = settings.model_dump(mode="json", exclude_defaults=True, exclude={"audit_signing_key", "nats_issuer_file"})
    return {
        f"FLEET_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in plain.items()
        if value is not None
    } | {"FLEET_HOME": str(settings.home)}
