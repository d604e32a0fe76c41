"""What the tools that each role is shown cost in every prompt, in tokens (estimated: four characters each)."""

from __future__ import annotations

from swe_ai_fleet.domain.task import Role
from swe_ai_fleet.tools.catalogue import operations, prompt_tokens, shown_first


def profile_figures() -> dict[str, float]:
    """Tokens by role, `request_tools` and `final_answer` aside, and of the whole catalogue."""
    known = {name: definition.spec for name, definition in operations().items()}
    shown = {role: [known[name] for name in shown_first(role) if name in known] for role in Role}
    figures: dict[str, float] = {f"tools_{role.lower()}_tokens": prompt_tokens(specs) for role, specs in shown.items()}
    return figures | {"tools_all_tokens": prompt_tokens(tuple(known.values()))}
