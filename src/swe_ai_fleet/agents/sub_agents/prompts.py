"""The first messages of sub-agents and of plan sessions, from templates."""

from __future__ import annotations

from collections.abc import Sequence

from swe_ai_fleet.agents.templates import rendered
from swe_ai_fleet.domain.message import Message, SystemMessage, UserMessage


def opening(
    template: str, sections: Sequence[tuple[str, str]], *, warning: str = "", **facts: object
) -> tuple[Message, ...]:
    """The system message of a template and a user message of titled sections, empty ones left out.

    Equal facts give system messages of equal bytes: what differs between requests stands in the user message.

    Args:
        template: Its name, without directory and ending.
        sections: Title and text each; the texts are data.
        warning: How untrusted text is marked in the sections.
        facts: What the template asks for.
    """
    shown = [(title, text.strip()) for title, text in sections if text.strip()]
    system, user = rendered(template, **facts), rendered("sub_request", sections=shown, warning=warning)
    return SystemMessage(content=system), UserMessage(content=user)
