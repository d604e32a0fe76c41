"""Keys of model servers, and addresses that they do not belong to."""

from __future__ import annotations

import os

import pytest

from swe_ai_fleet.runtime.factories import other_model
from swe_ai_fleet.runtime.model_servers import model_endpoints
from swe_ai_fleet.settings import Settings
from tests.tables import table

HOSTED = {
    "fireworks": "https://api.fireworks.ai/inference/v1",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "openai": "https://api.openai.com/v1",
}
FIREWORKS = HOSTED["fireworks"]
OWN, OTHER = "http://127.0.0.1:9/v1", "http://127.0.0.2:9/v1"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = ("FLEET_", "VLLM_", "FIREWORKS_", "GEMINI_", "OPENAI_")
    for name in [name for name in os.environ if name.startswith(ours)]:
        monkeypatch.delenv(name)


def keys(settings: Settings) -> dict[str, str]:
    return {endpoint.base_url: endpoint.api_key for endpoint in model_endpoints(settings)}


@table("name, url", HOSTED.items())
def test_the_key_of_a_provider_goes_to_that_provider_alone(name: str, url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(f"{name.upper()}_API_KEY", "k-hosted")
        for model in ("gemini/g", "openai/o", "fireworks/f", "ollama/l", "vllm/v", "Qwen/Qwen3-8B"):
            assert {key for place, key in keys(Settings(model=model)).items() if place != url} <= {""}
            assert keys(Settings(model=model, model_url=OWN)) == {OWN: ""}
        _control_the_provider_gets_it(name, url)


def _control_the_provider_gets_it(name: str, url: str) -> None:
    assert keys(Settings(model=f"{name}/m")) == keys(Settings(model_url=url)) == {url: "k-hosted"}
    assert keys(Settings(model=f"{name}/m", model_api_key="k-given")) == {url: "k-given"}
    assert "k-hosted" in Settings().secrets
    # Which server is asked where nothing names one, only the key of Fireworks says.
    assert (keys(Settings()) == {FIREWORKS: "k-hosted"}) is (name == "fireworks")


def test_profiles_take_a_key_along_to_the_same_address_alone() -> None:
    settings = Settings(model_url=OWN, model_api_key="k-own", model="m")
    assert keys(other_model(settings, model="n")) == {OWN: "k-own"}
    assert keys(other_model(settings, url=OTHER)) == {OTHER: ""}
    assert keys(other_model(settings, url=f"{OWN},{OTHER}")) == {OWN: "", OTHER: ""}
    assert keys(other_model(settings, url=OTHER, api_key="k-other")) == {OTHER: "k-other"}
