"""`fleet init`: a secured installation in a directory; `fleet access`: the tokens and issuers of the access file."""

from __future__ import annotations

import asyncio
import re
import stat
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from swe_ai_fleet.cli.edge import run_command
from swe_ai_fleet.cli.fleet_views import overlap_seconds
from swe_ai_fleet.cli.options import Json, argument, option
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.domain.access import AccessRole
from swe_ai_fleet.domain.task import DEFAULT_TENANT
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.runtime.private_files import write_private
from swe_ai_fleet.settings import Settings, listed

if TYPE_CHECKING:
    from services.access.tables import AccessFile, TokenTable

_Name = Annotated[str, argument("The token's owner: 1 to 64 letters, digits and ._@:-.", metavar="NAME")]
_File = Annotated[Path | None, option("The access file. Default: FLEET_ACCESS_FILE.", words="--file", metavar="FILE")]
_Expires = Annotated[str, option("Expiry: a number of days, 90d, a date, 2027-01-31, or never.", metavar="WHEN")]
_SOON = timedelta(days=14)


async def add(
    screen: Screen,
    settings: Settings,
    name: _Name,
    *,
    tenant: Annotated[str, option("The token's tenant.", metavar="TENANT")] = DEFAULT_TENANT,
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
    await _save(screen, path, changed)
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
        str, option("How long the previous token stays valid: 30m, 1h, 2d; 0 ends it at once.", metavar="TIME")
    ] = "1h",
    expires: _Expires = "90d",
    file: _File = None,
) -> Exit:
    from services.access.access_file import with_rotated_token
    from services.access.tokens import new_token, token_digest

    path, until, now = _path(file, settings), _until(expires), datetime.now(UTC)
    old_until = now + timedelta(seconds=overlap_seconds(overlap))
    old = next((entry for entry in (await _read(path)).tokens if entry.name == name), None)
    if old is not None:
        if old_until > now and (earlier := _end(old.previous_expires)) and earlier > now:
            raise CommandFault(
                f"{name} was rotated before; the token of that time is valid {_ending(earlier)}",
                field="overlap",
                hint="wait for that, or `--overlap 0`, which ends all its tokens but the new one",
            )
        old_until = min(old_until, _end(old.expires) or old_until)
    previous, token = (old_until if old_until > now else None), new_token()
    text = await asyncio.to_thread(path.read_text)
    changed = with_rotated_token(text, name, sha256=token_digest(token), expires=until, previous_expires=previous)
    await _save(screen, path, changed)
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
        screen.table(("name", "tenant", "roles", "holds"), rows, "no tokens")
    return Exit.ACCEPTED


async def revoke(screen: Screen, settings: Settings, name: _Name, *, file: _File = None) -> Exit:
    from services.access.access_file import without_token

    path = _path(file, settings)
    await _read(path)
    changed = without_token(await asyncio.to_thread(path.read_text), name)
    await _save(screen, path, changed)
    screen.result({"revoked": name}, f"{name} is revoked")
    return Exit.ACCEPTED


def check(*, file: _File = None, json: Json = False) -> None:
    async def work(screen: Screen, settings: Settings) -> Exit:
        path = _path(file, settings)
        read = await _read(path)
        keys = await _issuer_faults(path, read)
        remarks = [*_remarks(read), *(f"jwt[{index}]: {fault}" for index, fault in keys.items())]
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
        return Exit.UNAVAILABLE if keys else Exit.ACCEPTED

    run_command(work, json=json, log_level="critical")


async def _issuer_faults(path: Path, read: AccessFile) -> dict[int, str]:
    """The faults of issuers' keys, by the issuers' numbers."""
    from services.access.tokens import KeySet, place_of
    from swe_ai_fleet.domain.errors import Unavailable

    faults: dict[int, str] = {}
    for index, table in enumerate(read.jwt):
        source, ca = place_of(path.parent, table.jwks, table.ca)
        try:
            await KeySet(source, ca=ca).find(None)
        except Unavailable:
            faults[index] = f"the keys at {source} cannot be read"
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
    remarks: list[str] = []
    for entry in read.tokens:
        until = _end(entry.expires)
        if until is None:
            remarks.append(f"the token {entry.name!r} never expires")
        elif until <= now:
            remarks.append(f"the token {entry.name!r} has expired")
        elif until <= now + _SOON:
            remarks.append(f"the token {entry.name!r} expires on {until:%Y-%m-%d}")
    # An issuer without a tenant has tokens of any tenant.
    with_members = {entry.tenant for entry in (*read.tokens, *read.jwt, *read.certificates)}
    tenants = sorted(read.tenants) if None not in with_members else ()
    return remarks + [f"nobody belongs to the tenant {tenant!r}" for tenant in tenants if tenant not in with_members]


async def _read(path: Path) -> AccessFile:
    from services.access.access_file import read_access

    return await asyncio.to_thread(read_access, path)


def _path(file: Path | None, settings: Settings) -> Path:
    path = file or settings.access_file
    if path is None:
        raise CommandFault("no access file is named", field="access_file", hint="--file, or FLEET_ACCESS_FILE")
    return path


def _roles(names: Sequence[str]) -> list[AccessRole]:
    try:
        return [AccessRole(name.lower()) for name in names]
    except ValueError as error:
        raise CommandFault(str(error), field="role", hint=", ".join(role.value for role in AccessRole)) from None


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
            f"{text!r} is not a date", field="expires", hint="such as 90d, 2027-01-31 or never"
        ) from None
    until = until.astimezone(UTC) if until.tzinfo else until.replace(tzinfo=UTC)
    if until <= now:
        raise CommandFault(f"{text} has passed", field="expires")
    return until


def _end(expires: datetime | date | None) -> datetime | None:
    from services.access.tokens import end_of

    seconds = end_of(expires)
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _ending(until: datetime | None) -> str:
    return f"until {until:%Y-%m-%d %H:%M} UTC" if until else "for ever"


async def _save(screen: Screen, path: Path, text: str) -> None:
    await asyncio.to_thread(_write, path, text)
    if (manifests := path.parent / "kubernetes").is_dir():
        screen.note(f"to update the cluster: `fleet init {path.parent}`, then `kubectl apply -k {manifests}`")


def _write(path: Path, text: str) -> None:
    path = path.resolve()
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
    write_private(path, text)
    path.chmod(mode)


async def init(
    screen: Screen,
    directory: Annotated[Path, argument("The directory; created if missing.", metavar="DIR")],
    *,
    tenants: Annotated[
        str, option("Tenants that get a NATS account and an administrator's token.", metavar="A,B")
    ] = "",
    hosts: Annotated[str, option("Names and addresses of the servers, beside this machine's own.", metavar="H,I")] = "",
    nats_listen: Annotated[
        str, option("Address of nats-server on this machine, at the first run.", metavar="HOST:PORT")
    ] = "127.0.0.1:4222",
    kubernetes: Annotated[bool, option("Also write the secrets as manifests, for `kubectl apply -k`.")] = False,
    rotate: Annotated[
        tuple[str, ...],
        option("Replace certificates, nats, issuer, ray, services or audit; may be repeated.", metavar="WHAT"),
    ] = (),
    overlap: Annotated[
        str,
        option("How long replaced secrets of `nats` and `services` stay valid; or 0.", metavar="SPAN"),
    ] = "1h",
    check: Annotated[bool, option("Change nothing; exit code 1 if something is wrong or expires soon.")] = False,
) -> Exit:
    if check:
        return await _check_installation(screen, directory)
    from swe_ai_fleet.runtime.installation.installing import install

    try:
        done = await asyncio.to_thread(
            install,
            directory,
            tenants=listed(tenants),
            hosts=listed(hosts),
            nats_listen=nats_listen,
            kubernetes=kubernetes,
            rotate=rotate,
            overlap=(seconds := overlap_seconds(overlap)),
        )
    except OSError as fault:
        raise CommandFault(
            f"cannot write {fault.filename or directory}: {fault.strerror}",
            field="DIR",
            hint="name a writable directory; existing files stay, and the same command continues",
        ) from None
    if screen.json:
        screen.document({"written": [str(path) for path in done.files_written], "tokens": done.tokens})
        return Exit.ACCEPTED
    for path in done.files_written:
        screen.line(f"wrote {path}")
    if not done.files_written:
        screen.line("everything exists already")
    for tenant, token in done.tokens.items():
        screen.line(f"token of an administrator of {tenant}, shown only once: {token}", style="bold")
    if (manifests := directory / "kubernetes").exists():
        screen.note(f"next: `kubectl apply -k {manifests}`, once its namespaces exist")
        if rotate:
            screen.note(f"then `kubectl apply -k` of your site, which has the component {manifests / 'roll'}")
        return Exit.ACCEPTED
    screen.note(f"next: nats-server -c {directory / 'nats' / 'nats.conf'}, then")
    screen.note(f"`fleet --config {directory / 'fleet.toml'} up`")
    if rotate:
        screen.note(
            "NATS reads new secrets after `nats-server --signal reload` (issuer: a restart), the fleet's servers their"
        )
        screen.note("certificates at once; processes that use a new token of Ray or of a service need a restart")
        if "nats" in rotate and seconds:
            screen.note(f"former nkeys end with `fleet init {directory}` and a reload, once the overlap is over")
    return Exit.ACCEPTED


async def _check_installation(screen: Screen, directory: Path) -> Exit:
    from swe_ai_fleet.runtime.installation.layout import check

    findings = await asyncio.to_thread(check, directory)
    if screen.json:
        screen.document(
            {
                "faults": [
                    {"file": str(finding.file), "fault": finding.fault, "mend": finding.mend} for finding in findings
                ]
            }
        )
    else:
        for finding in findings:
            screen.line(f"{finding.file} {finding.fault}; fix: {finding.mend}")
        if not findings:
            screen.line("nothing is wrong")
    return Exit.NOT_ACCEPTED if findings else Exit.ACCEPTED
