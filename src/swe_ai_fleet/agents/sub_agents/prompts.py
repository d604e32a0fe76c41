"""The first messages of sub-agents and of plan sessions, from templates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined

from swe_ai_fleet.domain.message import Message, SystemMessage, UserMessage


def opening(template: str, sections: Sequence[tuple[str, str]], **facts: object) -> tuple[Message, ...]:
    """The system message of a template and a user message of titled sections, empty ones left out.

    Args:
        template: Its name, without directory and ending.
        sections: Title and text each; the texts are data.
        facts: What the template asks for.
    """
    system = _templates().get_template(f"{template}.md.j2").render(**facts)
    shown = [(title, text.strip()) for title, text in sections if text.strip()]
    user = _templates().get_template("sub_request.md.j2").render(sections=shown)
    return SystemMessage(content=system.strip()), UserMessage(content=user.strip())


@cache
def _templates() -> Templates:
    return Templates(
        loader=PackageLoader("swe_ai_fleet.agents", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - prompts are plain text, not HTML
    )
