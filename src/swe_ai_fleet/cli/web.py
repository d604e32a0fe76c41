"""`fleet open`: where the page of a running fleet is."""

from __future__ import annotations

import asyncio
import html
from typing import Annotated

from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.options import option
from swe_ai_fleet.cli.place import home_fleet
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.runtime.private_files import write_private
from swe_ai_fleet.settings import Settings


def page_url(base: str, token: str) -> str:
    """The page's address; the fragment, which browsers send to nobody, lets whoever opens it in."""
    here = base.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    return f"{here}/#token={token}"


async def open_page(
    screen: Screen, settings: Settings, *, browser: Annotated[bool, option("Open it in a browser too.")] = False
) -> Exit:
    place = home_fleet(settings)
    if not place.http:
        raise CommandFault(
            "this fleet has no page", exit_code=Exit.UNAVAILABLE, hint="start it without FLEET_HTTP_LISTEN=off"
        )
    url = page_url(place.http, place.token)
    screen.result({"page": url}, url)
    if browser and not await asyncio.to_thread(_browse, url, settings):
        raise CommandFault(
            "no browser could be started", exit_code=Exit.UNAVAILABLE, hint="open the address that stands above"
        )
    return Exit.ACCEPTED


def _browse(url: str, settings: Settings) -> bool:
    """Open it by way of a private file: arguments of processes can be read by every user of a machine."""
    import webbrowser

    way = settings.home / "open.html"
    target = html.escape(url, quote=True)
    write_private(
        way, f'<!doctype html><meta http-equiv="refresh" content="0;url={target}"><a href="{target}">fleet</a>'
    )
    return webbrowser.open(way.resolve().as_uri())
