"""`fleet memory`: what agents remember."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from fleet.context.v1 import context_pb2 as pb
from swe_ai_fleet.cli.calls import Calls
from swe_ai_fleet.cli.context_client import context_client
from swe_ai_fleet.cli.edge import carry_out_with
from swe_ai_fleet.cli.exits import Exit
from swe_ai_fleet.cli.messages import document, enum_name
from swe_ai_fleet.cli.options import ContextServer, ContextToken, Json
from swe_ai_fleet.cli.pairs import pairs
from swe_ai_fleet.cli.screen import Screen

memory_app = typer.Typer(
    help="What agents remember from one run to the next.", no_args_is_help=True, rich_markup_mode=None
)

_Namespaces = Annotated[
    list[str] | None,
    typer.Option("--namespace", "-n", metavar="NAME", help="fleet, agent:<id> or repository:<name>; may be repeated."),
]
_Kinds = Annotated[list[str] | None, typer.Option("--kind", help="fact, interaction or outcome; may be repeated.")]
_Metadata = Annotated[list[str] | None, typer.Option("--metadata", metavar="K=V", help="What it is about.")]


@memory_app.command()
def add(
    text: Annotated[str, typer.Argument(help="What to remember.")],
    *,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAME", help="fleet, agent:<id> or repository:<name>.")
    ] = "fleet",
    metadata: _Metadata = None,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Remember a fact."""

    async def work(screen: Screen, context: Calls) -> Exit:
        request = pb.AddFactRequest(namespace=namespace, text=text, metadata=pairs(metadata or (), "--metadata"))
        answer = await context.one("AddFact", request, pb.AddFactResponse)
        screen.result(
            document(answer), f"{'known already' if answer.already_existed else 'remembered'}: {answer.memory_id}"
        )
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


@memory_app.command()
def recall(
    query: Annotated[str, typer.Argument(help="What to look for, in words.")],
    *,
    namespace: _Namespaces = None,
    kind: _Kinds = None,
    metadata: _Metadata = None,
    limit: Annotated[int, typer.Option(min=1, max=100, help="At most so many.")] = 10,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Show what fits a question, best first: how well, where it belongs, where it comes from, its id."""

    async def work(screen: Screen, context: Calls) -> Exit:
        request = pb.RecallRequest(
            query=query,
            namespaces=namespace,
            kinds=_kinds(kind),
            metadata=pairs(metadata or (), "--metadata"),
            limit=limit,
        )
        answer = await context.one("Recall", request, pb.RecallResponse)
        if screen.json:
            screen.document(document(answer))
            return Exit.ACCEPTED
        if not answer.recollections:
            screen.note("nothing that fits is remembered")
        for found in answer.recollections:
            memory = found.memory
            screen.line(f"{found.score:.2f}  " + memory.text.replace("\n", "\n      "))
            screen.line(f"      {memory.namespace}, from {memory.source or 'nobody'}, {memory.memory_id}", style="dim")
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


@memory_app.command()
def clear(
    memory_ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Only these.")] = None,
    *,
    namespace: _Namespaces = None,
    kind: _Kinds = None,
    metadata: _Metadata = None,
    everywhere: Annotated[bool, typer.Option("--everywhere", help="In all namespaces.")] = False,
    server: ContextServer = "",
    token: ContextToken = "",
    json: Json = False,
) -> None:
    """Forget memories for good."""

    async def work(screen: Screen, context: Calls) -> Exit:
        request = pb.ClearMemoryRequest(
            namespaces=namespace,
            kinds=_kinds(kind),
            metadata=pairs(metadata or (), "--metadata"),
            memory_ids=memory_ids,
            everywhere=everywhere,
        )
        answer = await context.one("ClearMemory", request, pb.ClearMemoryResponse)
        screen.result(document(answer), f"forgotten: {answer.removed}")
        return Exit.ACCEPTED

    carry_out_with(context_client, work, server=server, token=token, json=json)


def _kinds(words: Sequence[str] | None) -> list[str]:
    return [enum_name(pb.MemoryKind, word, field="kind") for word in words or ()]
