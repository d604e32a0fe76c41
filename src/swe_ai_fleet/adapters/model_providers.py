"""Where the providers' OpenAI-compatible servers are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from urllib.parse import urlsplit


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

_FIREWORKS_KEY = "fw_"


_NOTHING: Mapping[str, str] = MappingProxyType({})


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
