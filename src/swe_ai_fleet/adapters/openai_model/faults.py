"""Faults of a model server: what its refusals and failures mean to us, and what they say about the server.

`pushback` is for those who decide when to try again; `Quirks` keep what a server refuses that the probe did not ask.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from urllib.parse import urlsplit

import aiohttp
import structlog

from swe_ai_fleet.domain.errors import ContextTooLong, ModelError, ModelRejected, ModelUnavailable
from swe_ai_fleet.domain.json_values import items, mapping, number_in, parse_json, string
from swe_ai_fleet.domain.message import ModelCapabilities, ToolProtocol

_log = structlog.get_logger()
_LONGEST_QUOTE = 500
_RETRYABLE = frozenset({408, 409, 425, 429})
_STATUS = re.compile(r"[45][0-9]{2}")
_TOO_LONG = re.compile(
    r"context.{0,20}(length|window|size)|(prompt|input|request).{0,20}too (long|large)|too many (input )?tokens"
    r"|maximum (number of|input) tokens|reduce the length",
    re.IGNORECASE,
)
# 500 too: a grammar that cannot be compiled is a fault of its own to some servers.
_ABOUT_THE_REQUEST = frozenset({400, 404, 405, 422, 500, 501})
_ABOUT_SCHEMAS = re.compile(r"response_format|schema|grammar|guided|structured", re.IGNORECASE)


class StatusError(Exception):
    """An answer with a status of failure.

    Attributes:
        body: What the answer holds: JSON where it is JSON, else its text.
    """

    def __init__(self, status: int, answer: bytes, retry_after: str = "") -> None:
        text = answer.decode(errors="replace").strip()
        super().__init__(text or f"Error code: {status}")
        self.status = status
        self.retry_after = retry_after
        try:
            self.body: object = parse_json(answer)
        except ValueError:
            self.body = text


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRefusal:
    """The parts of an error answer that servers agree on."""

    status: int
    message: str
    code: str = ""
    param: str = ""

    @classmethod
    def of(cls, error: StatusError) -> ServerRefusal:
        # Gemini wraps its error in a list; Ollama's native one is a plain string.
        body = next(iter(items(error.body)), error.body)
        return cls._read(mapping(body).get("error", body), error.status, str(error))

    @classmethod
    def inside(cls, error: object) -> ServerRefusal:
        """Of an error that comes with a status of success: at the end of a stream, or in place of a completion."""
        code = mapping(error).get("code")
        status = int(code) if isinstance(code, int | str) and _STATUS.fullmatch(str(code)) else 500
        return cls._read(error, status, "")

    @classmethod
    def _read(cls, body: object, status: int, otherwise: str) -> ServerRefusal:
        fields = mapping(body)
        return cls(
            status=status,
            message=string(body) or str(fields.get("message") or fields.get("detail") or otherwise),
            code=str(fields.get("code") or ""),
            param=str(fields.get("param") or ""),
        )

    def names(self, *words: str) -> bool:
        """Whether one of the words, in lower case, stands in what the server says."""
        text = f"{self.message} {self.param}".lower()
        return any(word in text for word in words)

    @property
    def too_long(self) -> bool:
        """Whether it is about the length of the prompt."""
        if self.status == 413 or self.code == "context_length_exceeded" or self.param == "input_tokens":
            return True
        return self.status in (400, 422) and _TOO_LONG.search(self.message) is not None


def retry_after_seconds(error: BaseException | None) -> float | None:
    """How long the server asks to wait before another try, where it says so in seconds."""
    return number_in(error.retry_after, 0, 1e9) if isinstance(error, StatusError) else None


def public_url(url: str) -> str:
    """The URL without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def status_error(refusal: ServerRefusal, text: str, model: str) -> ModelError:
    """The fault of ours that a refusal stands for."""
    if refusal.too_long:
        return ContextTooLong(text)
    if refusal.status in (401, 403):
        return ModelRejected(text, field="model_api_key", hint="check the API key and what it may use")
    if refusal.status == 402 or refusal.code == "insufficient_quota":
        return ModelRejected(text, field="model_api_key", hint="the account of this key has no credit left")
    if refusal.status in _RETRYABLE or refusal.status >= 500:
        return ModelUnavailable(text, field="model_url")
    if refusal.status == 404 or refusal.code == "model_not_found":
        if "model" in refusal.message.lower():
            return ModelRejected(text, field="model", hint=f"does the server offer {model!r}?")
        return ModelRejected(text, field="model_url", hint="the base URL usually ends in /v1")
    return ModelRejected(text)


def quoted(text: str, secret: str) -> str:
    """What a server said, on one line of at most 500 characters, without the secret."""
    text = " ".join(text.split())
    if secret:
        text = text.replace(secret, "***")
    return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…"


def pushback(error: ModelError) -> tuple[int, float | None, bool]:
    """(HTTP status, seconds that the server asks to wait if it does, whether it was reached) behind a fault.

    Status 0: no answer came, or none that was whole.
    """
    cause = error.__cause__
    if isinstance(cause, StatusError):
        return cause.status, retry_after_seconds(cause), True
    # An error in place of a completion, or in a stream that had begun well.
    refusal = getattr(cause, "refusal", None)
    if isinstance(refusal, ServerRefusal):
        return refusal.status, None, True
    if cause is None or isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return 0, None, False
    # An answer of success that is no completion is refused by whoever reads it; one that takes too long is none either.
    return (200 if isinstance(cause, ValueError | TimeoutError) else 0), None, True


class Feature(StrEnum):
    """Something a request may use and do without."""

    STREAM_OPTIONS = "stream_options"
    STREAM = "stream"
    FULL_ENVELOPE = "full envelope"
    ENVELOPE = "envelope"
    SCHEMA = "schema"
    LOGPROBS = "logprobs"
    SAMPLED = "token ids"


_NAMED_BY = {
    Feature.STREAM_OPTIONS: re.compile(r"stream.options|include_usage", re.IGNORECASE),
    # Not as a part of "upstream".
    Feature.STREAM: re.compile(r"\bstream(ing)?\b", re.IGNORECASE),
    Feature.FULL_ENVELOPE: _ABOUT_SCHEMAS,
    Feature.ENVELOPE: _ABOUT_SCHEMAS,
    Feature.SCHEMA: _ABOUT_SCHEMAS,
    Feature.LOGPROBS: re.compile(r"log.?prob", re.IGNORECASE),
    Feature.SAMPLED: re.compile(r"token.?ids", re.IGNORECASE),
}


class Quirks:
    """The features that a server turned out not to have; they are left out from then on, which the log says once."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._missing: set[Feature] = set()

    def allow(self, feature: Feature) -> bool:
        """Whether nothing speaks against using it."""
        return feature not in self._missing

    def miss(self, feature: Feature) -> None:
        """Use it no more."""
        if self.allow(feature):
            _log.warning("model.feature_missing", server=self._server, feature=str(feature))
        self._missing.add(feature)

    def learn(self, error: ModelError, used: Iterable[Feature]) -> bool:
        """Whether the server's refusal was about a feature that the request used, so that one without is worth a try.

        `used` is in the order in which to give them up; of those that the refusal may mean the first one goes.
        """
        cause = error.__cause__
        if isinstance(error, ContextTooLong) or not isinstance(cause, StatusError):
            return False
        if cause.status not in _ABOUT_THE_REQUEST:
            return False
        refusal = ServerRefusal.of(cause)
        for feature in used:
            if _NAMED_BY[feature].search(f"{refusal.message} {refusal.param}"):
                self.miss(feature)
                return True
        return False

    def less_refused(self, capabilities: ModelCapabilities) -> ModelCapabilities:
        """The capabilities that a probe found, less what the server has refused since."""
        if capabilities.protocol is ToolProtocol.JSON and not self.allow(Feature.ENVELOPE):
            capabilities = replace(capabilities, protocol=ToolProtocol.TEXT)
        if capabilities.structured_output and not self.allow(Feature.SCHEMA):
            capabilities = replace(capabilities, structured_output=False)
        logprobs = self.allow(Feature.LOGPROBS)
        return capabilities if logprobs is capabilities.logprobs else replace(capabilities, logprobs=logprobs)
