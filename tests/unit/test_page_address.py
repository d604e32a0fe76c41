"""Where the page is served: never where a model server is looked for."""

from __future__ import annotations

import pytest

from swe_ai_fleet.settings import Settings

FREE = "127.0.0.1:0"


def with_page(settings: Settings) -> Settings:
    return settings.model_copy(update={"http_listen": settings.http_listen_beside_models})


@pytest.mark.parametrize(
    ("model_url", "address"),
    [
        ("http://127.0.0.1:8100/v1", "127.0.0.1:8000"),
        ("http://10.0.0.1:8000/v1", "127.0.0.1:8000"),
        ("", FREE),
        ("http://127.0.0.1:8000/v1", FREE),
        ("http://user:secret@localhost:8000", FREE),
        ("http://10.0.0.1:8000/v1, http://[::1]:8000/v1", FREE),
    ],
)
def test_the_page_is_not_where_models_are_asked_for(model_url: str, address: str) -> None:
    settings = Settings(model_url=model_url)
    assert with_page(settings).http_address == address
    # A gateway by itself asks for no models.
    assert settings.http_address == "127.0.0.1:8000"


def test_an_address_that_is_named_counts() -> None:
    assert with_page(Settings(http_listen="127.0.0.1:8000")).http_address == "127.0.0.1:8000"
    assert with_page(Settings(http_listen="off")).http_address == ""
    assert with_page(Settings(model_url="http://h/v1", listen="127.0.0.1:0")).http_address == FREE
