"""Exports of a run: as Markdown, and as a trajectory for benchmarks and training.

The Agent Trajectory Interchange Format (ATIF 1.8) is Harbor's (its RFC 0001); its validator and the `atif` package
refuse unknown keys, so the fleet's own data is under `extra`. Conversations are exported whole, even if they were
condensed for the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import version
from types import MappingProxyType

from swe_ai_fleet.agents.prompting import fenced
from swe_ai_fleet.codec import to_plain
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import CheckResult
from swe_ai_fleet.domain.event import Event, HistoryCondensed, LoopNoticed, ModelReplied
from swe_ai_fleet.domain.execution import ExecutionState
from swe_ai_fleet.domain.json_values import json_or_none, mapping, mappings
from swe_ai_fleet.domain.message import AssistantMessage, Message, SampledTokens, ToolCall, ToolMessage
from swe_ai_fleet.domain.run import SUB_AGENT, RunState, fold_run, sub_agent_usage
from swe_ai_fleet.domain.trajectory import Observation, Step
from swe_ai_fleet.tools.truncation import truncate

_LONGEST_SHOWN = 4_000
SCHEMA = "ATIF-v1.8"
SHORTENED = "The log has a sub-agent's calls in short, without their results, and of its replies only the last one."


def whole_run(events: Iterable[Event], agent_id: str) -> RunState:
    """A run with its whole conversation, as if it had never been condensed."""
    return fold_run((event for event in events if not isinstance(event.body, HistoryCondensed)), agent_id)


def markdown(run: RunState) -> str:
    """The run as Markdown. Text of tools and of the model is in code blocks that it cannot close."""
    started, finished = run.started, run.finished
    lines = [f"# {run.agent_id}", ""]
    if started is not None:
        lines += [f"{started.role}, model {started.model or 'unknown'}, temperature {started.temperature}", ""]
        for message in started.messages:
            lines += [f"## {message.role}", "", _code_block(message.content), ""]
    contents = {message.call_id: message.content for message in run.messages if isinstance(message, ToolMessage)}
    for step in run.steps:
        lines += [f"## Step {step.number}", ""]
        if step.reply.content:
            lines += [_code_block(step.reply.content), ""]
        observations = {observation.call_id: observation for observation in step.observations}
        for call in step.reply.tool_calls:
            lines += [f"**{_inline(call.name)}**", "", _code_block(call.arguments, "json"), ""]
            observation = observations.get(call.call_id)
            if observation is not None:
                result = observation.result
                exit_code = "" if result.exit_code is None else f", exit code {result.exit_code}"
                repairs = f", repaired: {_inline('; '.join(observation.repairs))}" if observation.repairs else ""
                lines += [f"{result.outcome}{exit_code}, {result.duration:.2f} s{repairs}", ""]
            lines += [_code_block(contents.get(call.call_id, "(no answer)")), ""]
    if finished is not None:
        usage = finished.usage
        lines += [f"## {finished.stop_reason}", "", _code_block(finished.answer or finished.error), ""]
        lines += [
            f"{usage.model_calls} model calls, {usage.tool_calls} tool calls, {usage.prompt_tokens} prompt tokens "
            f"({usage.cached_tokens} cached), {usage.completion_tokens} completion tokens, {usage.duration_ms} ms",
            "",
        ]
    return "\n".join(lines)


def _inline(text: str) -> str:
    return "".join(f"\\{c}" if c in "\\`*_{}[]()#+-.!<>|~" else c for c in " ".join(text.split())[:200])


def _code_block(text: str, language: str = "") -> str:
    return fenced(truncate(text, _LONGEST_SHOWN), language)


def token_refs(run: RunState, events: Iterable[Event]) -> list[BlobRef]:
    """The blobs with the tokens of a run's replies, each a `SampledTokens` as JSON."""
    bodies = (event.body for event in events if event.agent_id == run.agent_id)
    return [body.reply.tokens for body in bodies if isinstance(body, ModelReplied) and body.reply.tokens is not None]


def trajectory(
    state: ExecutionState,
    run: RunState,
    events: Iterable[Event],
    tokens: Mapping[str, SampledTokens] = MappingProxyType({}),
) -> dict[str, object]:
    """One agent's run and the evidence about its candidate, as JSON values.

    Messages of an earlier run, before it waited for a person, are marked as copied context. Costs are in the currency
    of the fleet's prices, so they are in `extra`, not under the format's `cost_usd`. The run is a `whole_run` that has
    begun; `events` are all of the execution, `tokens` the blobs of `token_refs` by their digests.
    """
    own = [event for event in events if event.agent_id == run.agent_id]
    started, finished, usage = run.started, run.finished, run.finished.usage if run.finished else run.usage
    name = f"{state.execution_id}/{run.agent_id}"
    agent: dict[str, object] = {"name": "swe-ai-fleet", "version": version("swe-ai-fleet")}
    if started is not None:
        agent |= {"model_name": started.model} if started.model else {}
        fields = ("role", "temperature", "seed", "tools", "environment")
        agent["extra"] = {field: value for field in fields if (value := to_plain(getattr(started, field))) is not None}
    parts = _Steps(run, own, name, tokens)
    steps = list(parts)
    document: dict[str, object] = {
        "schema_version": SCHEMA,
        "session_id": state.execution_id,
        "trajectory_id": name,
        "agent": agent,
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": usage.prompt_tokens,
            "total_completion_tokens": usage.completion_tokens,
            "total_cached_tokens": usage.cached_tokens,
            "total_steps": len(steps),
            "extra": {field: getattr(usage, field) for field in ("model_calls", "tool_calls", "duration_ms", "cost")},
        },
        "extra": {
            "task_id": state.task.task_id,
            "agent_id": run.agent_id,
            "stop_reason": str(finished.stop_reason) if finished else "",
            "answer": finished.answer if finished else "",
            "error": finished.error if finished else "",
            "audit_head": finished.audit_head if finished else (run.entries[-1].hash if run.entries else ""),
            "approvals": [to_plain(resolution) for resolution in run.resolutions.values()],
            "notes": [_note(event.body) for event in own if isinstance(event.body, HistoryCondensed | LoopNoticed)],
            **_judgement(state, run.agent_id),
        },
    }
    return document | ({"subagent_trajectories": parts.sub_agents} if parts.sub_agents else {})


def _judgement(state: ExecutionState, agent_id: str) -> dict[str, object]:
    """The verdict and rank of an agent's candidate, and a reward for each check that ran; empty without a candidate.

    `reward` is 1 for verified, 0.5 for unverified, 0 for refuted, and missing without a verdict; a check's is its
    score, from 0 to 1.
    """
    candidate = next((candidate for candidate in state.candidates.values() if candidate.agent_id == agent_id), None)
    if candidate is None:
        return {}
    report = state.reports.get(candidate.candidate_id)
    name = candidate.candidate_id
    fields: dict[str, object] = {"candidate_id": name, "winner": state.winner_id == name}
    for entry in [entry for entry in state.ranking if name in (entry.candidate_id, *entry.duplicates)][:1]:
        fields |= {"rank": entry.rank, "score": entry.score}
    if report is not None:
        fields |= {"verdict": report.verdict_word, "verdict_reasons": list(report.reasons)}
        fields |= {"reward": report.verdict.rank / 2} if report.verdict is not None else {}
        fields["checks"] = [_check(result) for result in report.results if not result.skipped_reason]
    return fields


class _Steps:
    def __init__(self, run: RunState, events: Iterable[Event], name: str, tokens: Mapping[str, SampledTokens]) -> None:
        self.sub_agents: list[dict[str, object]] = []
        self._run, self._name, self._tokens = run, name, tokens
        self._replies = {event.body.step: event for event in events if isinstance(event.body, ModelReplied)}
        self._contents = {result.call_id: result.content for result in run.messages if isinstance(result, ToolMessage)}

    def __iter__(self) -> Iterator[dict[str, object]]:
        opening = self._run.started.messages if self._run.started else ()
        resumes = any(isinstance(message, AssistantMessage) for message in opening)
        replies = iter(self._run.steps)
        number = 0
        for index, message in enumerate(self._run.messages):
            if isinstance(message, ToolMessage):
                continue
            number += 1
            copied: dict[str, object] = {"is_copied_context": True} if resumes and index < len(opening) else {}
            waited = bool(copied) and index == len(opening) - 1
            step = next(replies) if isinstance(message, AssistantMessage) and (not copied or waited) else None
            yield {"step_id": number, **self._step_of(message, step), **copied}

    def _step_of(self, message: Message, step: Step | None) -> dict[str, object]:
        if not isinstance(message, AssistantMessage):
            return {"source": "system" if message.role == "system" else "user", "message": message.content}
        fields: dict[str, object] = {"source": "agent", "message": message.content}
        observations = {each.call_id: each for each in step.observations} if step is not None else {}
        if message.tool_calls:
            fields["tool_calls"] = [_call(call) for call in message.tool_calls]
            results = [self._result(call, observations.get(call.call_id)) for call in message.tool_calls]
            fields["observation"] = {"results": [result for result in results if result]}
        if step is not None and (event := self._replies.get(step.number)) is not None:
            assert isinstance(event.body, ModelReplied)
            fields |= {"timestamp": event.at, "llm_call_count": 1}
            fields |= {"model_name": event.body.reply.model} if event.body.reply.model else {}
            ref = event.body.reply.tokens
            sampled = self._tokens.get(ref.digest) if ref is not None else None
            fields["metrics"] = {
                **_metrics(step.usage, duration_ms=event.body.duration_ms),
                **({field: list(value) for field, value in asdict(sampled).items() if value} if sampled else {}),
            }
        return fields

    def _result(self, call: ToolCall, observation: Observation | None) -> dict[str, object]:
        content = self._contents.get(call.call_id)
        if content is None and observation is None:
            return {}
        fields: dict[str, object] = {"source_call_id": call.call_id, "content": content}
        if observation is None:
            return fields
        result = observation.result
        facts = asdict(result)
        fields["extra"] = {
            "outcome": str(result.outcome),
            "seconds": result.duration,
            "repairs": list(observation.repairs),
            **{field: facts[field] for field in ("operation", "exit_code", "cached", "truncated", "artifact")},
        }
        if sub_run := mapping(result.metadata, SUB_AGENT):
            name = f"{self._name}/{call.call_id}"
            self.sub_agents.append(_sub_agent(name, call, content or "", sub_run, sub_agent_usage(result)))
            fields["subagent_trajectory_ref"] = [{"trajectory_id": name}]
        return fields


def _sub_agent(
    name: str, call: ToolCall, content: str, sub_run: Mapping[str, object], usage: Usage
) -> dict[str, object]:
    reply: dict[str, object] = {"step_id": 2, "source": "agent", "message": content, "metrics": _metrics(usage)}
    if usage.model_calls:
        reply["llm_call_count"] = usage.model_calls
    return {
        "schema_version": SCHEMA,
        "trajectory_id": name,
        "agent": {"name": str(sub_run.get("name") or call.name), "version": version("swe-ai-fleet")},
        "notes": SHORTENED,
        "steps": [{"step_id": 1, "source": "user", "message": call.arguments}, reply],
        "extra": {
            "stop_reason": sub_run.get("stop_reason"),
            "error": sub_run.get("error"),
            "calls": mappings(sub_run.get("calls")),
        },
    }


def _call(call: ToolCall) -> dict[str, object]:
    """A call as the model made it; arguments that are no JSON object are text beside an empty object."""
    fields: dict[str, object] = {"tool_call_id": call.call_id, "function_name": call.name, "arguments": {}}
    arguments = json_or_none(call.arguments or "{}", finite=True)
    if isinstance(arguments, dict):
        return {**fields, "arguments": arguments}
    return {**fields, "extra": {"arguments_as_written": call.arguments}}


def _metrics(usage: Usage, **more: object) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
        "extra": {"cost": usage.cost, **more},
    }


def _check(result: CheckResult) -> dict[str, object]:
    return {
        "kind": str(result.kind),
        "name": result.name,
        "passed": result.passed,
        "required": result.required,
        "reward": result.score,
    }


def _note(body: HistoryCondensed | LoopNoticed) -> dict[str, object]:
    if isinstance(body, LoopNoticed):
        return {"kind": "loop", "step": body.step, "pattern": body.pattern, "advice": body.advice}
    fields = ("step", "method", "tokens_before", "tokens_after")
    return {"kind": "condensed", **{field: to_plain(getattr(body, field)) for field in fields}}
