"""Searches the web and Wikipedia, and reads web pages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from swe_ai_fleet.domain.json_values import mapping, mappings
from swe_ai_fleet.domain.tool import ToolResult
from swe_ai_fleet.tools.base_tool import BaseTool, ToolParameter, presented
from swe_ai_fleet.tools.builtin.fetching import Network, ask, fetch, page_text
from swe_ai_fleet.tools.definition import ToolFailure
from swe_ai_fleet.tools.http_transport import HttpPolicy, parse_url

MAX_RESULTS = 20
_ARTICLES = 3
_MAX_QUERY_CHARS = 500
_TITLE_CHARS = 200
_SNIPPET_CHARS = 500
_URL_CHARS = 500
_EXTRACT_CHARS = 3_000
_PAGE_CHARS = 20_000
_HTML = frozenset({"text/html", "application/xhtml+xml", ""})


class _WebTool(BaseTool):
    read_only = True
    locks = frozenset[str]()


class WebSearch(_WebTool):
    """`web_search(query, num_results=5) -> {query, results: [{title, url, content}]}`.

    Args:
        url: A SearXNG-compatible server that answers in JSON; empty: the tool fails with a message.
        network: Opens connections.
    """

    name = "web_search"
    description = "Search the web; gives titles, addresses and snippets. read_webpage reads what is behind an address."
    parameters = (
        ToolParameter("query", "string", "What to search for."),
        ToolParameter("num_results", "integer", f"How many, at most {MAX_RESULTS}.", required=False, default=5),
    )
    cache_seconds = 600.0

    def __init__(self, url: str = "", *, network: Network | None = None) -> None:
        address = url.rstrip("/")
        address = address if address.endswith("/search") or not address else f"{address}/search"
        self.cache_scope = address
        self._network = network or Network()

    async def execute(self, query: str, num_results: int = 5) -> dict[str, object]:
        """The search server's results. Raises ToolFailure for an unexpected response."""
        if not self.cache_scope:
            raise ToolFailure(
                "no search server is configured; set search_url to a SearXNG-compatible one. Until then read_webpage "
                "and search_wikipedia are there"
            )
        if not 1 <= num_results <= MAX_RESULTS:
            raise ToolFailure(f"num_results is {num_results}; it goes from 1 to {MAX_RESULTS}")
        try:
            answer = await ask(self.cache_scope, {"q": _query(query), "format": "json"}, self._network)
        except ToolFailure as failure:
            if "HTTP 403" in failure.message:
                raise ToolFailure(f"{failure.message}: it may not allow the format json (search.formats)") from None
            raise
        results = [
            _result(result, result.get("url"), result.get("content"), _SNIPPET_CHARS)
            for result in mappings(answer.get("results"))
            if isinstance(result.get("url"), str)
        ]
        return {"query": query, "results": results[:num_results]}

    def present(self, value: object) -> ToolResult:
        return _listed(self.name, value, "Nothing was found.")


class SearchWikipedia(_WebTool):
    """`search_wikipedia(query) -> {query, results: [{title, url, content}]}`; `content` is an article's beginning.

    Args:
        url: The `api.php` of a MediaWiki; empty: the tool fails with a message.
        network: Opens connections.
    """

    name = "search_wikipedia"
    description = "Search Wikipedia; gives the beginnings of the articles that fit best."
    parameters = (ToolParameter("query", "string", "What to search for."),)
    cache_seconds = 3600.0

    def __init__(self, url: str = "", *, network: Network | None = None) -> None:
        self.cache_scope = url
        self._network = network or Network()

    async def execute(self, query: str) -> dict[str, object]:
        """The matching articles. Raises ToolFailure for an unexpected response."""
        if not self.cache_scope:
            raise ToolFailure("no encyclopedia is configured; set wikipedia_url to the api.php of a MediaWiki")
        answer = await ask(
            self.cache_scope,
            {
                "action": "query", "format": "json", "formatversion": 2, "redirects": 1,
                "generator": "search", "gsrsearch": _query(query), "gsrlimit": _ARTICLES,
                "prop": "extracts|info", "inprop": "url", "exintro": 1, "explaintext": 1, "exlimit": _ARTICLES,
            },
            self._network,
        )  # fmt: skip
        if fault := mapping(answer, "error"):
            raise ToolFailure(f"the server refuses the search: {_cut(fault.get('info'), _TITLE_CHARS)}")
        articles = sorted(mappings(mapping(answer, "query").get("pages")), key=_rank)
        results = [
            _result(article, article.get("fullurl"), article.get("extract"), _EXTRACT_CHARS)
            for article in articles[:_ARTICLES]
        ]
        return {"query": query, "results": results}

    def present(self, value: object) -> ToolResult:
        return _listed(self.name, value, "No article was found.")


class ReadWebpage(_WebTool):
    """`read_webpage(url) -> {url, title, content, links: [{text, url}]}`; also `truncated` if the page was cut.

    Args:
        policy: The servers that it may reach; by default all public ones.
        network: Opens connections.
    """

    name = "read_webpage"
    description = "Read a web page as text: its title, headings, paragraphs and links. Plain text and JSON are shown."
    parameters = (ToolParameter("url", "string", "Absolute http or https URL."),)
    cache_seconds = 60.0

    def __init__(self, policy: HttpPolicy | None = None, *, network: Network | None = None) -> None:
        self._policy = policy or HttpPolicy()
        self.cache_scope = repr(self._policy)
        self._network = network or Network()

    async def execute(self, url: str) -> dict[str, object]:
        """The page's text. Raises ToolRefusal for a forbidden URL, ToolFailure for a body that is not text."""
        fetched = await fetch(
            parse_url(url), self._policy, self._network, accept="text/html,application/xhtml+xml,text/*;q=0.9,*/*;q=0.5"
        )
        page: dict[str, object] = {"url": fetched.url}
        if fetched.kind in _HTML:
            read = await asyncio.to_thread(page_text, fetched.text, url=fetched.url, max_chars=_PAGE_CHARS)
            cut = read.cut
            links = [{"text": label, "url": target} for label, target in read.links]
            page |= {"title": read.title, "content": read.text, "links": links}
        else:
            cut = len(fetched.text) > _PAGE_CHARS
            page |= {"title": "", "content": fetched.text[:_PAGE_CHARS], "links": list[object]()}
        if cut or fetched.cut:
            page["truncated"] = True
        return page

    def present(self, value: object) -> ToolResult:
        page = mapping(value)
        lines = [f"{page['title']} ({page['url']})" if page["title"] else str(page["url"]), ""]
        lines.append(str(page["content"]) or "[the page has no text]")
        links = [f"- {link['text']}: {link['url']}" for link in mappings(page["links"])]
        if links:
            lines += ["", "Links:", *links]
        if page.get("truncated"):
            lines += ["", "[the page goes on]"]
        return replace(presented(self.name, value), content="\n".join(lines), truncated=bool(page.get("truncated")))


def _query(text: str) -> str:
    if not text.strip():
        raise ToolFailure("the query is empty; say what to search for")
    if len(text) > _MAX_QUERY_CHARS:
        raise ToolFailure(f"the query has {len(text)} characters; at most {_MAX_QUERY_CHARS} are allowed")
    return text.strip()


def _result(source: Mapping[str, object], url: object, content: object, chars: int) -> dict[str, str]:
    title = _cut(source.get("title"), _TITLE_CHARS)
    return {"title": title, "url": _cut(url, _URL_CHARS), "content": _cut(content, chars)}


def _rank(article: Mapping[str, object]) -> int:
    index = article.get("index")
    return index if isinstance(index, int) else MAX_RESULTS


def _cut(value: object, limit: int) -> str:
    text = " ".join(value[: 4 * limit].split()) if isinstance(value, str) else ""
    return text if len(text) <= limit else f"{text[:limit]}..."


def _listed(operation: str, value: object, nothing: str) -> ToolResult:
    results = mappings(mapping(value)["results"])
    lines: list[str] = []
    for number, result in enumerate(results, start=1):
        lines += [f"{number}. {result['title']}", f"   {result['url']}", f"   {result['content']}".rstrip()]
    return replace(presented(operation, value), content="\n".join(lines) or nothing)
