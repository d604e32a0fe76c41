"""Secrets by reference: a setting that is named by the file that holds it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import structlog.testing

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.settings import Settings

SECRETS = sorted(name for name, field in Settings.model_fields.items() if not field.repr)
TEXTS = [name for name in SECRETS if Settings.model_fields[name].annotation is str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_HOME", str(tmp_path))


def kept(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(0o600)
    return path


def test_every_secret_text_may_be_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"model_api_key", "nats_token", "ray_token", "telegram_token", "orchestrator_token"} <= set(TEXTS)
    assert {"model_profiles", "databases", "git_remotes", "mcp_servers"} <= set(SECRETS)
    path = str(kept(tmp_path / "secret", "s3cret value\n"))
    for name in TEXTS:
        with monkeypatch.context() as each:
            each.setenv(f"FLEET_{name.upper()}_FILE", path)
            assert (getattr(Settings(), name), "s3cret" in repr(Settings())) == ("s3cret value", False), name


def test_structured_secrets_are_json_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"main": "postgresql://u:p@db/x"}
    monkeypatch.setenv("FLEET_DATABASES_FILE", str(kept(tmp_path / "databases", json.dumps(told))))
    assert Settings().databases == told
    kept(tmp_path / "databases", '{"main": "postgresql://u:hidden@')
    with pytest.raises(InvalidRequest) as fault:
        Settings()
    assert fault.value.field == "databases_file"
    assert "hidden" not in str(fault.value)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe", b"x" * (1024 * 1024 + 1)])
def test_a_file_that_holds_no_secret_is_named(content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "secret"
    if content is not None:
        kept(path, content)
    monkeypatch.setenv("FLEET_MODEL_API_KEY_FILE", str(path))
    with pytest.raises(InvalidRequest, match=re.escape(str(path))) as fault:
        Settings()
    assert fault.value.field == "model_api_key_file"


def test_a_file_that_everybody_can_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kept(tmp_path / "secret", "a")
    monkeypatch.setenv("FLEET_MODEL_API_KEY_FILE", str(path))
    with structlog.testing.capture_logs() as told:
        Settings()
        assert told == []
        path.chmod(0o644)
        assert Settings().model_api_key == "a"
    lines = [(line["event"], line["setting"]) for line in told]
    assert lines == [("secret_readable_by_everybody", "model_api_key_file")]
    monkeypatch.setenv("FLEET_MODEL_API_KEY", "b")
    with pytest.raises(InvalidRequest, match="both set"):
        Settings()


def test_a_profiles_key_may_be_a_file_and_is_masked(tmp_path: Path) -> None:
    path = kept(tmp_path / "key", "sk-profile\n")
    profiles = {"small": {"model": "m", "api_key_file": str(path)}, "open": {"model": "o"}}
    read = Settings(model_profiles=profiles)
    assert read.model_profiles == {"small": {"model": "m", "api_key": "sk-profile"}, "open": {"model": "o"}}
    assert "sk-profile" in read.secrets
    # What is handed to another node needs no file there.
    path.unlink()
    assert Settings.model_validate_json(read.model_dump_json()).model_profiles == read.model_profiles
