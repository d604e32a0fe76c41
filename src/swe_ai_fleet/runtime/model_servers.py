"""Which model servers settings name, and which there are now; what asks them is made in `factories`, a second to load.

An address is the URL of a server, or says where the URLs are found: `dns+http://NAME:PORT/v1` has a server at each
address that the name has, `file:/PATH` has the URLs in a file.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from urllib.parse import urlsplit

import structlog

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.json_values import items, parse_json, string
from swe_ai_fleet.settings import Settings, listed

_FIREWORKS_KEY = "fw_"
_NOTHING: Mapping[str, str] = MappingProxyType({})
LOOK_SECONDS = 5.0
"""Between two looks at where servers are found."""
_DNS, _FILE = "dns+http", "file"
_MOST_BYTES = 256 * 1024
_MOST_SERVERS = 1_000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A preset. `default_model` is used where none is named; `model_prefix` completes a short model name.

    `is_organisation` marks a prefix that real model names begin with as well (`openai/gpt-oss-20b`).
    """

    base_url: str
    default_model: str = ""
    model_prefix: str = ""
    is_organisation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEndpoint:
    """What `OpenAIChatModel` connects to. An empty model is the first one the server lists.

    `note` is a word to the operator where the URL won against the provider that the model's name asks for.
    """

    base_url: str
    model: str
    api_key: str
    note: str = ""


PROVIDERS: Mapping[str, Provider] = MappingProxyType(
    {
        "vllm": Provider(base_url="http://127.0.0.1:8000/v1"),
        "ollama": Provider(base_url="http://127.0.0.1:11434/v1"),
        "openai": Provider(base_url="https://api.openai.com/v1", is_organisation=True),
        "gemini": Provider(base_url="https://generativelanguage.googleapis.com/v1beta/openai"),
        "fireworks": Provider(
            base_url="https://api.fireworks.ai/inference/v1",
            default_model="llama-v3p3-70b-instruct",
            model_prefix="accounts/fireworks/models/",
        ),
    }
)


def provider_endpoint(
    model: str, base_url: str, api_key: str, *, provider_keys: Mapping[str, str] = _NOTHING
) -> ModelEndpoint:
    """The endpoint that a model name like `ollama/llama3.1` stands for.

    A base URL always wins over the preset's, with a note. Without one, the prefix picks the preset, a Fireworks key
    picks Fireworks, and anything else is a vLLM server on this machine. `provider_keys` are keys by the names of
    providers, each for its own provider alone; `api_key` goes before them.
    """
    note = ""
    name, slash, rest = model.partition("/")
    provider = PROVIDERS.get(name) if slash else None
    if provider is not None and base_url and provider.is_organisation and not _same_host(base_url, provider.base_url):
        provider = None
    if provider is not None:
        model = rest
        if base_url and name != "vllm" and not _same_host(base_url, provider.base_url):
            note = f"the model's name selects {name}, but model_url is another server; model_url is used"
    elif not base_url and (api_key.startswith(_FIREWORKS_KEY) or (provider_keys.get("fireworks") and not api_key)):
        provider = PROVIDERS["fireworks"]
    elif not base_url:
        provider = PROVIDERS["vllm"]
    if provider is not None:
        base_url = base_url or provider.base_url
        model = model or provider.default_model
        if model and "/" not in model:
            model = provider.model_prefix + model
    own = [key for name, key in provider_keys.items() if _same_host(base_url, PROVIDERS[name].base_url)]
    return ModelEndpoint(base_url=base_url, model=model, api_key=api_key or next(iter(own), ""), note=note)


def _same_host(url: str, other: str) -> bool:
    return urlsplit(url).hostname == urlsplit(other).hostname


def model_endpoints(settings: Settings) -> tuple[ModelEndpoint, ...]:
    """What settings name, addresses where servers are found among it, each with the key that is its own."""
    return _endpoints(settings, listed(settings.model_url) or ("",))


def shown_url(endpoint: ModelEndpoint) -> str:
    """Where a server is, without what may be a secret: user, password and query."""
    return re.sub(r"//[^/]*@", "//", endpoint.base_url).partition("?")[0]


@dataclass(kw_only=True, eq=False)
class ModelServers:
    """The model servers that settings lead to, looked up anew each time.

    What cannot be looked up, or is empty, changes nothing: a name server that is away, or a file half written, must not
    take servers away that answer. Raises InvalidRequest for an address that is malformed.
    """

    settings: Settings
    _known: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    _faults: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.source = ", ".join(address for address in listed(self.settings.model_url) if _found_by(address))
        """The addresses where servers are found; empty: all are known."""

    async def look(self) -> tuple[ModelEndpoint, ...]:
        """The current servers; the last known ones where a look-up fails."""
        urls: list[str] = []
        for address in listed(self.settings.model_url) or ("",):
            urls += await self._urls(address) if _found_by(address) else (address,)
        return _endpoints(self.settings, tuple(dict.fromkeys(urls))[:_MOST_SERVERS])

    async def _urls(self, address: str) -> Sequence[str]:
        try:
            addresses = (
                await _resolved(address) if _found_by(address) == _DNS else await asyncio.to_thread(_read, address)
            )
            fault = "" if addresses else "it has no server"
        except (OSError, ValueError) as error:
            addresses, fault = (), str(error)
        if fault != self._faults.get(address, ""):
            self._faults[address] = fault
            _log.warning("model.servers_not_found" if fault else "model.servers_found", address=address, reason=fault)
        if addresses:
            self._known[address] = addresses
        return self._known.get(address, ())


def _endpoints(settings: Settings, urls: Sequence[str]) -> tuple[ModelEndpoint, ...]:
    return tuple(
        provider_endpoint(settings.model, url, settings.model_api_key, provider_keys=settings.provider_keys)
        for url in urls
    )


def _found_by(address: str) -> str:
    """How servers are found at an address; empty where it is a server's own. Raises InvalidRequest."""
    parts = urlsplit(address)
    if parts.scheme != _FILE and not parts.scheme.startswith("dns"):
        return ""
    with suppress(ValueError):
        if parts.scheme == _FILE and parts.path.startswith("/") and not parts.netloc:
            return _FILE
        if parts.scheme == _DNS and parts.hostname and parts.port and "@" not in parts.netloc:
            return _DNS
    hint = "dns+http://NAME:PORT/v1 or file:/PATH; servers with TLS are listed by their names"
    raise InvalidRequest("the address where model servers are found is malformed", field="model_url", hint=hint)


async def _resolved(address: str) -> tuple[str, ...]:
    """A URL for each address that a name has. Raises OSError."""
    parts = urlsplit(address)
    infos = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    hosts = sorted({f"[{ip}]" if ":" in (ip := str(to[0])) else ip for *_, to in infos})
    return tuple(f"http://{host}:{parts.port}{parts.path}" for host in hosts)


def _read(address: str) -> tuple[str, ...]:
    """The URLs in a file: one a line, `#` begins a comment; or a list in JSON. Raises OSError, ValueError.

    Every server in it gets the prompts and the key, so that a file that everybody may write is refused. None of its
    URLs may have a password of its own.
    """
    # A FIFO would be waited for.
    with open(os.open(urlsplit(address).path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode) or mode & stat.S_IWOTH:
            raise ValueError("it is not a file, or everybody may write it")
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"it has more than {_MOST_BYTES} bytes")
    if data.lstrip().startswith(b"["):
        urls = [string(url) for url in items(parse_json(data))]
    else:
        urls = [url for line in data.decode().splitlines() if (url := line.partition("#")[0].strip())]
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0 or "@" in url:
            raise ValueError("not all of it are URLs of HTTP without a user")
    return tuple(urls)
