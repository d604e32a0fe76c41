"""The model servers in the settings, and the current servers of addresses that list them.

An address is the URL of a server, or lists several: `dns+http://NAME:PORT/v1` has a server at each IP address of the
name, `file:/PATH` names a file of URLs. Their clients are made in `factories`, which takes a second to import.
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
"""The time between two look-ups of such lists."""
_DNS, _FILE = "dns+http", "file"
_MOST_BYTES = 256 * 1024
_MOST_SERVERS = 1_000
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A preset. `default_model` is used without a model name; `model_prefix` completes a short one.

    `is_organisation`: model names on other servers may begin with the provider's name as well (`openai/gpt-oss-20b`).
    """

    base_url: str
    default_model: str = ""
    model_prefix: str = ""
    is_organisation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEndpoint:
    """A server for `OpenAIChatModel`. An empty model is the first one the server lists.

    `note` warns the operator that the URL overrides the provider in the model's name.
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
    """The endpoint of a model name like `ollama/llama3.1`.

    A base URL always wins over the preset's, with a note. Without one, the prefix picks the preset, a Fireworks key
    picks Fireworks, and anything else is a vLLM server on this machine. `provider_keys` are keys by the names of
    providers, each sent to its own provider only; `api_key` takes precedence.
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
    """The addresses in the settings, lists of servers included, each with its own key."""
    return _endpoints(settings, listed(settings.model_url) or ("",))


def shown_url(endpoint: ModelEndpoint) -> str:
    """A server's URL without possible secrets: user, password and query."""
    return re.sub(r"//[^/]*@", "//", endpoint.base_url).partition("?")[0]


@dataclass(kw_only=True, eq=False)
class ModelServers:
    """The current model servers of the settings' addresses.

    A look-up that fails, or finds no server, changes nothing: an unreachable name server or a half-written file must
    not remove servers that work. Raises InvalidRequest for a malformed address.
    """

    settings: Settings
    _found: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    _faults: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        self.source = ", ".join(address for address in listed(self.settings.model_url) if _list_kind(address))
        """The addresses that list servers; empty if all addresses are servers' URLs."""

    async def look(self) -> tuple[ModelEndpoint, ...]:
        """The current servers; where a look-up fails, the last ones found."""
        urls: list[str] = []
        for address in listed(self.settings.model_url) or ("",):
            urls += await self._urls(address) if _list_kind(address) else (address,)
        return _endpoints(self.settings, tuple(dict.fromkeys(urls))[:_MOST_SERVERS])

    async def _urls(self, address: str) -> Sequence[str]:
        try:
            addresses = (
                await _resolved(address) if _list_kind(address) == _DNS else await asyncio.to_thread(_read, address)
            )
            fault = "" if addresses else "it has no server"
        except (OSError, ValueError) as error:
            addresses, fault = (), str(error)
        if fault != self._faults.get(address, ""):
            self._faults[address] = fault
            _log.warning("model.servers_not_found" if fault else "model.servers_found", address=address, reason=fault)
        if addresses:
            self._found[address] = addresses
        return self._found.get(address, ())


def _endpoints(settings: Settings, urls: Sequence[str]) -> tuple[ModelEndpoint, ...]:
    return tuple(
        provider_endpoint(settings.model, url, settings.model_api_key, provider_keys=settings.provider_keys)
        for url in urls
    )


def _list_kind(address: str) -> str:
    """The kind of list behind an address; empty for the URL of a server. Raises InvalidRequest."""
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
    """A URL for each IP address of a name. Raises OSError."""
    parts = urlsplit(address)
    infos = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    hosts = sorted({f"[{ip}]" if ":" in (ip := str(to[0])) else ip for *_, to in infos})
    return tuple(f"http://{host}:{parts.port}{parts.path}" for host in hosts)


def _read(address: str) -> tuple[str, ...]:
    """The URLs in a file: one a line, `#` begins a comment; or a list in JSON. Raises OSError, ValueError.

    Every server in it receives prompts and the key, so a world-writable file is refused. URLs may not contain a login.
    """
    # Non-blocking, because opening a FIFO would wait for a writer.
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
