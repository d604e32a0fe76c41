"""The presets behind a model name's prefix."""

from swe_ai_fleet.runtime.model_servers import PROVIDERS, provider_endpoint
from tests.tables import table

HERE = "http://127.0.0.1:9/v1"
LLAMA = "accounts/fireworks/models/llama-v3p3-70b-instruct"


@table(
    ("model", "base_url", "api_key", "expected_url", "expected_model"),
    [
        ("", "", "", PROVIDERS["vllm"].base_url, ""),
        ("vllm/Qwen/Qwen3-8B", "", "", PROVIDERS["vllm"].base_url, "Qwen/Qwen3-8B"),
        ("openai/gpt-4.1", "", "sk-1", PROVIDERS["openai"].base_url, "gpt-4.1"),
        ("fireworks/llama-v3p3-70b-instruct", "", "k", PROVIDERS["fireworks"].base_url, LLAMA),
        (f"fireworks/{LLAMA}", "", "k", PROVIDERS["fireworks"].base_url, LLAMA),
        ("", "", "fw_secret", PROVIDERS["fireworks"].base_url, LLAMA),
        ("", HERE, "fw_secret", HERE, ""),
        # A base URL wins over the preset's; the prefix is gone all the same.
        ("ollama/llama3.1", HERE, "", HERE, "llama3.1"),
        # On a server of one's own `openai/` is part of a model's name.
        ("openai/gpt-oss-20b", HERE, "", HERE, "openai/gpt-oss-20b"),
        ("openai/gpt-4.1", "https://api.openai.com/v1", "", "https://api.openai.com/v1", "gpt-4.1"),
        ("Qwen/Qwen3-8B", "", "", PROVIDERS["vllm"].base_url, "Qwen/Qwen3-8B"),
    ],
)
def test_endpoint(model: str, base_url: str, api_key: str, expected_url: str, expected_model: str) -> None:
    endpoint = provider_endpoint(model, base_url, api_key)
    assert (endpoint.base_url, endpoint.model, endpoint.api_key) == (expected_url, expected_model, api_key)
