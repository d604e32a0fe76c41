"""The conversation with a model: four kinds of message, in the OpenAI sense, with requests and replies.

`TextDelta` is a piece of a reply that is being streamed; it is shown at once and not stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.tool import OperationSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that a model asked for. `arguments` is the model's text, not yet validated.

    `call_id` is ours and unique within the run; `model_call_id` is the model's own, kept for the wire only
    (models repeat ids, within one reply too).
    """

    call_id: str
    model_call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class SystemMessage:
    content: str
    role: Literal["system"] = "system"


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class UserMessage:
    """`images` are `data:` or `https:` URLs, for models that take pictures."""

    content: str
    images: tuple[str, ...] = ()
    role: Literal["user"] = "user"


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class AssistantMessage:
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    role: Literal["assistant"] = "assistant"


@dataclass(frozen=True, slots=True, weakref_slot=True, kw_only=True)
class ToolMessage:
    """The observation that answers one call."""

    call_id: str
    content: str
    role: Literal["tool"] = "tool"


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A model's reply to one request. `repairs` say what was repaired to make it readable.

    `top_logprobs` are likely first tokens of the reply and their natural log-probabilities, where they were requested
    and the server gives them. `server` is the host of the server that answered, with its port where its URL
    names one; it is not written to the log. `tokens` is where the reply's `SampledTokens` are stored, as JSON.
    """

    message: AssistantMessage
    finish_reason: FinishReason
    usage: Usage
    model: str = ""
    repairs: tuple[str, ...] = ()
    top_logprobs: tuple[tuple[str, float], ...] = ()
    server: str = ""
    tokens: BlobRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The tokens of a request and of its reply by their numbers in the model's vocabulary, as the server counted them.

    `logprobs` are the natural log-probabilities of the completion's tokens, one for each; empty where they are unknown.
    """

    prompt_token_ids: tuple[int, ...]
    completion_token_ids: tuple[int, ...]
    logprobs: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample; None is the server's default.

    `max_tokens` bounds the completion, `stop` are texts before which it ends, and `extra` are further fields of the
    request, under the server's own names.
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict[str, object])


LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
"""The names that servers use for the bound of a completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passthrough:
    """A chat completion request of an external agent, passed to the server as it is.

    Attributes:
        fields: The body of the request; its model is replaced. With `stream` the answer is a stream.
        characters: The length of the texts in it, by which its tokens are estimated.
        send: Gets the answer's bytes as they arrive, without `stream` all at once. It is awaited, so that nothing
            accumulates. There is no retry once the answer has begun, nor after a fault inside the server, which the
            request may have caused.
    """

    fields: Mapping[str, object]
    characters: int
    send: Callable[[bytes], Awaitable[None]]

    @property
    def most_tokens(self) -> int | None:
        """The bound of the completion; None where there is none."""
        bounds = [self.fields.get(name) for name in LIMIT_FIELDS]
        return min((bound for bound in bounds if isinstance(bound, int) and bound > 0), default=None)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to a model.

    Attributes:
        messages: The conversation so far.
        tools: The operations that the model may call.
        sampling: How to sample.
        schema: A JSON schema for the reply's text, without tools only. A server that cannot enforce it is asked in
            words, so check the text.
        top_logprobs: How many likely first tokens of the reply to return with their log-probabilities, at most 20. A
            server without them replies without, and its capabilities say so from then on.
        session: The same for all requests of one agent run, so that a router sends them to one server; empty: the
            request is alone.
        on_delta: Gets the reply's text as it arrives, if the server streams; a retry begins from the start.
        passthrough: Is sent instead of all of the above but `session` and `on_delta`.
        on_tokens: Gets the tokens of prompt and reply before the reply is returned, if the server gives them.
    """

    messages: Sequence[Message]
    tools: Sequence[OperationSpec] = ()
    sampling: Sampling = field(default_factory=Sampling)
    schema: Mapping[str, object] | None = None
    top_logprobs: int = 0
    session: str = ""
    on_delta: Callable[[str], None] | None = None
    passthrough: Passthrough | None = None
    on_tokens: Callable[[SampledTokens], None] | None = None


class ToolProtocol(StrEnum):
    """How tool calls are encoded: as the API's own, as JSON constrained by a schema, or as tagged text."""

    NATIVE = "native"
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCapabilities:
    """The result of probing a server. `max_model_len` is in tokens, 0 when the server does not say.

    `strict_schemas`: tools may be `strict`; `structured_output`: the server can enforce a JSON schema for a reply;
    `parallel_tools`: a reply may have several calls; `images`: user messages may have pictures; `logprobs`:
    log-probabilities may be requested.
    """

    model: str
    max_model_len: int = 0
    protocol: ToolProtocol = ToolProtocol.NATIVE
    parallel_tools: bool = True
    strict_schemas: bool = False
    structured_output: bool = False
    images: bool = False
    logprobs: bool = True
    server: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """A piece of a model's reply to an agent, masked. `begins`: it is the first of a new reply, or of a retry."""

    agent_id: str
    text: str
    begins: bool = False
