"""The access file: tenants and how people, programs and services prove that they belong to one.

TOML, read strictly: what it does not know, it does not pass over. `docs/access.md` describes it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from services.access.tables import AccessFile, JwtTable
from swe_ai_fleet.domain.errors import InvalidRequest

MAX_BYTES = 4 * 1024 * 1024
_NOT_IN_FILES = ("str", "datetime", "date", "int", "float", "[key]")
"""What pydantic calls the alternatives of a type."""


def parse_access(text: str) -> AccessFile:
    """What the text of an access file says.

    Raises:
        InvalidRequest: It is not one; `field` is the table and the key, such as `tokens[2].roles`.
    """
    try:
        told = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the access file is not TOML: {error}", field="access_file") from None
    try:
        read = AccessFile.model_validate(told)
    except ValidationError as error:
        raise _told(error) from None
    _check_names(read)
    return read


def read_access(path: Path) -> AccessFile:
    """What an access file says. Blocks.

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
    """That entries belong to tenants there are, and can be told apart."""
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
    for key in ("name", "sha256"):
        _check_unique("tokens", key, [str(getattr(entry, key)) for entry in read.tokens])
    for key in ("common_name", "san_uri", "san_dns"):
        _check_unique("certificates", key, [str(getattr(entry, key)) for entry in read.certificates])


def _check_unique(table: str, key: str, found: list[str]) -> None:
    seen: set[str] = set()
    for index, value in enumerate(found):
        if value in seen:
            place = f"{table}[{index}].{key}"
            raise InvalidRequest(f"the access file: {place}: {value[:80]!r} is there already", field=place)
        seen.update({value} if value else ())


def _told(error: ValidationError) -> InvalidRequest:
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
