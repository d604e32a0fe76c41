"""Which services are called over TLS, and what a card says of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog.testing

from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.runtime.channels import (
    ChannelTls,
    card_entry,
    certificate_name,
    channel_tls,
    find_context,
    find_fleet,
    own_address,
    read_channel_tls,
    running_fleet,
    target,
)
from swe_ai_fleet.runtime.installation.authority import new_authority, new_certificate
from swe_ai_fleet.settings import Settings

CA = Path("/etc/fleet/ca.pem")
CHANNELS: list[tuple[str, dict[str, Path], bool, bool]] = [
    # An address, settings; whether TLS is spoken, whether it is told that a token goes elsewhere in the clear.
    ("fleet.example:443", {}, False, True),
    ("fleet.example:443", {"tls_ca": CA}, True, False),
    ("grpcs://fleet.example:443", {}, True, False),
    ("grpc://fleet.example:443", {}, False, False),
    ("localhost:443", {}, False, False),
]


@pytest.mark.parametrize(("address", "named", "spoken", "told"), CHANNELS)
def test_tls_is_spoken_where_the_address_or_settings_say_so_and_else_it_is_told(
    address: str, named: dict[str, Path], spoken: bool, told: bool, tmp_path: Path
) -> None:
    with structlog.testing.capture_logs() as lines:
        found = channel_tls(Settings(home=tmp_path, **named), address)
    assert [line["server"] for line in lines] == ([address] if told else [])
    assert (found is not None) is spoken
    if found is not None:
        assert (found.ca, found.cert, found.name) == (named.get("tls_ca"), named.get("tls_client_cert"), "")
    assert target(address) == address.rpartition("/")[2]


def test_a_server_of_this_process_is_called_as_its_certificate_says(tmp_path: Path) -> None:
    pair = new_certificate(new_authority("t"), "s", hosts=("*.example.org", "fleet.example.org"), server=True)
    certificate = tmp_path / "cert.pem"
    certificate.write_text(pair.certificate)
    settings = Settings(home=tmp_path, tls_cert=certificate, tls_key=certificate, tls_ca=CA)
    assert own_address(settings, "0.0.0.0:50055") == "grpcs://0.0.0.0:50055"
    assert certificate_name(certificate, "grpcs://0.0.0.0:50055") == "fleet.example.org"
    assert certificate_name(certificate, "[::1]:50055") == "fleet.example.org"
    # Somebody else's server must have a certificate of its own.
    assert certificate_name(certificate, "fleet.elsewhere:443") == ""
    certificate.write_text("nonsense")
    with pytest.raises(PreconditionFailed, match="no certificate"):
        channel_tls(settings, "127.0.0.1:50055")


@pytest.mark.parametrize("tls", [None, ChannelTls(), ChannelTls(ca=CA, cert=CA, key=CA, name="n")])
def test_a_card_says_how_its_fleet_is_called(tls: ChannelTls | None, tmp_path: Path) -> None:
    assert read_channel_tls(json.loads(json.dumps(card_entry(tls)))) == tls
    assert {read_channel_tls(broken) for broken in ("text", 5, ["a"], {"ca": 7})} <= {None, ChannelTls()}
    card = {"address": "h:1", "token": "t", "pid": os.getpid(), "context": "h:2", "tls": card_entry(tls)}
    (tmp_path / "fleet.json").write_text(json.dumps(card))
    settings = Settings(home=tmp_path)
    for place in (
        find_fleet(settings, server="", token=""),
        find_fleet(settings, server="h:1", token=""),
        # A secret that was made of a file has the file's newline.
        find_fleet(settings, server="h:1", token="t\n"),
        find_context(settings, server="h:2"),
    ):
        assert place is not None and (place.token, place.tls) == ("t", tls)
    # Neither the card's token nor the settings' goes to another server.
    named = Settings(home=tmp_path, context_url="far:9", context_token="theirs")
    for elsewhere in (
        find_fleet(settings, server="other:1", token=""),
        find_context(settings, server="other:1"),
        find_context(named, server="far:8"),
    ):
        assert elsewhere is not None and (elsewhere.token, elsewhere.tls) == ("", None)
    theirs = find_context(named)
    assert theirs is not None and (theirs.address, theirs.token) == ("far:9", "theirs")


def test_only_the_card_of_a_fleet_that_runs_counts(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    dead = json.dumps({"address": "127.0.0.1:7", "token": "secret", "pid": ended.pid})
    for content in (dead, "", "[]", '{"address": 1, "token": "x", "pid": 1}'):
        (tmp_path / "fleet.json").write_text(content)
        assert running_fleet(tmp_path) is None, content
