"""A file's bytes as text, and back without changing what nobody asked to change."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, replace

from swe_ai_fleet.tools.failure import ToolFailure
from swe_ai_fleet.tools.files.paths import shown

_CONTROLS = bytes(byte for byte in range(32) if byte not in b"\b\t\n\f\r\x1b")
_MARKS = {
    "utf-8-sig": (codecs.BOM_UTF8, "utf-8"),
    "utf-16-le": (codecs.BOM_UTF16_LE, "utf-16-le"),
    "utf-16-be": (codecs.BOM_UTF16_BE, "utf-16-be"),
}
"""The byte order mark and the codec behind each encoding that is known by its mark."""

_MAGIC = (
    (b"\x89PNG", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF", "PDF document"),
    (b"PK\x03\x04", "ZIP archive"),
    (b"\x1f\x8b", "gzip archive"),
    (b"\x7fELF", "ELF program"),
    (b"SQLite format 3", "SQLite database"),
    (b"\xca\xfe\xba\xbe", "Java class"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Decoded content with `\\n` line ends where the file's are all alike, and how to write it back.

    `newline` is `\\n`, `\\r\\n` or `mixed`; mixed ones stand in `content` as they are.
    """

    content: str
    encoding: str = "utf-8"
    newline: str = "\n"

    @property
    def lines(self) -> list[str]:
        """The lines without their ends; a last line without an end counts, nothing after a last end does not."""
        lines = self.content.split("\n")
        if not lines[-1]:
            lines.pop()
        return lines

    @property
    def raw(self) -> str:
        """The content with the line ends that the file has."""
        return self.content.replace("\n", "\r\n") if self.newline == "\r\n" else self.content

    def with_content(self, content: str) -> Text:
        """Other content in the same encoding and with the same line ends."""
        return replace(self, content=content)

    def encode(self, path: str) -> bytes:
        """The bytes to write. Raises ToolFailure where the encoding lacks a character."""
        content = self.content
        if self.newline == "\r\n":
            content = content.replace("\r\n", "\n").replace("\n", "\r\n")
        mark, codec = _MARKS.get(self.encoding, (b"", self.encoding))
        try:
            return mark + content.encode(codec)
        except UnicodeEncodeError as error:
            raise ToolFailure(
                f"{shown(path)} is encoded in {self.encoding}, which cannot hold {content[error.start]!r}; "
                "leave that character out"
            ) from None


def decode(path: str, data: bytes) -> Text:
    """A file's content as text: UTF-8, UTF-8 or UTF-16 with a byte order mark, else Latin-1. Raises ToolFailure."""
    encoding, content = _decode(data)
    if content is None:
        raise ToolFailure(f"{shown(path)} is a binary file of {len(data)} bytes ({_kind(data)}), not text")
    windows = content.count("\r\n")
    if not windows:
        return Text(content=content, encoding=encoding)
    if windows == content.count("\n"):
        return Text(content=content.replace("\r\n", "\n"), encoding=encoding, newline="\r\n")
    return Text(content=content, encoding=encoding, newline="mixed")


def rewritten(old: Text | None, content: str, path: str) -> tuple[Text, bytes]:
    """New content for a file, as text and as bytes: in the encoding and line ends of the old where it can keep them.

    Content that has carriage returns of its own keeps them; content that the old encoding cannot hold becomes UTF-8.
    """
    if old is not None and "\r" not in content:
        text = old.with_content(content)
    else:
        text = Text(content=content, encoding=old.encoding if old else "utf-8")
    try:
        return text, text.encode(path)
    except ToolFailure:
        text = Text(content=content, newline=text.newline)
        return text, text.encode(path)


def _decode(data: bytes) -> tuple[str, str | None]:
    """(encoding, content), the content None for what is no text."""
    for encoding, (mark, codec) in _MARKS.items():
        if data.startswith(mark):
            try:
                content = data[len(mark) :].decode(codec)
            except UnicodeDecodeError:
                return encoding, None
            return encoding, None if "\0" in content else content
    if b"\0" in data:
        return "binary", None
    try:
        return "utf-8", data.decode()
    except UnicodeDecodeError:
        is_text = len(data.translate(None, _CONTROLS)) == len(data)
        return "latin-1", data.decode("latin-1") if is_text else None


def _kind(data: bytes) -> str:
    return next((name for start, name in _MAGIC if data.startswith(start)), f"it starts with {data[:8].hex(' ')}")
