"""The access file (TOML): tenants, and how people, programs and services prove that they belong to one.

Reading is strict: an unknown key is refused. A program that adds or removes a token leaves all other lines and comments
as they are. `docs/access.md` describes the format.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from services.access.tables import AccessFile, JwtTable, TokenTable
from swe_ai_fleet.domain.access import AccessRole
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, NotFound
from swe_ai_fleet.domain.json_values import parsed

MAX_BYTES = 4 * 1024 * 1024
_NOT_IN_FILES = ("str", "datetime", "date", "int", "float", "[key]")
"""Pydantic's names for the alternatives of a type."""
_TABLE = "[[tokens]]"


def parse_access(text: str) -> AccessFile:
    """Parse the text of an access file.

    Raises:
        InvalidRequest: It is not one; `field` is the table and the key, such as `tokens[2].roles`.
    """
    try:
        document = parsed(tomllib.loads, text)
    except ValueError as error:
        raise InvalidRequest(f"the access file is not TOML: {error}", field="access_file") from None
    try:
        read = AccessFile.model_validate(document)
    except ValidationError as error:
        raise _fault_of(error) from None
    _check_names(read)
    return read


def read_access(path: Path) -> AccessFile:
    """Read and parse an access file. Blocks.

    Raises:
        InvalidRequest: As `parse_access`, or it cannot be read.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(
            f"the access file {path} cannot be read: {error.strerror}", field="access_file", hint="see docs/access.md"
        ) from None
    if len(data) > MAX_BYTES:
        raise InvalidRequest(f"the access file has more than {MAX_BYTES} bytes", field="access_file")
    try:
        return parse_access(data.decode())
    except UnicodeDecodeError:
        raise InvalidRequest("the access file is not UTF-8", field="access_file") from None


def _check_names(read: AccessFile) -> None:
    """Check that entries belong to existing tenants, and are distinct."""
    for table, entries in (("tokens", read.tokens), ("jwt", read.jwt), ("certificates", read.certificates)):
        for index, entry in enumerate(entries):
            named = (entry.tenant, *entry.tenants.values()) if isinstance(entry, JwtTable) else (entry.tenant,)
            for tenant in named:
                if tenant is not None and tenant not in read.tenants:
                    raise InvalidRequest(
                        f"the access file: {table}[{index}].tenant: there is no tenant {tenant!r}",
                        field=f"{table}[{index}].tenant",
                        hint=f"add [tenants.{tenant}]",
                    )
    _check_unique("tokens", "name", [(entry.name,) for entry in read.tokens])
    _check_unique("tokens", "sha256", [entry.digests for entry in read.tokens])
    for key in ("common_name", "san_uri", "san_dns"):
        _check_unique("certificates", key, [(str(getattr(entry, key)),) for entry in read.certificates])


def _check_unique(table: str, key: str, entries: list[tuple[str, ...]]) -> None:
    seen: set[str] = set()
    for index, values in enumerate(entries):
        for value in values:
            if value in seen:
                field = f"{table}[{index}].{key}"
                raise InvalidRequest(f"the access file: {field}: {value[:80]!r} already exists", field=field)
            if value:
                seen.add(value)


def _fault_of(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ""
    for part in first["loc"]:
        if isinstance(part, int):
            place += f"[{part}]"
        elif part not in _NOT_IN_FILES and not part.startswith(("function-", "constrained-", "tuple[")):
            place += f".{part}" if place else part
    more = error.error_count() - 1
    also = f"; {more} more" if more else ""
    return InvalidRequest(
        f"the access file: {place or 'it'}: {first['msg'].removeprefix('Value error, ')}{also}",
        field=place or "access_file",
        hint="docs/access.md",
    )


def with_token(
    text: str, *, name: str, tenant: str, roles: Iterable[AccessRole], sha256: str, expires: datetime | None
) -> str:
    """The file's text with another token at its end.

    Raises:
        AlreadyExists: There is a token of that name.
        InvalidRequest: The file is broken, or the token would break it.
    """
    if any(entry.name == name for entry in parse_access(text).tokens):
        raise AlreadyExists(
            f"a token named {name!r} already exists",
            field="name",
            hint="`fleet access token rotate` gives its holder a new one; another person needs another name",
        )
    lines = [
        _TABLE,
        f"name = {_quoted(name)}",
        f"tenant = {_quoted(tenant)}",
        f"roles = [{', '.join(_quoted(role) for role in roles)}]",
        f'sha256 = "{sha256}"',
    ]
    if expires is not None:
        lines.append(f"expires = {_time(expires)}")
    changed = "\n".join([text.rstrip("\n"), "", *lines, ""])
    parse_access(changed)
    return changed


def with_rotated_token(
    text: str, name: str, *, sha256: str, expires: datetime | None, previous_expires: datetime | None
) -> str:
    """The file's text with a new token for a name; the old one is valid until `previous_expires` (None: not at all).

    Raises:
        NotFound: There is no such token.
        InvalidRequest: The file is broken, or the token is written in a way that only people can change.
    """
    old = _token(text, name)
    lines = [f'sha256 = "{sha256}"']
    if expires:
        lines.append(f"expires = {_time(expires)}")
    if previous_expires:
        lines += [f'previous_sha256 = "{old.sha256}"', f"previous_expires = {_time(previous_expires)}"]

    def rotated(line: str) -> list[str]:
        key = line.partition("=")[0].strip()
        added = [f"{line}\n" for line in lines] if key == "sha256" else []
        return added if key in _ROTATING else [line]

    new = tomllib.loads("\n".join(lines))
    fields = old.model_dump(exclude=_ROTATING)
    return _changed(text, name, rotated, (TokenTable.model_validate({**fields, "roles": [*old.roles], **new}),))


_ROTATING = {"sha256", "expires", "previous_sha256", "previous_expires"}


def without_token(text: str, name: str) -> str:
    """The file's text without a token's table.

    Raises:
        NotFound: There is no such token.
        InvalidRequest: The file is broken, or the token is written in a way that only people can remove.
    """
    _token(text, name)
    return _changed(text, name, lambda _: [], ())


def _token(text: str, name: str) -> TokenTable:
    token = next((entry for entry in parse_access(text).tokens if entry.name == name), None)
    if token is None:
        raise NotFound(f"there is no token {name!r}", field="name", hint="`fleet access token list` shows them")
    return token


def _changed(text: str, name: str, line: Callable[[str], list[str]], expected: tuple[TokenTable, ...]) -> str:
    """The text with each line of a token's table changed; checks that no other part of the file has changed."""
    lines = text.splitlines(keepends=True)
    span = next((span for span in _tables(lines) if _named("".join(lines[slice(*span)])) == name), (0, 0))
    inside = [new for old in lines[slice(*span)] for new in line(old)]
    changed = "".join((*lines[: span[0]], *inside, *lines[span[1] :]))
    before = parse_access(text)
    tokens = [token for entry in before.tokens for token in (expected if entry.name == name else (entry,))]
    try:
        as_expected = parse_access(changed) == before.model_copy(update={"tokens": tuple(tokens)})
    except InvalidRequest:
        as_expected = False
    if not as_expected:
        raise InvalidRequest(f"the token {name!r} is not a table {_TABLE} of its own", hint="change it by hand")
    return changed


def _tables(lines: list[str]) -> Iterator[tuple[int, int]]:
    """The ranges of lines of token tables, as (first line, line after the last)."""
    heads = [number for number, line in enumerate(lines) if line.lstrip().startswith("[")]
    for head, following in zip(heads, [*heads[1:], len(lines)], strict=True):
        # Comments right above the next table belong to that table.
        end = following
        while head + 1 < end < len(lines) and lines[end - 1].startswith("#"):
            end -= 1
        if lines[head].partition("#")[0].strip() == _TABLE:
            yield head, end


def _named(text: str) -> str:
    try:
        return str(tomllib.loads(text)["tokens"][0].get("name", ""))
    except (tomllib.TOMLDecodeError, LookupError):
        return ""


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
