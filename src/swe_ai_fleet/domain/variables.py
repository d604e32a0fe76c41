"""Variables that callers give to what runs in a sandbox."""

from __future__ import annotations

import re
from collections.abc import Mapping

from swe_ai_fleet.domain.errors import InvalidRequest

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What makes a loader or an interpreter run something before the program that it was started for.
_STARTERS = frozenset(
    {
        "BASH_ENV", "ENV", "GCONV_PATH", "GLIBC_TUNABLES", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "NODE_OPTIONS",
        "PERL5DB", "PERL5OPT", "PYTHONHOME", "PYTHONSTARTUP", "RUBYOPT", "_JAVA_OPTIONS",
    }
)  # fmt: skip
_LOADER = "LD_"
_LIBRARIES = "LD_LIBRARY_PATH"


def check_variables(variables: Mapping[str, str], *, field: str) -> None:
    """Refuse names that are none, and those of loaders and of interpreters' start-up. Raises InvalidRequest.

    `field` is the caller's name of the mapping.
    """
    for name, value in variables.items():
        where = f"{field}[{name[:64]}]"
        if not _NAME.fullmatch(name):
            raise InvalidRequest(
                f"{name[:64]!r} is not the name of a variable", field=where, hint="letters, digits and _"
            )
        if "\0" in value:
            raise InvalidRequest("the value holds a NUL byte", field=where, hint="no process can be given it")
        if name in _STARTERS or (name.startswith(_LOADER) and name != _LIBRARIES):
            raise InvalidRequest(
                f"{name} makes programs run something else before they start",
                field=where,
                hint=f"set it in the command that needs it: {name}=... COMMAND",
            )
