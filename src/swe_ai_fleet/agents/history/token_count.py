"""How many tokens a conversation has, from what the server counted and from what was added since."""

from __future__ import annotations

from swe_ai_fleet.domain.message import AssistantMessage, Message, UserMessage

BYTES_PER_TOKEN = 3.5
"""Before the server has said anything. Code in the usual byte-pair vocabularies has 3 to 4."""
_LEAST, _MOST = 0.5, 8.0
_PRIOR_TOKENS = 200.0
_DECAY = 0.8
_SMALLEST_SAMPLE = 200
_MESSAGE_BYTES = 14
_CALL_BYTES = 40
_IMAGE_BYTES = 3500


def size(message: Message) -> int:
    """What a message weighs, in bytes of UTF-8 with an allowance for what a chat template puts around it."""
    weight = _MESSAGE_BYTES + _bytes(message.content)
    if isinstance(message, AssistantMessage):
        for call in message.tool_calls:
            weight += _CALL_BYTES + _bytes(call.name) + _bytes(call.arguments)
    elif isinstance(message, UserMessage):
        weight += _IMAGE_BYTES * len(message.images)
    return weight


class TokenCount:
    """Tokens of a conversation by its size: the server's last count, and the difference at a rate learnt from it.

    The rate (bytes a token) comes from how much two counts of the server differ, so what every prompt has beside its
    messages (the tools, the template) cancels out; later samples count more.
    """

    def __init__(self) -> None:
        self._tokens = 0
        self._size = 0
        self._sampled_tokens = _PRIOR_TOKENS
        self._sampled_bytes = _PRIOR_TOKENS * BYTES_PER_TOKEN

    @property
    def bytes_per_token(self) -> float:
        return min(_MOST, max(_LEAST, self._sampled_bytes / self._sampled_tokens))

    def told(self, tokens: int, size: int) -> None:
        """The server counted `tokens` in a prompt whose messages have `size` bytes."""
        if tokens <= 0:
            return
        if self._tokens:
            grown_tokens, grown = tokens - self._tokens, size - self._size
            if abs(grown) >= _SMALLEST_SAMPLE and grown_tokens * grown > 0:
                self._sampled_tokens = _DECAY * self._sampled_tokens + abs(grown_tokens)
                self._sampled_bytes = _DECAY * self._sampled_bytes + abs(grown)
        self._tokens, self._size = tokens, size

    def estimate(self, size: int) -> int:
        """Tokens of a prompt whose messages have `size` bytes."""
        return max(round(size / _MOST), round(self._tokens + (size - self._size) / self.bytes_per_token))

    def fitting(self, tokens: int) -> int:
        """The bytes of messages whose prompt has about `tokens`; may be negative where nothing fits."""
        return int(self._size + (tokens - self._tokens) * self.bytes_per_token)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
