"""Permissions of a harness, decided by the policy of its run and the approval policy of its task."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from swe_ai_fleet.agents.approvals import PolicyGate, Ruling, RunApprovalService
from swe_ai_fleet.agents.external_agent import HARNESS, Handout
from swe_ai_fleet.agents.history import History
from swe_ai_fleet.agents.toolbox import CallVerdict, ReadCall
from swe_ai_fleet.domain.approval import ApprovalDecision
from swe_ai_fleet.domain.event import MessageAdded
from swe_ai_fleet.domain.json_values import mapping, mappings, string, strings
from swe_ai_fleet.domain.message import ToolCall, ToolMessage
from swe_ai_fleet.domain.task import ApprovalPolicy
from swe_ai_fleet.domain.tool import OperationSpec, Outcome, PolicyDecision, Risk, ToolResult
from swe_ai_fleet.tools.builtin import PROPOSE
from swe_ai_fleet.tools.catalogue import operations
from swe_ai_fleet.tools.policy import MOUNT, SHELL, Policy

_READING = frozenset({"read", "search", "think"})
_CHANGING = frozenset({"edit", "delete", "move"})
KINDS = _READING | _CHANGING | {"execute", "fetch"}
"""The kinds of calls in the protocol that the fleet distinguishes."""
_PATHS = ("path", "file_path", "filePath", "filepath", "filename", "absolute_path")
_UNKNOWN = OperationSpec(
    name=f"{HARNESS}_other",
    tool=HARNESS,
    operation="other",
    description="",
    parameters={},
    risk=Risk.HIGH,
    executes=True,
)
_DECISION_TEXTS = {
    ApprovalDecision.APPROVED: "approved.",
    ApprovalDecision.REJECTED: "rejected: do without it.",
    ApprovalDecision.ADJUSTED: "not as it is; this is asked for instead:",
}
_MAX_TEXT_CHARS = 8_000
_MAX_PARTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A harness's own report of one of its tool calls, merged from its messages so far; untrusted, cut to size.

    `input` is JSON or text; `command` is a shell command, empty for other calls.
    """

    kind: str = ""
    title: str = ""
    status: str = ""
    input: str = ""
    command: str = ""
    paths: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    diffs: tuple[str, ...] = ()

    def updated(self, message: Mapping[str, object]) -> ToolUse:
        """The report with a further message merged in; a field of the message replaces the earlier value."""
        content, raw = mappings(message.get("content"))[:_MAX_PARTS], message.get("rawInput")
        diffs = [item for item in content if item.get("type") == "diff"]
        named = [
            string(location.get("path")) for location in (*mappings(message.get("locations"))[:_MAX_PARTS], *diffs)
        ]
        named += [string(mapping(raw).get(key)) for key in _PATHS]
        texts = [string(mapping(part.get("content")).get("text")) for part in content if part.get("type") == "content"]
        kind, title = _cut(string(message.get("kind"))) or self.kind, _cut(string(message.get("title"))) or self.title
        command = mapping(raw).get("command")
        words = strings(command)[:_MAX_PARTS]
        command_text = (words[0] if isinstance(command, str) else shlex.join(words)) if words else self.command
        written = raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False) if raw else ""
        return ToolUse(
            kind=kind,
            title=title,
            status=string(message.get("status")) or self.status,
            input=_cut(written) or self.input,
            command=_cut(command_text or (title if kind == "execute" else "")),
            paths=tuple(dict.fromkeys(_cut(path.removeprefix(MOUNT)) for path in named if path)) or self.paths,
            texts=tuple(map(_cut, filter(None, texts))) or self.texts,
            diffs=tuple(_cut(string(diff.get("newText"))) for diff in diffs) or self.diffs,
        )

    @property
    def changes(self) -> bool:
        """Whether it changes files."""
        return self.kind in _CHANGING or bool(self.diffs)

    def reading(self) -> ReadCall:
        """The call as the nearest operation of the fleet."""
        catalogue = operations()
        if self.command:
            return ReadCall(spec=catalogue[SHELL].spec, arguments={"command": self.command})
        if self.changes:
            arguments = {"paths": list(self.paths), "title": self.title, "new": "\n".join(self.diffs)}
            return ReadCall(spec=catalogue["files_write_file"].spec, arguments=arguments)
        if self.kind in _READING:
            return ReadCall(spec=catalogue["files_read_file"].spec, arguments={"title": self.title})
        return ReadCall(spec=_UNKNOWN, arguments={"title": self.title, "input": self.input})


class Permissions:
    """Decides the permission requests of a harness in one run.

    A request that waits for a person ends the process of the run. The harness starts again in the next one; if it makes
    the same request again, it gets the decision.

    Args:
        timeout_seconds: The time limit for a person's decision; 0: none.
    """

    def __init__(self, handout: Handout, policy: Policy, *, timeout_seconds: float) -> None:
        task, self._run = handout.assignment.task, handout.record.run
        self._earlier, self._policy, self._record = self._run.earlier, policy, handout.record
        self._readings: dict[str, ReadCall] = {}
        self._asked: Counter[str] = Counter()
        self._granted: Counter[str] = Counter()
        self._approvals = RunApprovalService(
            run=self._run,
            clone=handout.clone,
            history=History(self._earlier.messages),
            spent=lambda: handout.record.spent,
            timeout_seconds=timeout_seconds,
        )
        self.gate = PolicyGate(
            task.approval,
            agent_id=self._run.trail.agent_id,
            goal=task.description,
            read=lambda call, _: self._readings[call.call_id],
            approvals=self._approvals if self._run.keeper is not None else None,
            mask=self._run.deps.mask,
            earlier=self._earlier,
        )

    async def ask(self, use: ToolUse, *, text: str) -> Ruling:
        """Decide whether the harness may make a call of its own tools; recorded as a step. Raises FleetError."""
        reading = use.reading()
        call_id = self._call_id(reading)
        arguments = {"kind": use.kind, "title": use.title, **reading.arguments}
        call = self._record.call(f"{HARNESS}_permission", arguments, text=text, call_id=call_id)
        if refusal := self._policy.refusal(reading.spec, reading.arguments):
            answer = Ruling(verdict=CallVerdict.REFUSE, text=refusal)
        else:
            answer = await self._ruled(call, reading)
        if answer.verdict is CallVerdict.GO:
            self._granted.update(_grants(reading))
        if answer.verdict is not CallVerdict.WAIT:
            allowed = answer.verdict is CallVerdict.GO
            result = ToolResult(success=True, operation="", content=f"allowed: {answer.text}")
            refused = ToolResult(success=False, operation="", error=answer.text, outcome=Outcome.REFUSED)
            decision = PolicyDecision.ALLOWED if allowed else PolicyDecision.REFUSED
            texts = {name: str(value) for name, value in arguments.items()}
            self._record.tell(
                "permission",
                texts,
                result if allowed else refused,
                call_id=call_id,
                decision=decision,
                reason=answer.text,
            )
        return answer

    async def perform(self, spec: OperationSpec, arguments: Mapping[str, object], *, text: str) -> tuple[str, Ruling]:
        """Decide whether the fleet may run an operation for the harness; a step. Also returns the call's id.

        If the harness asked for permission before and got it, nobody is asked again. Raises FleetError.
        """
        reading = ReadCall(spec=spec, arguments=arguments)
        call = self._record.call(spec.name, arguments, text=text, call_id=self._call_id(reading))
        keys = _grants(reading)
        if keys and all(self._granted[key] for key in keys):
            self._granted.subtract(keys)
            return call.call_id, Ruling(verdict=CallVerdict.GO)
        return call.call_id, await self._ruled(call, reading)

    async def propose(self, approach: str) -> Ruling:
        """Ask a person to approve the harness's plan; recorded as a step."""
        reading = ReadCall(spec=operations()[PROPOSE].spec, arguments={"approach": approach, "reasoning": ""})
        call = self._record.call(PROPOSE, reading.arguments, call_id=self._call_id(reading))
        return await self._ruled(call, reading)

    async def settle(self) -> tuple[str, ...]:
        """The decisions about requests of the run's earlier processes, in words; each is recorded once."""
        lines: list[str] = []
        for name, resolution in self._earlier.resolutions.items():
            request = self._earlier.requests[name]
            self._approvals.record_decision(request, resolution)
            call_id = request.call.call_id
            text = f"{_DECISION_TEXTS[resolution.decision]} {resolution.text.strip()}".strip()
            if not self._earlier.observed(call_id):
                if request.policy is ApprovalPolicy.PLAN:
                    reading = ReadCall(spec=operations()[PROPOSE].spec, arguments={"approach": request.approach})
                    text = (await self._ruled(request.call, reading)).text
                message = ToolMessage(call_id=call_id, content=text)
                self._run.post(MessageAdded(step=len(self._earlier.steps), message=message))
            lines.append(f"{request.approach}\nDecision: {text}")
        return tuple(lines)

    async def _ruled(self, call: ToolCall, reading: ReadCall) -> Ruling:
        self._readings[call.call_id] = reading
        [ruling] = await self.gate.review([call], step=self._record.step)
        return replace(ruling, text=ruling.text or "nobody has to be asked")

    def _call_id(self, reading: ReadCall) -> str:
        """The id of a call, the same in each process of the run for the same call made for the nth time."""
        written = json.dumps([reading.spec.name, reading.arguments], sort_keys=True, default=str)
        digest = hashlib.sha256(written.encode("utf-8", "replace")).hexdigest()[:12]
        self._asked[digest] += 1
        return f"{digest}-{self._asked[digest]}"


def _cut(text: str) -> str:
    return text[:_MAX_TEXT_CHARS]


def _grants(reading: ReadCall) -> tuple[str, ...]:
    """What a permission covers: a command, or files."""
    arguments = reading.arguments
    if reading.spec.name == SHELL:
        return (f"run {arguments.get('command')}",)
    paths = strings(arguments.get("paths")) or strings(arguments.get("path"))
    return tuple(f"write {path.removeprefix(MOUNT)}" for path in paths)
