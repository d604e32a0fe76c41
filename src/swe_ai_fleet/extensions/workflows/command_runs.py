"""Workflows from the command line: files read, checked and drawn; runs submitted, watched and shown."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from rich.table import Table

from fleet.orchestrator.v1 import orchestrator_pb2 as orchestrator
from fleet.workflow.v1 import workflow_pb2 as pb
from swe_ai_fleet.cli import options
from swe_ai_fleet.cli.client import SUBMIT_SECONDS, Fleet, FleetClient
from swe_ai_fleet.cli.executions import exit_of, gist, json_fields, node_row, nodes_table, print_outputs
from swe_ai_fleet.cli.live import WatchedProgress, follow, view
from swe_ai_fleet.cli.messages import enum_word
from swe_ai_fleet.cli.options import argument
from swe_ai_fleet.cli.screen import CommandFault, Exit, Screen, interrupts
from swe_ai_fleet.domain.errors import NotFound
from swe_ai_fleet.domain.event import ExecutionStatus
from swe_ai_fleet.domain.workflow import AgentMode, NodeType, Workflow
from swe_ai_fleet.extensions.workflows.commands import WorkflowName, WorkflowOrder
from swe_ai_fleet.extensions.workflows.documents import MAX_BYTES, InvalidWorkflow, WorkflowFault
from swe_ai_fleet.extensions.workflows.reading import SUFFIXES, WorkflowCatalog, mermaid, read_catalog, read_workflow
from swe_ai_fleet.extensions.workflows.tasks import nodes_of
from swe_ai_fleet.settings import Settings, listed
from swe_ai_fleet.tools.catalogue import operations
from swe_ai_fleet.watching.text import one_line


def is_file(text: str) -> bool:
    """Whether the text names a file rather than a workflow that a fleet knows."""
    return text.endswith(SUFFIXES) or "/" in text


def file_text(path: Path) -> str:
    """A workflow file's text; a file too large for the reader is cut past its limit. Raises CommandFault."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1).decode("utf-8", "replace")
    except OSError as error:
        raise CommandFault(f"{path} cannot be read: {error.strerror}") from None


async def validate(
    screen: Screen, settings: Settings, paths: Annotated[list[Path], argument("Workflow files.", metavar="FILE...")]
) -> Exit:
    """Print the faults of files, one per line, and the points that only a fleet can check; exit code 2 for faults."""
    catalog = await _catalog(settings)
    faults, unchecked = list[WorkflowFault](), list[WorkflowFault]()
    for path in paths:
        try:
            workflow = await asyncio.to_thread(_read, path, catalog)
            unchecked.extend(replace(fault, file=str(path)) for fault in _checks_of_the_fleet(workflow))
        except InvalidWorkflow as error:
            faults.extend(error.faults)
    if screen.json:
        listed, left = ([asdict(fault) for fault in some] for some in (faults, unchecked))
        screen.document({"faults": listed, "unchecked": left, "files": len(paths)})
    else:
        for fault in faults:
            screen.line(one_line(str(fault), 2000))
        if not faults:
            screen.note(f"{len(paths)} file{'' if len(paths) == 1 else 's'}: valid", style="green")
        for pending in unchecked:
            screen.note(f"not checked here: {one_line(str(pending), 2000)}")
    return Exit.USAGE if faults else Exit.ACCEPTED


def _checks_of_the_fleet(workflow: Workflow) -> list[WorkflowFault]:
    """The points of a workflow that only a fleet can check, as possible faults."""
    faults: list[WorkflowFault] = []
    for node in nodes_of(workflow):
        config = node.agent_config
        tools = ([node.tool] if node.type is NodeType.TOOL else []) + [*(config.tools if config.use_tools else ())]
        wanted = [f"a tool {name!r}" for name in tools if name not in operations()]
        wanted += [f"a model profile {config.model!r}"] if config.model else []
        wanted += ["a context service, for use_memory"] if config.use_memory else []
        wanted += ["a repository of the run, to deliver on"] if config.mode is AgentMode.ORCHESTRATE else []
        faults += [
            WorkflowFault(message=f"whether there is {expectation}", node=node.id, line=node.line)
            for expectation in wanted
        ]
    return sorted(faults, key=lambda fault: fault.line)


async def graph(screen: Screen, settings: Settings, workflow: WorkflowName, *, output: options.Output = None) -> Exit:
    """Print a workflow's diagram, or write it to a file."""
    found = await find_workflow(settings, workflow)
    picture = mermaid(found)
    if output is not None:
        await asyncio.to_thread(output.write_text, picture, encoding="utf-8")
        screen.note(f"written to {output}")
        return Exit.ACCEPTED
    if screen.json:
        screen.document({"name": found.name, "format": "mermaid", "picture": picture})
        return Exit.ACCEPTED
    screen.content(f"{picture.rstrip()}\n".encode())
    return Exit.ACCEPTED


async def find_workflow(settings: Settings, name: str) -> Workflow:
    """The workflow in a file, or of that name in the local catalog. Raises CommandFault, InvalidWorkflow."""
    catalog = await _catalog(settings)
    if is_file(name):
        return await asyncio.to_thread(_read, Path(name), catalog)
    try:
        return catalog.get(name).workflow
    except NotFound as error:
        raise CommandFault(error.message, hint=error.hint) from None


def _read(path: Path, catalog: WorkflowCatalog) -> Workflow:
    # Servers and plug-ins may add tools, which only a fleet can list.
    return read_workflow(file_text(path), file=str(path), workflows=catalog.by_name, tools=None)


async def _catalog(settings: Settings) -> WorkflowCatalog:
    directories = tuple(Path(name) for name in listed(settings.workflows))
    return await asyncio.to_thread(read_catalog, directories)


async def run(screen: Screen, fleet: Fleet, order: WorkflowOrder) -> Exit:
    """Run a workflow to its end on a fleet. Ctrl-C cancels the run; a second one leaves without waiting."""
    with interrupts() as signals:
        async with fleet as client:
            request = await order.request(client)
            accepted = await client.calls.unary("RunWorkflow", request, pb.RunWorkflowResponse, seconds=SUBMIT_SECONDS)
            existed = " (the same run was submitted before)" if accepted.already_existed else ""
            screen.note(f"task {accepted.task_id}: execution {accepted.execution_id}{existed}")
            if order.detach:
                document = {"execution_id": accepted.execution_id, "task_id": accepted.task_id}
                screen.result(document, accepted.execution_id)
                return Exit.ACCEPTED
            progress = NodeProgress()
            with view(screen, progress) as show_event:
                following = await signals.race(follow(client, accepted.execution_id, progress, show_event))
                if not following.done():
                    screen.note("cancelling the run; Ctrl-C again leaves without waiting", style="yellow")
                    try:
                        await client.cancel(accepted.execution_id, "Ctrl-C")
                        await following
                    finally:
                        following.cancel()
                following.result()
            return await _show(screen, client, accepted.execution_id)


async def show(screen: Screen, client: FleetClient, name: options.Execution) -> Exit:
    """Print the current state of a run. The exit code is the command's, not the run's, as with `fleet show`."""
    await _show(screen, client, await client.find(name))
    return Exit.ACCEPTED


class NodeProgress(WatchedProgress):
    """The events of a run received so far, shown node by node."""

    def table(self) -> Table:
        nodes = self.state.nodes.values() if self.state is not None else ()
        return nodes_table(node_row(node) for node in nodes)


async def _show(screen: Screen, client: FleetClient, execution_id: str) -> Exit:
    run = (await client.calls.unary("GetRun", pb.GetRunRequest(execution_id=execution_id), pb.GetRunResponse)).run
    outputs = run.outputs_json
    if run.HasField("output_artifact"):
        outputs = (await client.artifact(execution_id, run.output_artifact.digest)).decode("utf-8", "replace")
    status = ExecutionStatus(enum_word(orchestrator.DeliberationStatus, run.status))
    ended = exit_of(status)
    if screen.json:
        screen.document(_document(run, outputs))
        return ended
    screen.line(f"workflow {run.workflow}, task {run.task_id}", style="bold")
    screen.line(f"execution {run.execution_id}")
    rows = [
        (
            node.node_id,
            enum_word(pb.NodeStatus, node.status),
            str(node.attempt),
            f"{node.duration_ms / 1000:.1f}" if node.duration_ms else "",
            f"{node.usage.prompt_tokens + node.usage.completion_tokens:,}" if node.usage.prompt_tokens else "",
            node.error_message or gist(node.output_json or node.inputs_json),
        )
        for node in run.nodes
    ]
    screen.out.print(nodes_table(rows))
    for node in run.nodes:
        if node.status == pb.NODE_STATUS_PAUSED:
            screen.line(f"{node.node_id} is paused; it would be given {node.inputs_json}")
    print_outputs(screen, outputs)
    ending = str(status) + (f": {one_line(run.error_message, 1000)}" if run.error_message else "")
    tokens = run.usage.prompt_tokens + run.usage.completion_tokens
    cost = f" ({run.duration_ms / 1000:.1f} s, {tokens:,} tokens)" if status.terminal else ""
    screen.line(ending + cost, style="bold green" if status is ExecutionStatus.COMPLETED else "bold yellow")
    return ended


def _document(run: pb.WorkflowRun, outputs: str) -> dict[str, object]:
    return {
        "execution_id": run.execution_id,
        "task_id": run.task_id,
        "workflow": run.workflow,
        "status": enum_word(orchestrator.DeliberationStatus, run.status),
        "inputs": json_fields(run.inputs_json),
        "outputs": json_fields(outputs),
        "nodes": [
            {
                "node_id": node.node_id,
                "status": enum_word(pb.NodeStatus, node.status),
                "attempt": node.attempt,
                "failures": node.failures,
                "inputs": json.loads(node.inputs_json) if node.inputs_json else None,
                "output": json.loads(node.output_json) if node.output_json else None,
                "error": node.error_message,
                "execution_id": node.execution_id,
                "label": node.label,
                "duration_ms": node.duration_ms,
            }
            for node in run.nodes
        ],
        "error": run.error_message,
        "tokens": run.usage.prompt_tokens + run.usage.completion_tokens,
        "duration_ms": run.duration_ms,
    }
