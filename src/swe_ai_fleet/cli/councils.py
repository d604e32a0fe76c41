"""`fleet councils`: who solves the tasks of a role."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated

import typer

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.edge import carry_out
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.pairs import pairs
from swe_ai_fleet.cli.place import fleet_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import councils_table, members_table

Fleet = AbstractAsyncContextManager[FleetClient]

councils_app = typer.Typer(help="Who solves the tasks of each role.", no_args_is_help=True, rich_markup_mode=None)

_Role = Annotated[str, typer.Argument(help="DEV, QA, ARCHITECT, DEVOPS or DATA.")]
_AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")]
_Profile = Annotated[str, typer.Option(metavar="NAME", help="A model profile of the server. Default: its model.")]


@councils_app.command("list")
def list_councils(
    *,
    role: Annotated[str, typer.Option(help="Only this role's. Default: all.")] = "",
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Show councils and their agents."""
    carry_out(
        lambda screen, settings: show_councils(screen, fleet_client(settings, server=server, token=token), role),
        json=json,
    )


@councils_app.command()
def create(
    role: _Role,
    *,
    agents: Annotated[int, typer.Option(min=0, help="How many agents of the fleet's own. Default: 3.")] = 0,
    rounds: Annotated[int | None, typer.Option(min=0, help="Rounds of peer review. Default: 1.")] = None,
    profile: Annotated[
        str, typer.Option(metavar="NAME[,NAME]", help="Model profiles of the server; the agents take them in turn.")
    ] = "",
    kind: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="tools (own agents only), or external. Default: either.")
    ] = "",
    param: Annotated[
        list[str] | None, typer.Option(metavar="K=V", help="temperature=0.2, or instructions=… for every agent.")
    ] = None,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Create a role's council."""
    config = pb.CouncilConfig(
        deliberation_rounds=rounds or 0, enable_peer_review=rounds != 0, model_profile=profile, agent_type=kind
    )
    request = pb.CreateCouncilRequest(role=role, num_agents=agents, config=config)
    carry_out(
        lambda screen, settings: create_council(
            screen, fleet_client(settings, server=server, token=token), request, tuple(param or ())
        ),
        json=json,
    )


@councils_app.command()
def delete(role: _Role, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Delete a role's council; agents are made for each of its tasks from then on."""
    carry_out(
        lambda screen, settings: delete_council(screen, fleet_client(settings, server=server, token=token), role),
        json=json,
    )


@councils_app.command()
def register(
    role: _Role,
    agent: _AgentId,
    *,
    endpoint: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where an agent serves that you run. Default: the fleet runs it.")
    ] = "",
    profile: _Profile = "",
    max_tasks: Annotated[int, typer.Option(min=0, help="Tasks at the same time. Default: 1.")] = 0,
    language: Annotated[list[str] | None, typer.Option(help="A programming language that it knows.")] = None,
    metadata: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Something to say of it.")] = None,
    server: Server = "",
    token: Token = "",
    json: Json = False,
) -> None:
    """Let an agent join a role's council."""
    request = pb.RegisterAgentRequest(
        agent_id=agent,
        role=role,
        endpoint=endpoint,
        capabilities=pb.AgentCapabilities(
            model_profile=profile, max_concurrent_tasks=max_tasks, languages=tuple(language or ())
        ),
    )
    carry_out(
        lambda screen, settings: register_agent(
            screen, fleet_client(settings, server=server, token=token), request, tuple(metadata or ())
        ),
        json=json,
    )


@councils_app.command()
def unregister(role: _Role, agent: _AgentId, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Let an agent leave a role's council."""
    carry_out(
        lambda screen, settings: unregister_agent(
            screen, fleet_client(settings, server=server, token=token), role=role, agent=agent
        ),
        json=json,
    )


async def show_councils(screen: Screen, fleet: Fleet, role: str) -> Exit:
    """Every council with its agents."""
    async with fleet as client:
        request = pb.ListCouncilsRequest(role_filter=role, include_agents=True)
        found = (await client.councils(request)).councils
    if screen.json:
        screen.document({"councils": [_document(council) for council in found]})
    elif not found:
        screen.line("no councils; agents are made for each task")
    else:
        screen.out.print(councils_table(found))
        screen.out.print(members_table(found))
    return Exit.ACCEPTED


async def create_council(screen: Screen, fleet: Fleet, request: pb.CreateCouncilRequest, params: Sequence[str]) -> Exit:
    """Create a council; `params` are K=V."""
    request.config.custom_params.update(pairs(params, "--param"))
    async with fleet as client:
        answer = await client.create_council(request)
    if screen.json:
        screen.document({"council_id": answer.council_id, "agent_ids": list(answer.agent_ids)})
    else:
        agents = ", ".join(answer.agent_ids) or "no agents yet; register them"
        screen.line(f"{answer.council_id} is created: {agents}")
    return Exit.ACCEPTED


async def delete_council(screen: Screen, fleet: Fleet, role: str) -> Exit:
    """Delete a role's council."""
    async with fleet as client:
        answer = await client.delete_council(pb.DeleteCouncilRequest(role=role))
    if not answer.success:
        raise CommandFault(answer.message, exit_code=Exit.USAGE, field="role")
    if screen.json:
        screen.document({"message": answer.message, "agents_removed": answer.agents_removed})
    else:
        screen.line(answer.message)
    return Exit.ACCEPTED


async def register_agent(
    screen: Screen, fleet: Fleet, request: pb.RegisterAgentRequest, metadata: Sequence[str]
) -> Exit:
    """Let an agent join; `metadata` are K=V."""
    request.metadata.update(pairs(metadata, "--metadata"))
    async with fleet as client:
        answer = await client.register_agent(request)
    if screen.json:
        screen.document({"council_id": answer.council_id, "message": answer.message})
    else:
        screen.line(f"{answer.council_id}: {answer.message}")
    return Exit.ACCEPTED


async def unregister_agent(screen: Screen, fleet: Fleet, *, role: str, agent: str) -> Exit:
    """Let an agent leave."""
    async with fleet as client:
        answer = await client.unregister_agent(pb.UnregisterAgentRequest(agent_id=agent, role=role))
    if not answer.success:
        raise CommandFault(answer.message, exit_code=Exit.USAGE, field="agent_id")
    if screen.json:
        screen.document({"message": answer.message})
    else:
        screen.line(answer.message)
    return Exit.ACCEPTED


def _document(council: pb.CouncilInfo) -> dict[str, object]:
    return {
        "council_id": council.council_id,
        "role": council.role,
        "num_agents": council.num_agents,
        "status": council.status,
        "model": council.model,
        "agents": [
            {
                "agent_id": agent.agent_id,
                "endpoint": agent.endpoint,
                "model_profile": agent.capabilities.model_profile,
                "max_concurrent_tasks": agent.capabilities.max_concurrent_tasks,
                "supported_tasks": list(agent.capabilities.supported_tasks),
                "languages": list(agent.capabilities.languages),
                "metadata": dict(agent.metadata),
                "registered_at_ms": agent.registered_at_ms,
                "running_tasks": agent.running_tasks,
            }
            for agent in council.agents
        ],
    }
