"""What an operator decides about the built-in tools."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from swe_ai_fleet.tools.http.transport import HttpPolicy

WIKIPEDIA = "https://en.wikipedia.org/w/api.php"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinSettings:
    """Endpoints and limits of the built-in tools; the defaults work without any set-up, searching aside.

    Attributes:
        search_url: A SearXNG-compatible server, as `http://localhost:8888`; empty: `web_search` says that there is
            none. Like `wikipedia_url` it may have a private address: exactly that server is allowed, and no redirect.
        wikipedia_url: The `api.php` of a MediaWiki.
        pages: Which servers `read_webpage` may speak to; by default any that is public.
        page_chars: Characters of a page's text that are kept.
        file_root: Where `file_reader` reads when there is no workspace; None: nowhere.
        code_seconds: Time limit of one `python_executor` call.
        code_memory_bytes: Memory of one process of such a call.
        code_output_chars: Characters of its output, and of its result, that are kept.
    """

    search_url: str = ""
    wikipedia_url: str = WIKIPEDIA
    pages: HttpPolicy = field(default_factory=HttpPolicy)
    page_chars: int = 20_000
    file_root: Path | None = None
    code_seconds: float = 30.0
    code_memory_bytes: int = 1024**3
    code_output_chars: int = 20_000
