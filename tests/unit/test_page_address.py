"""Where the page is served: never where a model server is looked for."""

from __future__ import annotations

from swe_ai_fleet.settings import Settings
from tests.tables import table

FREE = "127.0.0.1:0"


@table(
    ("settings", "address"),
    [
        ({"model_url": "http://127.0.0.1:8100/v1"}, "127.0.0.1:8000"),
        ({"model_url": "http://10.0.0.1:8000/v1"}, "127.0.0.1:8000"),
        ({"model_url": ""}, FREE),
        ({"model_url": "http://127.0.0.1:8000/v1"}, FREE),
        ({"model_url": "http://user:secret@localhost:8000"}, FREE),
        ({"model_url": "http://10.0.0.1:8000/v1, http://[::1]:8000/v1"}, FREE),
        ({"model_url": "http://h/v1", "listen": "127.0.0.1:0"}, FREE),
        # An address that is named counts.
        ({"http_listen": "127.0.0.1:8000"}, "127.0.0.1:8000"),
        ({"http_listen": "off"}, ""),
    ],
)
def test_the_page_is_not_where_models_are_asked_for(settings: dict[str, str], address: str) -> None:
    given = Settings(**settings)
    assert given.model_copy(update={"http_listen": given.http_listen_beside_models}).http_address == address
    # A gateway by itself asks for no models.
    assert "model_url" not in settings or "listen" in settings or given.http_address == "127.0.0.1:8000"
