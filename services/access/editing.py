"""The access file changed by a program, its other lines and comments left as they are."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from datetime import datetime

from services.access.access_file import parse_access
from services.access.tables import AccessFile
from swe_ai_fleet.domain.access import AccessRole
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, NotFound

_TABLE = "[[tokens]]"


def with_token(
    text: str, *, name: str, tenant: str, roles: Iterable[AccessRole], sha256: str, expires: datetime | None
) -> str:
    """The file's text with one token more, at its end.

    Raises:
        AlreadyExists: There is a token of that name.
        InvalidRequest: The file is broken, or the token would break it.
    """
    if any(entry.name == name for entry in parse_access(text).tokens):
        raise AlreadyExists(f"there is a token {name!r} already", field="name", hint="revoke it, or take another name")
    lines = [
        _TABLE,
        f"name = {_quoted(name)}",
        f"tenant = {_quoted(tenant)}",
        f"roles = [{', '.join(_quoted(role) for role in roles)}]",
        f'sha256 = "{sha256}"',
    ]
    if expires is not None:
        lines.append(f"expires = {expires:%Y-%m-%dT%H:%M:%SZ}")
    changed = "\n".join([text.rstrip("\n"), "", *lines, ""])
    parse_access(changed)
    return changed


def without_token(text: str, name: str) -> str:
    """The file's text without a token's table.

    Raises:
        NotFound: There is no such token.
        InvalidRequest: The file is broken, or the token is written in a way that only people can take out.
    """
    before = parse_access(text)
    if all(entry.name != name for entry in before.tokens):
        raise NotFound(f"there is no token {name!r}", field="name", hint="`fleet access token list` shows them")
    lines = text.splitlines(keepends=True)
    found = next((span for span in _tables(lines) if _named("".join(lines[slice(*span)])) == name), None)
    changed = "" if found is None else "".join((*lines[: found[0]], *lines[found[1] :]))
    if found is None or not _only_lacks(before, changed, name):
        raise InvalidRequest(f"the token {name!r} is not written as a table {_TABLE}", hint="take it out by hand")
    return changed


def _tables(lines: list[str]) -> list[tuple[int, int]]:
    """Where tables of tokens begin and end, as far as lines tell."""
    heads = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    return [
        (head, _end(lines, head, following))
        for head, following in zip(heads, [*heads[1:], len(lines)], strict=True)
        if lines[head].partition("#")[0].strip() == _TABLE
    ]


def _end(lines: list[str], head: int, following: int) -> int:
    """Comments right above the next table are that table's."""
    while following < len(lines) and following > head + 1 and lines[following - 1].startswith("#"):
        following -= 1
    return following


def _named(text: str) -> str:
    try:
        return str(tomllib.loads(text)["tokens"][0].get("name", ""))
    except (tomllib.TOMLDecodeError, LookupError):
        return ""


def _only_lacks(before: AccessFile, changed: str, name: str) -> bool:
    try:
        after = parse_access(changed)
    except InvalidRequest:
        return False
    left = tuple(entry for entry in before.tokens if entry.name != name)
    return after == before.model_copy(update={"tokens": left})


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
