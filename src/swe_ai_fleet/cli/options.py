"""Options that many commands take."""

from __future__ import annotations

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Server = Annotated[
    str, typer.Option("--server", envvar="FLEET_SERVER", metavar="HOST:PORT", help="A fleet other than this home's.")
]
Token = Annotated[str, typer.Option(envvar="FLEET_TOKEN", hidden=True)]
