"""Permissions: what a harness asks before it acts, decided by the policy of its run and the task's approval policy."""

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
"""What harnesses say their calls do, as far as the fleet tells it apart."""
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
_DECIDED = {
    ApprovalDecision.APPROVED: "approved.",
    ApprovalDecision.REJECTED: "rejected: do without it.",
    ApprovalDecision.ADJUSTED: "not as it is; this is asked for instead:",
}
_MAX_TEXT_CHARS = 8_000
_MOST_PARTS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What a harness says of one call of its own tools, as far as its messages about it told; untrusted, cut to size.

    `input` is JSON or text; `command` is what it runs in a shell, empty where it is something else.
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
        """With what a further message has; each part that it has takes the place of what was told before."""
        content, raw = mappings(message.get("content"))[:_MOST_PARTS], message.get("rawInput")
        diffs = [item for item in content if item.get("type") == "diff"]
        named = [
            string(location.get("path")) for location in (*mappings(message.get("locations"))[:_MOST_PARTS], *diffs)
        ]
        named += [string(mapping(raw).get(key)) for key in _PATHS]
        texts = [string(mapping(part.get("content")).get("text")) for part in content if part.get("type") == "content"]
        kind, title = _cut(string(message.get("kind"))) or self.kind, _cut(string(message.get("title"))) or self.title
        command = mapping(raw).get("command")
        words = strings(command)[:_MOST_PARTS]
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
        """What of the fleet's own operations it comes closest to."""
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
    """Decides what a harness of one run may do of what it asks for.

    A request that waits for a person ends the run. In the next process of the run the harness begins anew; where it
    asks for the same thing again, the decision is there.

    Args:
        timeout_seconds: How long people have; 0: for ever.
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
        """Whether the harness may do something by itself; a step of its own. Raises FleetError."""
        reading = use.reading()
        call_id = self._name(reading)
        arguments = {"kind": use.kind, "title": use.title, **reading.arguments}
        call = self._record.call(f"{HARNESS}_permission", arguments, text=text, call_id=call_id)
        if refusal := self._policy.refusal(reading.spec, reading.arguments):
            answer = Ruling(verdict=CallVerdict.REFUSE, text=refusal)
        else:
            answer = await self._ruled(call, reading)
        if answer.verdict is CallVerdict.GO:
            self._granted.update(_keys(reading))
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
        """Whether the fleet may do something for the harness, and the id of its call; a step of its own.

        What a person has approved when the harness asked before is not asked about again. Raises FleetError.
        """
        reading = ReadCall(spec=spec, arguments=arguments)
        call = self._record.call(spec.name, arguments, text=text, call_id=self._name(reading))
        keys = _keys(reading)
        if keys and all(self._granted[key] for key in keys):
            self._granted.subtract(keys)
            return call.call_id, Ruling(verdict=CallVerdict.GO)
        return call.call_id, await self._ruled(call, reading)

    async def propose(self, approach: str) -> Ruling:
        """Whether a plan that the harness wrote is approved; a step of its own."""
        reading = ReadCall(spec=operations()[PROPOSE].spec, arguments={"approach": approach, "reasoning": ""})
        call = self._record.call(PROPOSE, reading.arguments, call_id=self._name(reading))
        return await self._ruled(call, reading)

    async def settle(self) -> tuple[str, ...]:
        """What people decided about what earlier processes of the run asked, in words; recorded, once each."""
        lines: list[str] = []
        for name, resolution in self._earlier.resolutions.items():
            request = self._earlier.requests[name]
            self._approvals.record_decision(request, resolution)
            call_id, text = request.call.call_id, f"{_DECIDED[resolution.decision]} {resolution.text.strip()}".strip()
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

    def _name(self, reading: ReadCall) -> str:
        """The same for the same thing, asked for the first, second, ... time by a process of the run."""
        written = json.dumps([reading.spec.name, reading.arguments], sort_keys=True, default=str)
        digest = hashlib.sha256(written.encode("utf-8", "replace")).hexdigest()[:12]
        self._asked[digest] += 1
        return f"{digest}-{self._asked[digest]}"


def _cut(text: str) -> str:
    return text[:_MAX_TEXT_CHARS]


def _keys(reading: ReadCall) -> tuple[str, ...]:
    """What a permission is for: a command, or files."""
    arguments = reading.arguments
    if reading.spec.name == SHELL:
        return (f"run {arguments.get('command')}",)
    paths = strings(arguments.get("paths")) or strings(arguments.get("path"))
    return tuple(f"write {path.removeprefix(MOUNT)}" for path in paths)
