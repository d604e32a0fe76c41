"""Faults of a model server: which `ModelError` an answer is, and which features the server lacks.

`pushback` is for deciding about retries; `Quirks` remember the features that a server refused after the probe.
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
# 500 as well: some servers answer it for a grammar that they cannot compile.
_ABOUT_THE_REQUEST = frozenset({400, 404, 405, 422, 500, 501})
_ABOUT_SCHEMAS = re.compile(r"response_format|schema|grammar|guided|structured", re.IGNORECASE)


class StatusError(Exception):
    """An answer with an error status.

    Attributes:
        body: The parsed JSON of the answer, else its text.
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
    """The common parts of servers' error answers."""

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
        """The refusal for an error in a successful response: at the end of a stream, or in place of a completion."""
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
        """Whether one of the words (in lower case) is in the server's message."""
        text = f"{self.message} {self.param}".lower()
        return any(word in text for word in words)

    @property
    def too_long(self) -> bool:
        """Whether the prompt was too long."""
        if self.status == 413 or self.code == "context_length_exceeded" or self.param == "input_tokens":
            return True
        return self.status in (400, 422) and _TOO_LONG.search(self.message) is not None


def retry_after_seconds(error: BaseException | None) -> float | None:
    """The seconds to wait before a retry, if the server gave them."""
    return number_in(error.retry_after, 0, 1e9) if isinstance(error, StatusError) else None


def public_url(url: str) -> str:
    """The URL without user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def status_error(refusal: ServerRefusal, text: str, model: str) -> ModelError:
    """The `ModelError` for a refusal."""
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
    """A server's text on one line of at most 500 characters, without the secret."""
    text = " ".join(text.split())
    if secret:
        text = text.replace(secret, "***")
    return text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…"


def pushback(error: ModelError) -> tuple[int, float | None, bool]:
    """(HTTP status, seconds to wait if the server gave them, whether it was reached) of a fault.

    Status 0: no answer, or no complete one.
    """
    cause = error.__cause__
    if isinstance(cause, StatusError):
        return cause.status, retry_after_seconds(cause), True
    # An error in place of a completion, or in the middle of a stream.
    refusal = getattr(cause, "refusal", None)
    if isinstance(refusal, ServerRefusal):
        return refusal.status, None, True
    if cause is None or isinstance(cause, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return 0, None, False
    # A successful answer that could not be read as a completion, or took too long.
    return (200 if isinstance(cause, ValueError | TimeoutError) else 0), None, True


class Feature(StrEnum):
    """An optional feature of requests."""

    STREAM_OPTIONS = "stream_options"
    STREAM = "stream"
    FULL_ENVELOPE = "full envelope"
    ENVELOPE = "envelope"
    SCHEMA = "schema"
    LOGPROBS = "logprobs"
    SAMPLED = "token ids"


_NAMED_BY = {
    Feature.STREAM_OPTIONS: re.compile(r"stream.options|include_usage", re.IGNORECASE),
    # But not as part of "upstream".
    Feature.STREAM: re.compile(r"\bstream(ing)?\b", re.IGNORECASE),
    Feature.FULL_ENVELOPE: _ABOUT_SCHEMAS,
    Feature.ENVELOPE: _ABOUT_SCHEMAS,
    Feature.SCHEMA: _ABOUT_SCHEMAS,
    Feature.LOGPROBS: re.compile(r"log.?prob", re.IGNORECASE),
    Feature.SAMPLED: re.compile(r"token.?ids", re.IGNORECASE),
}


class Quirks:
    """The features that a server turned out to lack; they are not used again, and each is logged once."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._missing: set[Feature] = set()

    def allow(self, feature: Feature) -> bool:
        """Whether the server may have a feature."""
        return feature not in self._missing

    def miss(self, feature: Feature) -> None:
        """Note that the server lacks a feature."""
        if self.allow(feature):
            _log.warning("model.feature_missing", server=self._server, feature=str(feature))
        self._missing.add(feature)

    def learn(self, error: ModelError, used: Iterable[Feature]) -> bool:
        """Note the feature that a refusal was about; returns whether there was one, so a retry may work.

        `used` is in the order of giving them up; the first one that the refusal may mean is noted.
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

    def without_refused(self, capabilities: ModelCapabilities) -> ModelCapabilities:
        """A probe's capabilities without those that the server has refused since."""
        if capabilities.protocol is ToolProtocol.JSON and not self.allow(Feature.ENVELOPE):
            capabilities = replace(capabilities, protocol=ToolProtocol.TEXT)
        if capabilities.structured_output and not self.allow(Feature.SCHEMA):
            capabilities = replace(capabilities, structured_output=False)
        logprobs = self.allow(Feature.LOGPROBS)
        return capabilities if logprobs is capabilities.logprobs else replace(capabilities, logprobs=logprobs)
