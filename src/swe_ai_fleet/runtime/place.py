"""Where a fleet runs: its address, and the token it asks for."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from swe_ai_fleet.runtime.channels import ChannelTls, channel_tls, read_channel_tls
from swe_ai_fleet.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a fleet answers and the token it asks for; `pid` is 0 where only an address was given.

    `context` is the address of its context service, which takes the same token; empty: it has none of its own. `http`
    is the base URL of its gateway; empty: it has none, or only an address was given. `tls` says how it is called; None:
    without TLS.
    """

    address: str
    token: str = field(default="", repr=False)
    pid: int = 0
    context: str = ""
    http: str = ""
    tls: ChannelTls | None = None


def running_place(home: Path) -> Place | None:
    """The fleet that runs on a home, by the card it keeps there; None without one, or when its process is gone."""
    return _read_card(home / "fleet.json")


def find_context(settings: Settings, *, server: str = "", token: str = "") -> Place | None:
    """The context service named by an address or the settings, else that of the fleet that runs on the home.

    Else the one that runs there by itself. A home's token is sent to the address it was made for and to no other.
    """
    fleet = running_place(settings.home)
    here = (
        []
        if fleet is None or not fleet.context
        else [Place(address=fleet.context, token=fleet.token, pid=fleet.pid, tls=fleet.tls)]
    )
    if (alone := _read_card(settings.home / "context.json")) is not None:
        here.append(alone)
    address = server or settings.context_url
    if not address:
        return here[0] if here else None
    if not token and address == settings.context_url:
        token = settings.context_token
    known = next((one for one in here if one.address == address), None)
    return Place(
        address=address,
        token=token or (known.token if known is not None else ""),
        tls=known.tls if known is not None else channel_tls(settings, address),
    )


def _read_card(path: Path) -> Place | None:
    try:
        card: object = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(card, dict):
        return None
    entries = cast("dict[str, object]", card)
    address, token, pid = entries.get("address"), entries.get("token"), entries.get("pid")
    if not isinstance(address, str) or not isinstance(token, str) or not isinstance(pid, int) or not _alive(pid):
        return None
    context, http = entries.get("context"), entries.get("http")
    return Place(
        address=address,
        token=token,
        pid=pid,
        context=context if isinstance(context, str) else "",
        http=http if isinstance(http, str) else "",
        tls=read_channel_tls(entries.get("tls")),
    )


def find_place(settings: Settings, *, server: str, token: str) -> Place | None:
    """The fleet named by an address, else the one that runs on the home.

    The home's token is sent to the address it was made for and to no other.
    """
    running = running_place(settings.home)
    if not server:
        return running
    if running is not None and running.address == server:
        return Place(address=server, token=token or running.token, tls=running.tls)
    return Place(address=server, token=token, tls=channel_tls(settings, server))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
