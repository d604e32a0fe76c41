"""What a command is judged in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from swe_ai_fleet.tools.shell_risk.words import Word

Words = Sequence[Word]

_HARMLESS_VARIABLE = re.compile(
    r"(?!npm_config|.*_proxy)[a-z_][a-z0-9_]*|CI|DEBUG|LANG|LC_[A-Z]+|TZ|TERM|NO_COLOR|FORCE_COLOR|COLUMNS"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a command is judged in.

    `command` judges another command that it starts, `nested` a command line inside of it; `programs` collects what was
    found harmless; `moved` says that it may run in another directory than the clone's own.
    """

    command: Callable[[Words, Scope], Iterator[str]]
    nested: Callable[[str], tuple[str, ...]]
    programs: set[str] = field(default_factory=set[str])
    moved: bool = False


def harmless_variable(name: str) -> bool:
    """Whether no command takes orders from a variable of this name."""
    return bool(_HARMLESS_VARIABLE.fullmatch(name))
