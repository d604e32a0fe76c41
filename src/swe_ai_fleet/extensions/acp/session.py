"""One session with a harness: its prompts, its requests, and its reports of its own tool calls."""

from __future__ import annotations

import asyncio
import shlex
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from swe_ai_fleet.agents.external_agent import HARNESS, MAX_SUMMARY_CHARS, HandedIn, Handout
from swe_ai_fleet.agents.toolbox import CallVerdict
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import PlanMade
from swe_ai_fleet.domain.json_values import mapping, mappings, string, strings
from swe_ai_fleet.domain.tool import Outcome, PolicyDecision, ToolResult
from swe_ai_fleet.domain.trajectory import Plan, PlanStep, StopReason
from swe_ai_fleet.extensions.acp.peer import (
    FAILED,
    INVALID_PARAMETERS,
    METHOD_NOT_FOUND,
    NAME_CHARS,
    Parameters,
    Peer,
    RequestRefused,
    open_session,
)
from swe_ai_fleet.extensions.acp.permissions import KINDS, Permissions, ToolUse
from swe_ai_fleet.sandbox.interactive import InteractiveProcess
from swe_ai_fleet.tools.files import FileTool
from swe_ai_fleet.tools.files.paths import MissingPath
from swe_ai_fleet.tools.files.text import decode
from swe_ai_fleet.tools.operation import Toolkit, operation
from swe_ai_fleet.tools.pipeline import Pipeline
from swe_ai_fleet.tools.shell import ShellTool

MAX_TERMINALS = 64
MAX_OPEN_CALLS = 200
MAX_PATHS = 10_000
MAX_PLANS = 50
MAX_PLAN_STEPS = 100
CANCEL_SECONDS = 2.0
PROPOSE = (
    "Do not change anything yet, the files are read-only. Find out what you need, and end your turn with the approach "
    "that you propose, step by step: a person decides about it."
)
_PLAN_CHARS = 500
_RESOURCE_NOT_FOUND = -32002
_STOPS: Mapping[str, tuple[StopReason, str]] = {
    "end_turn": (StopReason.FINAL_ANSWER, ""),
    "max_tokens": (StopReason.MAX_TOKENS, "the agent says that it has used up its tokens"),
    "max_turn_requests": (StopReason.MAX_ITERATIONS, "the agent says that it has used up its requests"),
    "refusal": (StopReason.MODEL_STOPPED, "the agent refuses to go on"),
    "cancelled": (StopReason.MODEL_STOPPED, "the agent ended its turn as cancelled"),
}


class HarnessFiles(FileTool):
    """The workspace's files as the protocol serves them: whole and unchanged."""

    name = "files"
    text = ""
    """The text of the last read, unchanged, since a harness writes it back."""
    missing = False
    """Whether the last read found no file."""

    @operation(read_only=True)
    async def read_text_file(
        self,
        path: Annotated[str, Field(description="Relative to the repository.")],
        line: Annotated[int | None, Field(description="The first line, from 1.", ge=0)] = None,
        limit: Annotated[int | None, Field(description="Lines at most.", ge=0)] = None,
    ) -> ToolResult:
        """Give a text file, or some lines of it, to an agent in the workspace."""
        try:
            self.missing = False
            data = self._tree.read(path, limit=self.pipeline.limits.max_file_bytes).data
        except MissingPath:
            self.missing = True
            raise
        lines = decode(path, data).raw.splitlines(keepends=True)
        start = max(0, (line or 1) - 1)
        self.text = "".join(lines[start : None if limit is None else start + limit])
        summary = f"{len(lines)} lines, {len(data)} bytes"
        return ToolResult(success=True, operation="files_read_text_file", content=summary)


class HarnessSession:
    """A harness, run as `process`, that works on the task of a `handout`; its requests go through `pipeline`."""

    def __init__(
        self, process: InteractiveProcess, handout: Handout, pipeline: Pipeline, permissions: Permissions
    ) -> None:
        self._process, self._handout, self._permissions = process, handout, permissions
        self._record, self._pipeline = handout.record, pipeline
        self._files = HarnessFiles(handout.clone, pipeline)
        self._shell = ShellTool(handout.clone, pipeline)
        self._terminals: dict[str, asyncio.Task[ToolResult]] = {}
        self._running: set[asyncio.Task[ToolResult]] = set()
        self._uses: dict[str, ToolUse] = {}
        self._text = self._last_text = ""
        self._plans: list[Plan] = []
        self._session_id = ""
        self._prompting: asyncio.Task[Parameters] | None = None
        # Calls run one at a time: the log has the result of each before the next one.
        self._turn = asyncio.Lock()
        # Records that wait for the end of a running call.
        self._deferred: deque[Callable[[], None]] = deque()
        self._ended: asyncio.Future[HandedIn] = asyncio.get_running_loop().create_future()
        self._methods: Mapping[str, Callable[[Parameters], Awaitable[object]]] = {
            "fs/read_text_file": self._read_file,
            "fs/write_text_file": self._write_file,
            "session/request_permission": self._permission,
            "terminal/create": self._create_terminal,
            "terminal/output": self._terminal_output,
            "terminal/wait_for_exit": self._terminal_exit,
            "terminal/kill": self._kill_terminal,
            "terminal/release": self._release_terminal,
        }
        self._peer = Peer(process, self._answer, self._on_notification)

    async def work(self, prompt: str) -> HandedIn:
        """Prompt the harness and wait until its turn or its run ends. Raises AgentFault, FleetError."""
        self._session_id, _ = await open_session(self._peer, self._handout.clone.mount)
        if not self._permissions.gate.wants_proposal:
            return await self._prompted(prompt)
        result = await self._prompted(f"{prompt}\n\n{PROPOSE}")
        if result.stop is not StopReason.FINAL_ANSWER:
            return result
        answer = await self._permissions.propose(result.summary)
        if answer.verdict is CallVerdict.WAIT:
            return HandedIn(stop=StopReason.AWAITING_APPROVAL)
        return HandedIn(stop=StopReason.REJECTED, summary=result.summary, error=answer.text)

    async def close(self) -> None:
        """End the harness and everything that it started; its unfinished calls are recorded as interrupted."""
        if self._prompting is not None:
            # A harness that does not read never sees the cancellation.
            with suppress(TimeoutError, FleetError):
                async with asyncio.timeout(CANCEL_SECONDS):
                    if not self._prompting.done():
                        await self._peer.notify("session/cancel", {"sessionId": self._session_id})
                    await self._prompting
        for task in self._running:
            task.cancel()
        await asyncio.gather(self._peer.close(), *self._running, return_exceptions=True)
        await self._process.close(grace_seconds=CANCEL_SECONDS)
        self._record_deferred()
        for call_id, use in self._uses.items():
            if use.status:
                self._record_call(call_id, use, Outcome.INTERRUPTED)
        if text := self._take_text():
            self._record.say(text)
        self._record.answer = self._record.masked(self._last_text, MAX_SUMMARY_CHARS)

    async def _prompted(self, prompt: str) -> HandedIn:
        parameters = {"sessionId": self._session_id, "prompt": [{"type": "text", "text": prompt}]}
        self._prompting = asking = asyncio.create_task(self._peer.request("session/prompt", parameters))
        await asyncio.wait({asking, self._ended}, return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done():
            return self._ended.result()
        reply = asking.result()
        self._record_deferred()
        stop, error = _STOPS.get(
            string(reply.get("stopReason")), (StopReason.MODEL_STOPPED, "the agent ended its turn")
        )
        return HandedIn(summary=self._take_text() or self._last_text, stop=stop, error=error)

    # Notifications of the harness

    def _on_notification(self, method: str, parameters: Parameters) -> None:
        if method != "session/update" or parameters.get("sessionId") != self._session_id or self._ended.done():
            return
        update = mapping(parameters.get("update"))
        kind = update.get("sessionUpdate")
        if kind == "agent_message_chunk":
            self._text = (self._text + string(mapping(update, "content").get("text")))[: 2 * MAX_SUMMARY_CHARS]
        elif kind in ("tool_call", "tool_call_update"):
            self._on_tool_call(string(update.get("toolCallId"))[:NAME_CHARS], update)
        elif kind == "plan":
            self._on_plan(mappings(update.get("entries"))[:MAX_PLAN_STEPS])

    def _on_tool_call(self, call_id: str, update: Parameters) -> None:
        use = self._uses.pop(call_id, ToolUse()).updated(update)
        if use.changes and len(self._record.paths) < MAX_PATHS:
            self._record.paths.update(use.paths)
        if use.status in ("completed", "failed"):
            outcome = Outcome.SUCCESS if use.status == "completed" else Outcome.ERROR
            self._record_later(lambda: self._record_call(call_id, use, outcome))
        elif len(self._uses) < MAX_OPEN_CALLS:
            self._uses[call_id] = use

    def _record_call(self, call_id: str, use: ToolUse, outcome: Outcome) -> None:
        """Record a call that the harness made itself: a step, and an audit entry marked as the harness's own word."""
        operation_name = use.kind if use.kind in KINDS else "other"
        arguments = {"title": use.title, "input": use.input, "paths": ", ".join(use.paths)}
        arguments = {name: value for name, value in arguments.items() if value}
        call = self._record.call(f"{HARNESS}_{operation_name}", arguments, text=self._take_text())
        result = ToolResult(
            success=outcome is Outcome.SUCCESS,
            operation="",
            content="\n".join((*use.texts, *use.diffs)),
            error="" if outcome is Outcome.SUCCESS else str(outcome),
            outcome=outcome,
            metadata={"own_word": True, "tool_call_id": self._record.masked(call_id, NAME_CHARS)},
        )
        self._record.tell(operation_name, arguments, result, call_id=call.call_id)
        self._count()

    def _on_plan(self, entries: list[Mapping[str, object]]) -> None:
        record = self._record
        steps = [record.masked(string(entry.get("content")), _PLAN_CHARS) for entry in entries]
        plan = Plan(steps=tuple(PlanStep(tool=HARNESS, operation="step", why=step) for step in steps))
        if steps and len(self._plans) < MAX_PLANS and plan not in self._plans[-1:]:
            self._plans.append(plan)
            self._record_later(lambda: record.run.post(PlanMade(step=record.step, plan=plan, reason=self._take_text())))

    def _take_text(self) -> str:
        """The harness's text since the last call of this."""
        text, self._text = self._text.strip(), ""
        self._last_text = text or self._last_text
        return text

    def _record_later(self, tell: Callable[[], None]) -> None:
        """Record something once no call is running."""
        self._deferred.append(tell)
        if not self._turn.locked():
            self._record_deferred()

    def _record_deferred(self) -> None:
        while self._deferred:
            self._deferred.popleft()()

    def _count(self) -> None:
        """Charge a call to the budget; the first one beyond the limit ends the run."""
        if (budget := self._record.budget) is None:
            return
        if not budget.tool_calls_left:
            over = f"the limit of {budget.limits.max_tool_calls} tool calls is reached"
            self._end(HandedIn(stop=StopReason.MAX_TOOL_CALLS, error=over))
        budget.settle(Usage(tool_calls=1))

    def _end(self, result: HandedIn) -> None:
        if not self._ended.done():
            self._ended.set_result(result)

    # Requests of the harness

    async def _answer(self, method: str, parameters: Parameters) -> object:
        if (answer := self._methods.get(method)) is None:
            raise RequestRefused(f"there is no method {method[:100]!r}", METHOD_NOT_FOUND)
        if not self._session_id or parameters.get("sessionId") != self._session_id:
            raise RequestRefused("there is no such session", INVALID_PARAMETERS)
        self._check_open()
        return await answer(parameters)

    def _check_open(self) -> None:
        if self._ended.done():
            raise RequestRefused("the session is over")

    async def _perform(self, toolkit: Toolkit, name: str, arguments: Mapping[str, object]) -> ToolResult:
        """Run one of the fleet's operations for the harness, if permitted: a step, through the pipeline."""
        definition = {**FileTool.definitions, **toolkit.definitions}[name]
        spec = definition.spec
        async with self._turn:
            self._check_open()
            try:
                call_id, answer = await self._permissions.perform(spec, arguments, text=self._take_text())
                self._count()
                if answer.verdict is CallVerdict.GO:
                    return await self._pipeline.call(definition, toolkit, arguments, call_id=call_id)
                if answer.verdict is CallVerdict.WAIT:
                    self._end(HandedIn(stop=StopReason.AWAITING_APPROVAL))
                    raise RequestRefused("a person is asked first")
                result = ToolResult(success=False, operation=spec.name, error=answer.text, outcome=Outcome.REFUSED)
                entry = self._record.run.trail.open(spec, arguments={}, secret=arguments, call_id=call_id)
                return entry.close(result, PolicyDecision.REFUSED, answer.text)
            finally:
                self._record_deferred()

    async def _permission(self, parameters: Parameters) -> object:
        tool_call, options = mapping(parameters.get("toolCall")), mappings(parameters.get("options"))
        call_id = string(tool_call.get("toolCallId"))[:NAME_CHARS]
        use = self._uses.get(call_id, ToolUse()).updated(tool_call)
        if call_id in self._uses or len(self._uses) < MAX_OPEN_CALLS:
            # Later messages may leave fields out; the call has not begun until one says so.
            self._uses[call_id] = replace(use, status="", input=use.input or use.title)
        async with self._turn:
            self._check_open()
            try:
                answer = await self._permissions.ask(use, text=self._take_text())
                self._count()
            finally:
                self._record_deferred()
        if answer.verdict is CallVerdict.WAIT:
            self._end(HandedIn(stop=StopReason.AWAITING_APPROVAL))
        elif answer.verdict is CallVerdict.END:
            self._end(HandedIn(stop=StopReason.REJECTED, error=answer.text))
        kinds = ("allow_once",) if answer.verdict is CallVerdict.GO else ("reject_once", "reject_always")
        chosen = next((option for kind in kinds for option in options if option.get("kind") == kind), None)
        if chosen is None or answer.verdict in (CallVerdict.WAIT, CallVerdict.END):
            return {"outcome": {"outcome": "cancelled"}}
        return {"outcome": {"outcome": "selected", "optionId": string(chosen.get("optionId"))}}

    async def _read_file(self, parameters: Parameters) -> object:
        arguments = {name: parameters[name] for name in ("path", "line", "limit") if parameters.get(name) is not None}
        result = await self._perform(self._files, "read_text_file", arguments)
        if not result.success:
            missing = self._files.missing and result.outcome is not Outcome.REFUSED
            raise RequestRefused(result.error, _RESOURCE_NOT_FOUND if missing else FAILED)
        return {"content": self._files.text}

    async def _write_file(self, parameters: Parameters) -> object:
        arguments = {"path": parameters.get("path"), "content": parameters.get("content")}
        result = await self._perform(self._files, "write_file", arguments)
        if not result.success:
            raise RequestRefused(result.error)
        self._record.paths.add(string(result.metadata.get("path")))
        return {}

    async def _create_terminal(self, parameters: Parameters) -> object:
        if len(self._terminals) >= MAX_TERMINALS:
            raise RequestRefused(f"there are {MAX_TERMINALS} terminals already: release some")
        words = [string(parameters.get("command")), *strings(parameters.get("args"))]
        # Some harnesses send the whole command line as the command.
        line = words[0] if len(words) == 1 else shlex.join(words)
        variables = [
            f"{string(each.get('name'))}={string(each.get('value'))}" for each in mappings(parameters.get("env"))
        ]
        if variables:
            line = f"env {shlex.join(variables)} sh -c {shlex.quote(line)}"
        if (directory := string(parameters.get("cwd"))) not in ("", self._handout.clone.mount):
            line = f"cd {shlex.quote(directory)} && {line}"
        terminal = uuid.uuid4().hex[:12]
        running = asyncio.create_task(self._perform(self._shell, "run_command", {"command": line}))
        self._terminals[terminal] = running
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return {"terminalId": terminal}

    async def _terminal_output(self, parameters: Parameters) -> object:
        running = self._terminal(parameters)
        if not running.done():
            return {"output": "", "truncated": False}
        result = await _result_of(running)
        ended = {"output": result.content or result.error, "truncated": result.truncated}
        return ended | {"exitStatus": {"exitCode": _exit_code(result)}}

    async def _terminal_exit(self, parameters: Parameters) -> object:
        return {"exitCode": _exit_code(await _result_of(self._terminal(parameters)))}

    async def _kill_terminal(self, parameters: Parameters) -> object:
        self._terminal(parameters).cancel()
        return {}

    async def _release_terminal(self, parameters: Parameters) -> object:
        await self._kill_terminal(parameters)
        del self._terminals[string(parameters.get("terminalId"))]
        return {}

    def _terminal(self, parameters: Parameters) -> asyncio.Task[ToolResult]:
        if (running := self._terminals.get(string(parameters.get("terminalId")))) is None:
            raise RequestRefused("there is no such terminal", INVALID_PARAMETERS)
        return running


async def _result_of(running: asyncio.Task[ToolResult]) -> ToolResult:
    await asyncio.wait([running])
    if running.cancelled():
        return ToolResult(success=False, operation="", error="killed", outcome=Outcome.CANCELLED)
    return running.result()


def _exit_code(result: ToolResult) -> int:
    return result.exit_code if result.exit_code is not None else int(not result.success)
