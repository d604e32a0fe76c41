"""What `fleet doctor` says of each part, and what it advises."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Mapping
from pathlib import Path

import structlog
from typer.testing import CliRunner

from swe_ai_fleet.cli.main import app
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from tests.access_world import Authority
from tests.trace_collector import TraceCollector

# What other tests try, and what takes seconds: Ray, and builds in a sandbox.
QUICK = {"EXECUTOR": "kubernetes", "SANDBOX": "none"}


async def doctor(home: Path, settings: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """By part its state, and what was found and advised."""
    environment = {f"FLEET_{name}": str(value) for name, value in {"HOME": home, **settings}.items()}
    result = await asyncio.to_thread(CliRunner().invoke, app, ["doctor", "--json"], env=environment)
    structlog.reset_defaults()
    document = json.loads(result.stdout)
    states = {finding["state"] for finding in document["findings"]}
    assert (document["ok"], result.exit_code == 0) == ("fault" not in states,) * 2
    return {
        finding["part"]: (finding["state"], f"{finding['cause']} | {finding['mend']}")
        for finding in document["findings"]
    }


def certificate(directory: Path, name: str, *, days: int) -> dict[str, Path]:
    files = {"cert": directory / f"{name}-cert.pem", "key": directory / f"{name}-key.pem"}
    for file, content in zip(files.values(), Authority().issue("localhost", days=days), strict=True):
        file.write_bytes(content)
    return files


async def test_each_part_is_tried_and_passwords_are_not_told(nats_server: EmbeddedNats, tmp_path: Path) -> None:
    nothing = await doctor(tmp_path / "home", QUICK)
    assert {nothing[part][0] for part in ("nats", "tls", "traces", "access")} == {"absent"}
    tls, old = certificate(tmp_path, "server", days=100), certificate(tmp_path, "old", days=-3)
    access = tmp_path / "access.toml"
    access.write_text("[tenants.acme]\n")
    access.chmod(0o600)
    address = nats_server.address
    configured = {"NATS_URL": address.url, "NATS_TOKEN": address.token, "ACCESS_FILE": access}
    configured |= {"TLS_CERT": tls["cert"], "TLS_KEY": tls["key"]}
    async with TraceCollector() as collector:
        place = collector.url.replace("://", "://me:hush-hush@")
        well = await doctor(tmp_path / "home", QUICK | configured | {"OTLP_ENDPOINT": place})
    assert {well[part][0] for part in ("nats", "tls: server", "traces", "access")} == {"ok"}, well
    assert "99 days" in well["tls: server"][1] or "100 days" in well["tls: server"][1]
    access.chmod(0o600 | stat.S_IWOTH)
    wrong = {"NATS_CERT": old["cert"], "NATS_URL": f"{address.url}, nats://u:hush-hush@three.example:4222"}
    wrong |= {"NATS_TOKEN": "wrong", "CONTEXT_URL": "two.example:2", "OTLP_ENDPOINT": place}
    found = await doctor(tmp_path / "home", QUICK | {"ACCESS_FILE": access, "NATS_CA": tls["key"]} | wrong)
    for part, words in (
        ("nats", ""),
        ("tls: nats", "has expired | renew"),
        ("tls: nats ca", "FLEET_NATS_CA"),
        ("traces", "OTLP"),
        ("access", "chmod"),
    ):
        assert found[part][0] == "fault" and words in found[part][1], (part, found)
    assert found["tls: calls"][0] == "absent" and "two.example:2" in found["tls: calls"][1]
    assert "hush" not in str((well, found))
