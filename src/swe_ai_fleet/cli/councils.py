"""`fleet councils`: who solves the tasks of a role."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import FleetClient
from swe_ai_fleet.cli.edge import carry_out_with
from swe_ai_fleet.cli.exits import CommandFault, Exit
from swe_ai_fleet.cli.messages import document
from swe_ai_fleet.cli.options import Json, Server, Token
from swe_ai_fleet.cli.pairs import pairs
from swe_ai_fleet.cli.place import fleet_client
from swe_ai_fleet.cli.screen import Screen
from swe_ai_fleet.cli.tables import plain_table

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
    carry_out_with(
        fleet_client, lambda screen, client: show_councils(screen, client, role), server=server, token=token, json=json
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

    async def work(screen: Screen, client: FleetClient) -> Exit:
        config = pb.CouncilConfig(
            deliberation_rounds=rounds or 0,
            enable_peer_review=rounds != 0,
            model_profile=profile,
            agent_type=kind,
            custom_params=pairs(param or (), "--param"),
        )
        request = pb.CreateCouncilRequest(role=role, num_agents=agents, config=config)
        answer = await client.create_council(request)
        made = ", ".join(answer.agent_ids) or "no agents yet; register them"
        screen.result(
            {"council_id": answer.council_id, "agent_ids": list(answer.agent_ids)},
            f"{answer.council_id} is created: {made}",
        )
        return Exit.ACCEPTED

    carry_out_with(fleet_client, work, server=server, token=token, json=json)


@councils_app.command()
def delete(role: _Role, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Delete a role's council; agents are made for each of its tasks from then on."""

    async def work(screen: Screen, client: FleetClient) -> Exit:
        answer = await client.delete_council(pb.DeleteCouncilRequest(role=role))
        if not answer.success:
            raise CommandFault(answer.message, exit_code=Exit.USAGE, field="role")
        screen.result({"message": answer.message, "agents_removed": answer.agents_removed}, answer.message)
        return Exit.ACCEPTED

    carry_out_with(fleet_client, work, server=server, token=token, json=json)


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

    async def work(screen: Screen, client: FleetClient) -> Exit:
        request = pb.RegisterAgentRequest(
            agent_id=agent,
            role=role,
            endpoint=endpoint,
            capabilities=pb.AgentCapabilities(
                model_profile=profile, max_concurrent_tasks=max_tasks, languages=language
            ),
            metadata=pairs(metadata or (), "--metadata"),
        )
        answer = await client.register_agent(request)
        screen.result(
            {"council_id": answer.council_id, "message": answer.message}, f"{answer.council_id}: {answer.message}"
        )
        return Exit.ACCEPTED

    carry_out_with(fleet_client, work, server=server, token=token, json=json)


@councils_app.command()
def unregister(role: _Role, agent: _AgentId, *, server: Server = "", token: Token = "", json: Json = False) -> None:
    """Let an agent leave a role's council."""

    async def work(screen: Screen, client: FleetClient) -> Exit:
        answer = await client.unregister_agent(pb.UnregisterAgentRequest(agent_id=agent, role=role))
        if not answer.success:
            raise CommandFault(answer.message, exit_code=Exit.USAGE, field="agent_id")
        screen.result({"message": answer.message}, answer.message)
        return Exit.ACCEPTED

    carry_out_with(fleet_client, work, server=server, token=token, json=json)


async def show_councils(screen: Screen, client: FleetClient, role: str) -> Exit:
    """Every council with its agents."""
    found = (await client.councils(pb.ListCouncilsRequest(role_filter=role, include_agents=True))).councils
    if screen.json:
        screen.document({"councils": [document(council) for council in found]})
    elif not found:
        screen.note("no councils; agents are made for each task")
    else:
        councils = [(one.council_id, one.role, str(one.num_agents), one.status, one.model) for one in found]
        screen.out.print(plain_table(("council", "role", "agents", "status", "model"), councils))
        members = [_member(council, agent) for council in found for agent in council.agents]
        screen.out.print(plain_table(("agent", "role", "run by", "profile", "tasks", "languages"), members))
    return Exit.ACCEPTED


def _member(council: pb.CouncilInfo, agent: pb.AgentInfo) -> tuple[str, ...]:
    can = agent.capabilities
    tasks = f"{agent.running_tasks} of {can.max_concurrent_tasks}" if agent.endpoint else str(agent.running_tasks)
    runs = agent.endpoint or "the fleet"
    return agent.agent_id, council.role, runs, can.model_profile, tasks, ", ".join(can.languages)
