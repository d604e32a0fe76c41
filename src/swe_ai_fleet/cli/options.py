"""Options that many commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from swe_ai_fleet.domain.task import UncommittedChanges

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Server = Annotated[
    str, typer.Option("--server", envvar="FLEET_SERVER", metavar="HOST:PORT", help="A fleet other than this home's.")
]
Token = Annotated[str, typer.Option(envvar="FLEET_TOKEN", hidden=True)]
ContextServer = Annotated[
    str,
    typer.Option(
        "--server", envvar="FLEET_CONTEXT_URL", metavar="HOST:PORT", help="A context service other than this home's."
    ),
]
ContextToken = Annotated[str, typer.Option("--token", envvar="FLEET_CONTEXT_TOKEN", hidden=True)]
Execution = Annotated[str, typer.Argument(metavar="ID", help="An execution id, or a task id for its newest execution.")]
Ref = Annotated[str, typer.Option(help="Branch, tag or commit to start from. Default: what is checked out.")]
Rounds = Annotated[int | None, typer.Option(min=0, help="Rounds of peer review. Default: the council's, or 1.")]
Role = Annotated[str, typer.Option(help="DEV, QA, ARCHITECT, DEVOPS or DATA.")]
Check = Annotated[
    list[str] | None, typer.Option(metavar="CMD", help="A command a candidate must pass. Default: the tests.")
]
Setup = Annotated[
    list[str] | None,
    typer.Option(metavar="CMD", help="A command that prepares the environment, after what its files ask for."),
]
Path_ = Annotated[list[str] | None, typer.Option("--path", metavar="DIR", help="A directory put first on PATH.")]
TestCommand = Annotated[str, typer.Option(metavar="CMD", help="What runs the tests. Default: what the files say.")]
NoDetect = Annotated[
    bool, typer.Option("--no-detect", help="Install nothing by the repository's files; --setup commands still run.")
]
Env = Annotated[list[str] | None, typer.Option(metavar="K=V", help="A variable of the environment.")]
RequireVerified = Annotated[
    bool, typer.Option("--require-verified", help="Only what a test or check verifies may win.")
]
Network = Annotated[
    list[str] | None, typer.Option(metavar="HOST", help="A host that tools and checks may reach. Default: none.")
]
Mode = Annotated[str, typer.Option(help="How agents plan: simple, agentic or hybrid. Default: the server's.")]
Local = Annotated[
    bool, typer.Option("--local", help="Without a running fleet, start one in this process and stop it again.")
]
IncludeDirty = Annotated[
    bool | None,
    typer.Option("--include-dirty/--ignore-dirty", help="Start from uncommitted changes too, or without them."),
]
Approve = Annotated[
    str, typer.Option(metavar="WHAT", help="What people approve first: plan, risky or every. Default: none.")
]
Timeout = Annotated[int, typer.Option(min=0, metavar="SECONDS", help="For the agents' work. Default: 1800.")]
Profiles = Annotated[
    str, typer.Option(metavar="NAME[,NAME]", help="Model profiles of the server; the agents take them in turn.")
]
MaxCost = Annotated[float, typer.Option(min=0, help="Most an agent may spend, by the profiles' prices. Default: none.")]
Hints = Annotated[bool, typer.Option("--hints", help="Give agents what is in hints_text.")]
RepoRoot = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Has clones of owner/name: owner/name, owner__name or name.")
]
RepoTemplate = Annotated[
    str, typer.Option(metavar="URL", help="Where owner/name is cloned from, with {repo} in its place.")
]
Stagger = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Between the beginnings of two.")]

UNCOMMITTED = {None: UncommittedChanges.REFUSE, True: UncommittedChanges.INCLUDE, False: UncommittedChanges.IGNORE}
"""What `IncludeDirty` means."""
