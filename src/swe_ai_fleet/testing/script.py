"""What a scripted model says: turns of conversations, chosen from the request alone, as OpenAI's API answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast

from aiohttp import web
from pydantic import ConfigDict, TypeAdapter

from swe_ai_fleet.domain.budget import Usage

# A misspelt key in a script file is an error, not a reply that never comes.
_STRICT_KEYS = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One reply.

    `tool_calls` are (name, arguments) pairs; arguments given as text go out as they are, well-formed or not.
    `finish_reason` is worked out where it is empty. `delay_seconds` comes on top of the server's latency. The turn
    stands `times` times in a row. `call_ids` replace the ids the server makes up; `usage` replaces its estimate.
    `top_logprobs` are likely first tokens of the reply with their log-probabilities, for requests that ask for them.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    content: str = ""
    tool_calls: tuple[tuple[str, Mapping[str, Any] | str], ...] = ()
    finish_reason: str = ""
    delay_seconds: float = 0.0
    times: int = 1
    call_ids: tuple[str, ...] = ()
    usage: Usage | None = None
    top_logprobs: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A fault in place of a reply; the turn behind it is given once it has been seen `times` times (0: never).

    `status` with `message`, `code` and `param` makes an OpenAI error; `body` is sent instead as it is, with that
    status; `drop` closes the connection without an answer. With `after_chunks` a streamed reply, the turn behind the
    failure, breaks off after as many: with `drop` without a word, else with an event that holds the error or `body`.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    status: int = 503
    message: str = "scripted failure"
    code: str = ""
    param: str = ""
    retry_after_seconds: float | None = None
    body: str | bytes | None = None
    drop: bool = False
    after_chunks: int = 0
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptRequest:
    """What a script may go by: `opening` is the text before the first assistant message, `turn` how many of those
    the request has, `payload` the whole request body."""

    opening: str
    turn: int
    seed: int | None
    payload: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """The turns of one conversation and which requests belong to it.

    A request belongs where all that is given holds: `match` is in its opening, `regex` is found there, `predicate`
    says so, its seed is `seed`. `agent` numbers conversations that share a prompt: of those that fit, the one whose
    place among the numbers is the seed modulo their count is taken, so successive seeds get different turns. The last
    turn stands for all later ones too, behind failures that end the list; with `loop` the first one follows it.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    turns: tuple[Turn | Failure, ...]
    match: str = ""
    regex: str = ""
    predicate: Callable[[ScriptRequest], bool] | None = None
    seed: int | None = None
    agent: int | None = None
    loop: bool = False

    def fits(self, request: ScriptRequest) -> bool:
        """Whether the request belongs here, `agent` aside."""
        return (
            self.match in request.opening
            and (self.seed is None or self.seed == request.seed)
            and (not self.regex or re.search(self.regex, request.opening) is not None)
            and (self.predicate is None or self.predicate(request))
        )

    def at(self, turn: int) -> tuple[tuple[Failure, ...], Turn]:
        """The reply to a request with `turn` assistant messages, and the failures that come before it."""
        replies = [entry for entry in self.turns if isinstance(entry, Turn)]
        length = sum(reply.times for reply in replies)
        position = turn % length if self.loop and length else turn
        failures: list[Failure] = []
        first = 0
        for entry in self.turns:
            if isinstance(entry, Failure):
                failures.append(entry)
                continue
            if position < first + entry.times:
                # Failures stand before the first of a turn's repetitions only.
                return (tuple(failures) if position == first else ()), entry
            first += entry.times
            failures.clear()
        return tuple(failures), replies[-1] if replies else Turn(content="Done.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Conversations in the order they are tried; `default` answers what fits none of them.

    It keeps no state: a resumed, repeated or parallel conversation gets the same replies.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT_KEYS

    conversations: tuple[Conversation, ...] = ()
    default: Conversation = Conversation(turns=(Turn(content="Done."),))

    @classmethod
    def of(cls, *turns: Turn | Failure) -> Script:
        return cls(default=Conversation(turns=turns))

    @classmethod
    def from_json(cls, path: Path) -> Script:
        """Read a script file; raises OSError, or ValueError naming what does not fit.

        The file is an object with the fields of `Script`, down to those of `Turn` and `Failure` (an entry of `turns`
        with a `status` is a failure): `{"conversations": [{"match": "Fix the parser", "agent": 0, "turns":
        [{"tool_calls": [["files_read", {"path": "a.py"}]]}, {"status": 503, "times": 2}, {"content": "Done."}]}]}`.
        """
        return TypeAdapter(cls).validate_json(path.read_bytes())

    def choose(self, request: ScriptRequest) -> Conversation:
        fitting = [conversation for conversation in self.conversations if conversation.fits(request)]
        agents = sorted({conversation.agent for conversation in fitting if conversation.agent is not None})
        agent = agents[(request.seed or 0) % len(agents)] if agents else None
        for conversation in fitting:
            if conversation.agent in (None, agent):
                return conversation
        return self.default


CHARACTERS_PER_TOKEN = 4
MOST_LOGPROBS = 20


def schema_of(payload: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The schema that a chat request wants its reply held to, if any."""
    wanted: dict[str, Any] = payload.get("response_format") or {}
    if wanted.get("type") != "json_schema":
        return None
    return cast("Mapping[str, Any]", wanted["json_schema"]["schema"])


def held_to(schema: Mapping[str, Any], content: str, calls: Sequence[tuple[str, str]]) -> str:
    """The reply as JSON: an envelope around calls, text that is JSON as it is, else the smallest value that fits.

    `calls` are (name, arguments as text); arguments that are no JSON travel as a string.
    """
    if "tool_calls" in (schema.get("properties") or {}):
        listed = [{"name": name, "arguments": _value(arguments)} for name, arguments in calls]
        return json.dumps({"thought": content, "tool_calls": listed})
    try:
        json.loads(content)
    except ValueError:
        return json.dumps(_smallest(schema))
    return content


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _smallest(schema: Mapping[str, Any]) -> object:
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return _smallest(schema[choice][0])
    kind = schema.get("type", "object")
    if kind == "object":
        properties: Mapping[str, Any] = schema.get("properties") or {}
        return {name: _smallest(properties.get(name, {})) for name in schema.get("required") or ()}
    if kind == "array":
        return [_smallest(schema.get("items") or {})] * int(schema.get("minItems", 0))
    return {"string": "", "boolean": True, "integer": 0, "number": 0}.get(kind)


def completion_of(
    turn: Turn,
    asked: ScriptRequest,
    *,
    number: int,
    model: str,
    prompt: Usage,
    obeys_schemas: bool,
    gives_logprobs: bool,
    gives_token_ids: bool,
) -> dict[str, Any]:
    """The answer to the request with that number: calls native where tools are offered, held to a schema where the
    request has one and the server obeys it, else as text. `prompt` is what the prompt is estimated at. Token ids count
    on from 0, the prompt's first."""
    calls = [
        (name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for name, arguments in turn.tool_calls
    ]
    written = len(turn.content) + sum(len(name) + len(arguments) for name, arguments in calls)
    counted = turn.usage or prompt + Usage(completion_tokens=max(1, written // CHARACTERS_PER_TOKEN))
    message: dict[str, Any] = {"role": "assistant", "content": turn.content or None}
    schema = schema_of(asked.payload) if obeys_schemas else None
    if schema is not None:
        message["content"] = held_to(schema, turn.content, calls)
    elif calls and asked.payload.get("tools"):
        ids = turn.call_ids or tuple(f"call_{asked.turn}_{index}" for index in range(len(calls)))
        message["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, (name, arguments) in zip(ids, calls, strict=True)
        ]
    elif calls:
        tagged = [
            f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {arguments}}}\n</tool_call>'
            for name, arguments in calls
        ]
        message["content"] = "\n".join([turn.content, *tagged]).strip()
    finish = turn.finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")
    logprobs = None
    if gives_logprobs and asked.payload.get("logprobs") and message["content"]:
        logprobs = _logprobs(turn, message["content"], asked.payload.get("top_logprobs") or 0)
    token_ids: list[int] | None = None
    if gives_token_ids and asked.payload.get("return_token_ids"):
        token_ids = list(range(counted.total_tokens))
        if gives_logprobs and asked.payload.get("logprobs") and not asked.payload.get("top_logprobs"):
            logprobs = {"content": [_token("", -token_id / 1024) for token_id in token_ids[counted.prompt_tokens :]]}
    choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{**choice, "token_ids": token_ids and token_ids[counted.prompt_tokens :]}],
        "prompt_token_ids": token_ids and token_ids[: counted.prompt_tokens],
        "usage": {
            "prompt_tokens": counted.prompt_tokens,
            "completion_tokens": counted.completion_tokens,
            "total_tokens": counted.total_tokens,
            "prompt_tokens_details": {"cached_tokens": counted.cached_tokens},
        },
    }


def _logprobs(turn: Turn, content: str, alternatives: int) -> dict[str, Any]:
    """The log-probabilities of a text's words, of which the turn says what else the first one could have been."""
    words = re.findall(r"\s*\S+\s*\Z|\s*\S+", content)
    tokens = [_token(word, 0.0) for word in words]
    for token in tokens:
        token["top_logprobs"] = [dict(token)] if alternatives else []
    if turn.top_logprobs and tokens:
        likely = sorted(turn.top_logprobs.items(), key=lambda token: -token[1])[:alternatives]
        tokens[0]["logprob"] = turn.top_logprobs.get(words[0], likely[0][1] if likely else 0.0)
        tokens[0]["top_logprobs"] = [_token(token, logprob) for token, logprob in likely]
    return {"content": tokens, "refusal": None}


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def chunks_of(completion: Mapping[str, Any], payload: Mapping[str, Any], *, characters: int) -> list[bytes]:
    """The events of a completion, `characters` of text or arguments each, usage where the request asks for it."""
    choice = completion["choices"][0]
    head = {"id": completion["id"], "object": "chat.completion.chunk", "created": 0, "model": completion["model"]}
    chunks: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        for delta in _deltas(choice["message"], characters)
    ]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})
    chunks[0]["prompt_token_ids"] = completion["prompt_token_ids"]
    for place, token_id in enumerate(choice["token_ids"] or ()):
        logprobs: dict[str, list[Any]] = choice["logprobs"] or {"content": []}
        first_choice = chunks[min(place + 1, len(chunks) - 1)]["choices"][0]
        first_choice["token_ids"] = [*first_choice.get("token_ids", ()), token_id]
        first_choice["logprobs"] = {
            "content": [
                *first_choice.get("logprobs", {"content": []})["content"],
                *logprobs["content"][place : place + 1],
            ]
        }
    options: dict[str, Any] = payload.get("stream_options") or {}
    if options.get("include_usage"):
        chunks.append({**head, "choices": [], "usage": completion["usage"]})
    return [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks] + [b"data: [DONE]\n\n"]


async def send_stream(request: web.Request, chunks: Sequence[bytes], breaks: Failure | None) -> web.StreamResponse:
    """Send the events, as far as the failure lets them."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in chunks[: breaks.after_chunks] if breaks is not None else chunks:
        await response.write(chunk)
    if breaks is None:
        return response
    if not breaks.drop:
        await response.write(b"data: %b\n\n" % _error_body(breaks))
    elif request.transport is not None:
        request.transport.close()
    return response


def _error_body(failure: Failure) -> bytes:
    if failure.body is not None:
        return failure.body if isinstance(failure.body, bytes) else failure.body.encode()
    named = {"param": failure.param or None, "code": failure.code or failure.status}
    return json.dumps({"error": {"message": failure.message, "type": "scripted", **named}}).encode()


def _deltas(message: Mapping[str, Any], characters: int) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(message["content"] or "", characters):
        yield {"content": piece}
    for index, call in enumerate(message.get("tool_calls", ())):
        function: dict[str, str] = call["function"]
        named = {"name": function["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, **call, "function": named}]}
        for piece in _pieces(function["arguments"], characters):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _pieces(text: str, characters: int) -> Iterator[str]:
    for start in range(0, len(text), characters):
        yield text[start : start + characters]


def refusal(status: int, message: str, *, param: str = "") -> web.Response:
    """An error as OpenAI's servers give it."""
    body = _error_body(Failure(status=status, message=message, param=param))
    return web.Response(status=status, body=body, content_type="application/json")


def unauthorized() -> web.Response:
    """What callers without the key get."""
    return refusal(401, "Unauthorized")


def too_long(limit: int, tokens: int) -> web.Response:
    """A prompt that does not fit, in vLLM's words."""
    text = f"This model's maximum context length is {limit} tokens. However, your request has {tokens} input tokens."
    return refusal(400, text, param="input_tokens")


def fail(request: web.Request, failure: Failure) -> web.Response:
    """What a scripted failure says in place of an answer."""
    if failure.drop and request.transport is not None:
        request.transport.close()
    response = web.Response(status=failure.status, body=_error_body(failure), content_type="application/json")
    if failure.retry_after_seconds is not None:
        response.headers["Retry-After"] = f"{failure.retry_after_seconds:g}"
    return response
