"""What a server refuses that the probe did not ask."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum

from openai import APIStatusError

from swe_ai_fleet.adapters.openai_model.faults import Refusal
from swe_ai_fleet.domain.errors import ContextTooLong, ModelError
from swe_ai_fleet.domain.message import ModelCapabilities, ToolProtocol


class Feature(StrEnum):
    """Something a request may use and do without."""

    STREAM_OPTIONS = "stream_options"
    STREAM = "stream"
    FULL_ENVELOPE = "full envelope"
    ENVELOPE = "envelope"
    SCHEMA = "schema"
    LOGPROBS = "logprobs"


# 500 too: a grammar that cannot be compiled is a fault of its own to some servers.
_ABOUT_THE_REQUEST = frozenset({400, 404, 405, 422, 500, 501})
_ABOUT_SCHEMAS = re.compile(r"response_format|schema|grammar|guided|structured", re.IGNORECASE)
_NAMED_BY = {
    Feature.STREAM_OPTIONS: re.compile(r"stream.options|include_usage", re.IGNORECASE),
    # Not as a part of "upstream".
    Feature.STREAM: re.compile(r"\bstream(ing)?\b", re.IGNORECASE),
    Feature.FULL_ENVELOPE: _ABOUT_SCHEMAS,
    Feature.ENVELOPE: _ABOUT_SCHEMAS,
    Feature.SCHEMA: _ABOUT_SCHEMAS,
    Feature.LOGPROBS: re.compile(r"log.?prob", re.IGNORECASE),
}


class Quirks:
    """The features that a server turned out not to have; they are left out from then on."""

    def __init__(self) -> None:
        self._missing: set[Feature] = set()

    def allow(self, feature: Feature) -> bool:
        """Whether nothing speaks against using it."""
        return feature not in self._missing

    def miss(self, feature: Feature) -> None:
        """Use it no more."""
        self._missing.add(feature)

    def learn(self, error: ModelError, used: Iterable[Feature]) -> bool:
        """Whether the server's refusal was about a feature that the request used, so that one without is worth a try.

        `used` is in the order in which to give them up; of those that the refusal may mean the first one goes.
        """
        cause = error.__cause__
        if isinstance(error, ContextTooLong) or not isinstance(cause, APIStatusError):
            return False
        if cause.status_code not in _ABOUT_THE_REQUEST:
            return False
        refusal = Refusal.of(cause)
        for feature in used:
            if _NAMED_BY[feature].search(f"{refusal.message} {refusal.param}"):
                self.miss(feature)
                return True
        return False

    def known(self, capabilities: ModelCapabilities) -> ModelCapabilities:
        """The capabilities that a probe found, less what the server has refused since."""
        if capabilities.protocol is ToolProtocol.JSON and not self.allow(Feature.ENVELOPE):
            capabilities = replace(capabilities, protocol=ToolProtocol.TEXT)
        if capabilities.structured_output and not self.allow(Feature.SCHEMA):
            capabilities = replace(capabilities, structured_output=False)
        return replace(capabilities, logprobs=self.allow(Feature.LOGPROBS))
