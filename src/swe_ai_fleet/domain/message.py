"""The conversation with a model: four kinds of message, in the OpenAI sense, with requests and replies.

`TextDelta` is a piece of a reply while it comes in; it is shown at that moment and kept nowhere.
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
    """One call a model asked for. `arguments` is the text it wrote, not yet validated.

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
    """What a model answered to one request. `repairs` say what was repaired before it could be read.

    `top_logprobs` are tokens that the reply could have begun with and their natural log-probabilities, where they were
    asked for and the server gives them. `server` is the host of the server that answered, with its port where its URL
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
    """How to sample. What is not given is the server's default.

    `max_tokens` bounds the completion, `stop` are texts before which it ends, and `extra` are further fields of the
    request, which servers know by their own names.
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    extra: Mapping[str, object] = field(default_factory=dict[str, object])


LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
"""What servers call the bound of a completion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passthrough:
    """A chat completion that somebody else's agent asks for, in the API's own words, which reach the server.

    Attributes:
        fields: The body of the request; its model is replaced. Where it says `stream`, the answer is a stream.
        characters: The length of the texts in it, by which its tokens are estimated.
        send: Is given the answer's bytes as they come in, a plain answer's all at once. It is waited for, so that
            nothing piles up. A call whose answer has begun is not tried again, nor one at which the server itself
            broke: the request may have brought that about.
    """

    fields: Mapping[str, object]
    characters: int
    send: Callable[[bytes], Awaitable[None]]

    @property
    def most_tokens(self) -> int | None:
        """The bound of the completion, where there is one."""
        bounds = [self.fields.get(name) for name in LIMIT_FIELDS]
        return min((bound for bound in bounds if isinstance(bound, int) and bound > 0), default=None)


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a model is asked.

    Attributes:
        messages: The conversation so far.
        tools: What the model may call.
        sampling: How to sample.
        schema: A JSON schema that the reply's text is to follow; a server that cannot be held to it is asked in words,
            so check the text. Without tools only.
        top_logprobs: So many likely first tokens of the reply come with their log-probabilities, at most 20; 0: none. A
            server that gives none answers without, and its capabilities say so from then on.
        session: The same for all requests of one agent run, so that a router takes them to one server; empty: it is
            alone.
        on_delta: Hears the reply's text as it comes in, as far as the server streams; a reply that is tried again
            begins anew.
        passthrough: Is asked in place of all the above but `session` and `on_delta`.
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
    """How tool calls travel: as the API's own, as JSON that a schema constrains, or as tagged text."""

    NATIVE = "native"
    JSON = "json"
    TEXT = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCapabilities:
    """What a probe of the server found out. `max_model_len` is in tokens, 0 when the server does not say.

    `strict_schemas`: tools may say `strict`; `structured_output`: a reply can be held to a JSON schema;
    `parallel_tools`: a reply may carry several calls; `images`: user messages may carry pictures; `logprobs`: nothing
    speaks against asking for log-probabilities.
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
    """A piece of what a model says to an agent, masked. `begins` opens a new reply, or the same one tried again."""

    agent_id: str
    text: str
    begins: bool = False
