"""Fetches texts and files from servers by the rules of the HTTP tool, and converts HTML to text.

The text of a page is its title, headings, paragraphs, lists and links, without scripts and hidden elements.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import urljoin

import httpcore2
import httpx2

from swe_ai_fleet.domain.json_values import is_object, json_or_none
from swe_ai_fleet.sandbox.network import Resolver
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.http import MAX_REDIRECTS, exchange
from swe_ai_fleet.tools.http_transport import (
    GuardedTransport,
    HttpPolicy,
    Received,
    as_text,
    described,
    parse_url,
    port_of,
    read_body,
)

MAX_LINKS = 50
MAX_SECONDS = 2.0
"""The time limit of the parser, which is slow on constructs that never end."""
_CHUNK = 16 * 1024
_LINK_CHARS = 500
_LABEL_CHARS = 120
_TITLE_CHARS = 300
_SKIPPED = frozenset(
    {"script", "style", "template", "noscript", "svg", "math", "iframe", "object", "canvas", "audio", "video", "select"}
)
_BOXES = frozenset({"div", "span", "section", "article", "aside", "nav", "header", "footer", "main", "form", "figure"})
_BREAKS = _BOXES - {"span"} | {
    "p", "ul", "ol", "dl", "dt", "dd", "table", "tr", "blockquote", "pre", "hr", "address", "details", "summary",
    "fieldset", "figcaption", "body", "title",
}  # fmt: skip
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_HIDDEN = re.compile(r"(display\s*:\s*none|visibility\s*:\s*hidden)", re.IGNORECASE)
_BLANKS = re.compile(r"[ \t\r\n\f\xa0]+")
_INVISIBLE = dict.fromkeys([0x00AD, *range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF])


@dataclass(frozen=True, slots=True, kw_only=True)
class PageText:
    """The text of a page; `links` are (label, absolute URL), each URL once; `cut` says that there was more."""

    title: str
    text: str
    links: tuple[tuple[str, str], ...]
    cut: bool


def page_text(html: str, *, url: str, max_chars: int) -> PageText:
    """Convert a page to text, in at most MAX_SECONDS."""
    reader = _Reader(url)
    deadline = time.monotonic() + MAX_SECONDS
    position = 0
    # Never `close()`: it scans an unfinished construct once for every `<` in it.
    while position < len(html) and time.monotonic() < deadline and reader.size <= max_chars:
        reader.feed(html[position : position + _CHUNK])
        position += _CHUNK
    reader.end_line()
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(reader.lines)).strip("\n")
    return PageText(
        title=_BLANKS.sub(" ", "".join(reader.title)).strip()[:_TITLE_CHARS],
        text=text[:max_chars],
        links=tuple((label, target) for target, label in reader.links.items()),
        cut=position < len(html) or len(text) > max_chars,
    )


class _Reader(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[str] = []
        self.title: list[str] = []
        self.links: dict[str, str] = {}
        self.size = 0
        self._base = url
        self._line: list[str] = []
        self._prefix = ""
        self._skipped = ""
        self._depth = 0
        self._in_title = False
        self._preformatted = 0
        self._link = ""
        self._label: list[str] = []

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        # The base class raises AssertionError for most marked sections; in HTML they are comments.
        return self.parse_bogus_comment(i)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._skipped:
            self._depth += tag == self._skipped
            return
        attributes = {name: value or "" for name, value in reversed(attrs)}
        if tag in _SKIPPED or (tag in _BOXES and _is_hidden(attributes)):
            self._skipped, self._depth = tag, 1
            return
        match tag:
            case "title":
                self._in_title = True
            case "a":
                self._end_link()
                self._link = self._target(attributes.get("href", ""))
            case "br":
                self.end_line()
            case "li":
                self.end_line()
                self._prefix = "- "
            case "td" | "th":
                self._add(" | " if self._line else "")
            case "img" if attributes.get("alt", "").strip():
                self._add(f"[image: {attributes['alt'].strip()[:_LABEL_CHARS]}]")
            case _ if tag in _HEADINGS:
                self._paragraph()
                self._prefix = f"{_HEADINGS[tag]} "
            case _ if tag in _BREAKS:
                self._paragraph() if tag in ("p", "pre", "table", "blockquote") else self.end_line()
                self._preformatted += tag == "pre"
            case _:
                pass

    def handle_endtag(self, tag: str) -> None:
        if self._skipped:
            self._depth -= tag == self._skipped
            if not self._depth:
                self._skipped = ""
            return
        if tag == "title":
            self._in_title = False
        elif tag == "a":
            self._end_link()
        elif tag in _HEADINGS or tag in ("p", "pre", "table", "blockquote"):
            self._paragraph()
            self._preformatted = max(0, self._preformatted - (tag == "pre"))
        elif tag in _BREAKS or tag == "li":
            self.end_line()

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return
        data = data.translate(_INVISIBLE)
        if self._in_title:
            if len(self.title) < _TITLE_CHARS:
                self.title.append(data)
        elif self._preformatted:
            first, *rest = data.expandtabs().split("\n")
            self._add(first)
            for line in rest:
                self._finish()
                self._add(line)
        else:
            self._add(_BLANKS.sub(" ", data))

    def end_line(self) -> None:
        """Begin a new line, unless the current one is empty."""
        if "".join(self._line).strip():
            self._finish()
        self._line.clear()
        self._prefix = ""

    def _paragraph(self) -> None:
        self.end_line()
        if self.lines and self.lines[-1]:
            self.lines.append("")

    def _finish(self) -> None:
        text = "".join(self._line)
        text = text.rstrip() if self._preformatted else _BLANKS.sub(" ", text).strip()
        self.lines.append(f"{self._prefix}{text}")
        self.size += 1
        self._line.clear()
        self._prefix = ""

    def _add(self, text: str) -> None:
        self._line.append(text)
        self.size += len(text)
        if self._link and len(self._label) < _LABEL_CHARS:
            self._label.append(text)

    def _end_link(self) -> None:
        label = _BLANKS.sub(" ", "".join(self._label)).strip()
        if self._link and label and len(self.links) < MAX_LINKS:
            self.links.setdefault(self._link, label[:_LABEL_CHARS])
        self._link = ""
        self._label.clear()

    def _target(self, reference: str) -> str:
        try:
            target = urljoin(self._base, reference.strip()).partition("#")[0]
        except ValueError:
            return ""
        good = target.startswith(("http://", "https://")) and len(target) <= _LINK_CHARS
        return target if good and target != self._base else ""


def _is_hidden(attributes: Mapping[str, str]) -> bool:
    return "hidden" in attributes or bool(_HIDDEN.search(attributes.get("style", "")[:1000]))


MAX_BYTES = 2 * 1024 * 1024
_OK = 200
_AGENT = "swe-ai-fleet (an agent's tool)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """The resolver and network for connections, for tests and unusual networks; None: the system's."""

    resolver: Resolver | None = None
    backend: httpcore2.AsyncNetworkBackend | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Downloaded:
    """A downloaded body: its final URL and its Content-Type header."""

    url: str
    kind: str
    body: Received


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """A fetched text: its final URL, its media type, and whether it was cut."""

    url: str
    kind: str
    text: str
    cut: bool = False


async def fetch(
    url: httpx2.URL, policy: HttpPolicy, network: Network, *, accept: str, redirects: int = MAX_REDIRECTS
) -> Fetched:
    """Fetch the text at a URL, following redirects under the same policy.

    Raises ToolRefusal for a forbidden URL; ToolFailure for a body that is not text, and for any status but 200.
    """
    answer = await download(url, policy, network, accept=accept, redirects=redirects)
    text = None if answer.body.encoding else as_text(answer.kind, answer.body.data)
    if text is None:
        raise ToolFailure(f"there is no text at this address but {described(answer.kind, answer.body, 'not computed')}")
    return Fetched(url=answer.url, kind=answer.kind.partition(";")[0].strip().lower(), text=text, cut=answer.body.cut)


async def download(
    url: httpx2.URL,
    policy: HttpPolicy,
    network: Network,
    *,
    accept: str,
    redirects: int = MAX_REDIRECTS,
    max_bytes: int = MAX_BYTES,
) -> Downloaded:
    """Fetch at most `max_bytes` from a URL, following redirects under the same policy.

    Raises ToolRefusal for a forbidden URL; ToolFailure for any status but 200.
    """
    headers = {"User-Agent": _AGENT, "Accept": accept, "Accept-Encoding": "gzip"}
    async with GuardedTransport(policy, resolver=network.resolver, network=network.backend) as transport:
        response, last, _ = await exchange(transport, httpx2.Request("GET", url, headers=headers), most=redirects)
        body = await read_body(response, max_bytes)
        await response.aclose()
    if response.status_code != _OK:
        status = f"HTTP {response.status_code} {response.reason_phrase}".rstrip()
        raise ToolFailure(f"{server(last.url)} answered {status}")
    return Downloaded(url=str(last.url), kind=response.headers.get("content-type", ""), body=body)


async def ask(address: str, parameters: Mapping[str, str | int], network: Network) -> Mapping[str, object]:
    """Query a server that the operator configured; its JSON object. Raises ToolFailure for any other response.

    Only that server is allowed, even at a private address.
    """
    url = parse_url(address)
    policy = HttpPolicy(allowed_hosts=(), private_hosts=(url.host,), ports=(port_of(url),))
    query = url.copy_merge_params(dict(parameters))
    fetched = await fetch(query, policy, network, accept="application/json", redirects=0)
    answer = None if fetched.cut else json_or_none(fetched.text)
    if not is_object(answer):
        raise ToolFailure(f"{server(url)} did not answer with a JSON object but with {fetched.kind or 'something'}")
    return answer


def server(url: httpx2.URL) -> str:
    """A server's name for messages: the rest of its URL may hold secrets."""
    return f"{url.host}:{port_of(url)}"
