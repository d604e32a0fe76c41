"""`fleet access`: who may come in, in the access file of this machine."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from swe_ai_fleet.cli.edge import run_command
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.options import Json, argument, option
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import print_rows
from swe_ai_fleet.domain.access import AccessRole
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.runtime.private_files import write_private
from swe_ai_fleet.settings import Settings

if TYPE_CHECKING:
    from services.access.tables import AccessFile, TokenTable

_Name = Annotated[str, argument("Whose it is: 1 to 64 letters, digits and ._@:-.", metavar="NAME")]
_File = Annotated[Path | None, option("The access file. Default: FLEET_ACCESS_FILE.", words="--file", metavar="FILE")]
_Expires = Annotated[str, option("After so many days, such as 90d, or on a day, 2027-01-31; or never.", metavar="WHEN")]
_SOON = timedelta(days=14)
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


async def add(
    screen: Screen,
    settings: Settings,
    name: _Name,
    *,
    tenant: Annotated[str, option("What it is for.", metavar="TENANT")] = DEFAULT_TENANT,
    role: Annotated[
        tuple[str, ...], option("viewer, submitter, approver, admin or service; may be repeated. Default: submitter.")
    ] = (),
    expires: _Expires = "90d",
    file: _File = None,
) -> Exit:
    from services.access.access_file import with_token
    from services.access.tokens import new_token, token_digest

    path, roles, until = _path(file, settings), _roles(role or ("submitter",)), _until(expires)
    text = await asyncio.to_thread(path.read_text) if path.exists() else f"[tenants.{tenant}]\n"
    token = new_token()
    changed = with_token(text, name=name, tenant=tenant, roles=roles, sha256=token_digest(token), expires=until)
    await asyncio.to_thread(_write, path, changed)
    if screen.json:
        document = {"name": name, "tenant": tenant, "roles": roles, "token": token}
        screen.document(document | {"expires": until.isoformat() if until else None})
    else:
        screen.note(f"{name} is {' and '.join(roles)} of {tenant}, {_ending(until)}; the token is not shown again:")
        screen.line(token)
    return Exit.ACCEPTED


async def rotate(
    screen: Screen,
    settings: Settings,
    name: _Name,
    *,
    overlap: Annotated[
        str, option("How long the token before it is taken as well: 30m, 1h, 2d; 0 ends it at once.", metavar="TIME")
    ] = "1h",
    expires: _Expires = "90d",
    file: _File = None,
) -> Exit:
    from services.access.access_file import with_rotated_token
    from services.access.tokens import new_token, token_digest

    path, until, now = _path(file, settings), _until(expires), datetime.now(UTC)
    kept_until = now + _overlap(overlap)
    old = next((entry for entry in (await _read(path)).tokens if entry.name == name), None)
    if old is not None:
        if kept_until > now and (earlier := _end(old.previous_expires)) and earlier > now:
            raise CommandFault(
                f"{name} was rotated before; the token of that time is valid {_ending(earlier)}",
                exit_code=Exit.USAGE,
                field="overlap",
                hint="wait for that, or `--overlap 0`, which ends all its tokens but the new one",
            )
        kept_until = min(kept_until, _end(old.expires) or kept_until)
    previous, token = (kept_until if kept_until > now else None), new_token()
    text = await asyncio.to_thread(path.read_text)
    changed = with_rotated_token(text, name, sha256=token_digest(token), expires=until, previous_expires=previous)
    await asyncio.to_thread(_write, path, changed)
    if screen.json:
        document = {"name": name, "token": token, "expires": until.isoformat() if until else None}
        screen.document(document | {"previous_expires": previous.isoformat() if previous else None})
    else:
        before = f"the one before is valid {_ending(previous)}" if previous else "the one before is no longer valid"
        screen.note(f"{name} has a new token, {_ending(until)}; {before}. The new one is not shown again:")
        screen.line(token)
    return Exit.ACCEPTED


async def list_tokens(screen: Screen, settings: Settings, *, file: _File = None) -> Exit:
    read = await _read(_path(file, settings))
    now = datetime.now(UTC)
    rows: list[tuple[str, ...]] = []
    for entry in read.tokens:
        until = _end(entry.expires)
        ending = "expired" if until and until <= now else _ending(until)
        if (before := _end(entry.previous_expires)) and before > now:
            ending += f"; the one before {_ending(before)}"
        rows.append((entry.name, entry.tenant, ", ".join(sorted(entry.roles)), ending))
    if screen.json:
        screen.document({"tokens": [_token_document(entry, now) for entry in read.tokens]})
    else:
        print_rows(screen, ("name", "tenant", "roles", "holds"), rows, "no tokens")
    return Exit.ACCEPTED


async def revoke(screen: Screen, settings: Settings, name: _Name, *, file: _File = None) -> Exit:
    from services.access.access_file import without_token

    path = _path(file, settings)
    await _read(path)
    changed = without_token(await asyncio.to_thread(path.read_text), name)
    await asyncio.to_thread(_write, path, changed)
    screen.result({"revoked": name}, f"{name} is revoked")
    return Exit.ACCEPTED


def check(*, file: _File = None, json: Json = False) -> None:
    async def work(screen: Screen, settings: Settings) -> Exit:
        path = _path(file, settings)
        read = await _read(path)
        keys = await _issuers(path, read)
        remarks = [*_remarks(read), *(f"jwt[{index}]: {fault}" for index, fault in keys.items() if fault)]
        if screen.json:
            totals = {"tenants": sorted(read.tenants), "tokens": len(read.tokens), "jwt": len(read.jwt)}
            screen.document(totals | {"certificates": len(read.certificates), "remarks": remarks})
        else:
            counts = ", ".join(
                counted(len(some), noun)
                for some, noun in ((read.tokens, "token"), (read.jwt, "issuer"), (read.certificates, "certificate"))
            )
            screen.line(f"{path}: {counts}, tenants: {', '.join(sorted(read.tenants))}")
            for remark in remarks:
                screen.line(f"  {remark}", style="yellow")
        return Exit.UNAVAILABLE if any(keys.values()) else Exit.ACCEPTED

    run_command(work, json=json, log_level="critical")


async def _issuers(path: Path, read: AccessFile) -> dict[int, str]:
    """Of each issuer what is wrong with its keys; empty where they are there."""
    from services.access.tokens import KeySet, place_of
    from swe_ai_fleet.domain.errors import Unavailable

    faults: dict[int, str] = {}
    for index, table in enumerate(read.jwt):
        place, ca = place_of(path.parent, table.jwks, table.ca)
        try:
            await KeySet(place, ca=ca).find(None)
        except Unavailable:
            faults[index] = f"no keys are to be had from {place}"
        else:
            faults[index] = ""
    return faults


def _token_document(entry: TokenTable, now: datetime) -> dict[str, object]:
    until, previous = _end(entry.expires), _end(entry.previous_expires)
    return {
        "name": entry.name,
        "tenant": entry.tenant,
        "roles": sorted(entry.roles),
        "expires": until.isoformat() if until else None,
        "expired": until is not None and until <= now,
        "previous_expires": previous.isoformat() if previous and previous > now else None,
    }


def _remarks(read: AccessFile) -> list[str]:
    now = datetime.now(UTC)
    remarks_found: list[str] = []
    for entry in read.tokens:
        until = _end(entry.expires)
        if until is None:
            remarks_found.append(f"the token {entry.name!r} never expires")
        elif until <= now:
            remarks_found.append(f"the token {entry.name!r} has expired")
        elif until <= now + _SOON:
            remarks_found.append(f"the token {entry.name!r} expires on {until:%Y-%m-%d}")
    # An issuer without a tenant of its own has tokens of any.
    peopled = {entry_with_tenant.tenant for entry_with_tenant in (*read.tokens, *read.jwt, *read.certificates)}
    alone = sorted(read.tenants) if None not in peopled else ()
    return remarks_found + [f"nobody belongs to the tenant {tenant!r}" for tenant in alone if tenant not in peopled]


async def _read(path: Path) -> AccessFile:
    from services.access.access_file import read_access

    return await asyncio.to_thread(read_access, path)


def _path(file: Path | None, settings: Settings) -> Path:
    path = file or settings.access_file
    if path is None:
        raise CommandFault(
            "no access file is named", exit_code=Exit.USAGE, field="access_file", hint="--file, or FLEET_ACCESS_FILE"
        )
    return path


def _roles(names: Sequence[str]) -> list[AccessRole]:
    try:
        return [AccessRole(name.lower()) for name in names]
    except ValueError as error:
        raise CommandFault(
            str(error), exit_code=Exit.USAGE, field="role", hint=", ".join(role.value for role in AccessRole)
        ) from None


def _until(text: str) -> datetime | None:
    if text == "never":
        return None
    now = datetime.now(UTC)
    if days := re.fullmatch(r"([0-9]{1,5})d", text):
        return now + timedelta(days=int(days[1]))
    try:
        until = datetime.fromisoformat(text)
    except ValueError:
        raise CommandFault(
            f"{text!r} is not a date", exit_code=Exit.USAGE, field="expires", hint="such as 90d, 2027-01-31 or never"
        ) from None
    until = until.astimezone(UTC) if until.tzinfo else until.replace(tzinfo=UTC)
    if until <= now:
        raise CommandFault(f"{text} has passed", exit_code=Exit.USAGE, field="expires")
    return until


def _overlap(text: str) -> timedelta:
    if (parts := re.fullmatch(r"([0-9]{1,3})([mhd])", text)) or text == "0":
        return timedelta(**{_UNITS[parts[2]]: int(parts[1])}) if parts else timedelta()
    raise CommandFault(f"{text!r} is no time", exit_code=Exit.USAGE, field="overlap", hint="such as 30m, 1h, 2d or 0")


def _end(expires: datetime | date | None) -> datetime | None:
    from services.access.tokens import end_of

    seconds = end_of(expires)
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _ending(until: datetime | None) -> str:
    return f"until {until:%Y-%m-%d %H:%M} UTC" if until else "for ever"


def _write(path: Path, text: str) -> None:
    path = path.resolve()
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
    write_private(path, text)
    path.chmod(mode)
