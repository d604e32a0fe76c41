"""The texts that models are sent, from the templates in `prompts/`."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined


def rendered(template: str, **values: object) -> str:
    """A template of that name (without its endings) with its values; one that it asks for and does not get is a bug."""
    return _environment().get_template(f"{template}.md.j2").render(**values).strip()


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("swe_ai_fleet.agents", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - prompts are plain text, not HTML
    )
