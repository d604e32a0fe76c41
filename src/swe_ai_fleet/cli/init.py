"""`fleet init`: a secured installation in a directory, looked over, or its keys made anew."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.fleet_views import overlap_seconds
from swe_ai_fleet.cli.options import argument, option
from swe_ai_fleet.cli.screen import Screen


async def init(
    screen: Screen,
    directory: Annotated[Path, argument("Where; made where it is not there yet.", metavar="DIR")],
    *,
    tenants: Annotated[
        str, option("Tenants that get a NATS account and an administrator's token.", metavar="A,B")
    ] = "",
    hosts: Annotated[str, option("Names and addresses of the servers, beside this machine's own.", metavar="H,I")] = "",
    nats_listen: Annotated[
        str, option("Where nats-server is to listen on this machine; the first time.", metavar="HOST:PORT")
    ] = "127.0.0.1:4222",
    kubernetes: Annotated[bool, option("Also write the secrets as manifests, for `kubectl apply -k`.")] = False,
    rotate: Annotated[
        tuple[str, ...],
        option(
            "Make new ones of: certificates, nats, issuer, ray, services or audit; may be repeated.", metavar="WHAT"
        ),
    ] = (),
    overlap: Annotated[
        str,
        option("For how long what `nats` and `services` rotate away is valid as well; or 0.", metavar="SPAN"),
    ] = "1h",
    check: Annotated[bool, option("Change nothing; exit code 1 where something is wrong or runs out.")] = False,
) -> Exit:
    if check:
        return await _checked(screen, directory)
    from swe_ai_fleet.runtime.installation.installing import install
    from swe_ai_fleet.settings import listed

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
            hint="name a directory that you may write; what is there already stays, and the same command goes on",
        ) from None
    if screen.json:
        screen.document({"written": [str(path) for path in done.files_written], "tokens": done.tokens})
        return Exit.ACCEPTED
    for path in done.files_written:
        screen.line(f"wrote {path}")
    if not done.files_written:
        screen.line("everything is there already")
    for tenant, token in done.tokens.items():
        screen.line(f"token of an administrator of {tenant}, shown this once: {token}", style="bold")
    if (manifests := directory / "kubernetes").exists():
        screen.note(f"next: `kubectl apply -k {manifests}`, once its namespaces are there")
        if rotate:
            screen.note(f"then `kubectl apply -k` of your site, which has the component {manifests / 'roll'}")
        return Exit.ACCEPTED
    screen.note(f"next: nats-server -c {directory / 'nats' / 'nats.conf'}, then")
    screen.note(f"`fleet --config {directory / 'fleet.toml'} up`")
    if rotate:
        screen.note(
            "NATS takes what is new after `nats-server --signal reload` (issuer: a restart), the fleet's servers their"
        )
        screen.note("certificates at once; whoever shows a new token of Ray or of a service takes a restart")
        if "nats" in rotate and seconds:
            screen.note(f"former nkeys end with `fleet init {directory}` and a reload, once the overlap is over")
    return Exit.ACCEPTED


async def _checked(screen: Screen, directory: Path) -> Exit:
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
