"""What may be named as a repository."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_ai_fleet.adapters.git_workspace import LocationPolicy
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from tests.tables import table


def policy(*roots: Path, hosts: tuple[str, ...] = ("*",), local: bool = True) -> LocationPolicy:
    return LocationPolicy(allowed_roots=roots, allow_local_paths=local, hosts=hosts)


@table(
    "location",
    [
        "", "-", "--upload-pack=touch /tmp/x", "ext::sh -c touch% /tmp/x", "file::/etc", "git://example.org/a",
        "http://example.org/a", "ftp://example.org/a", "https://", "https://-oProxyCommand=x/a",
        "ssh://-oProxyCommand=x/a", "ssh://-l@example.org/a", "git@-oProxyCommand=x:a",
        "git@example.org:--upload-pack=x", "https://user:secret@example.org/a", "https://example.org:99999999/a",
        "https://[::1/a", "https://example.org/a\nb", "https://localhost/a", "https://127.0.0.1/a",
        "https://127.1/a", "https://2130706433/a", "https://0x7f.1/a", "https://[::1]/a",
        "https://169.254.169.254/latest", "https://0.0.0.0/a", "git@localhost:a", "relative/path", "relative",
    ],
)  # fmt: skip
def test_locations_that_are_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        policy(tmp_path).parse(location)
    assert caught.value.field.startswith("repo")
    assert "secret" not in str(caught.value)


def test_urls_that_are_taken_and_hosts_that_are_listed() -> None:
    urls = ("https://example.org/a/b.git", "https://user@example.org:8443/a", "ssh://git@example.org/a")
    for location in (*urls, "git@example.org:a/b.git"):
        assert str(getattr(policy().parse(location), "url", "")) == location
    listed = policy(hosts=("*.example.org", "127.0.0.1"))
    for location in ("https://git.example.org/a", "https://127.0.0.1/a"):
        assert str(getattr(listed.parse(location), "url", "")) == location
    for refused in ("https://example.com/a", "https://git.example.org.evil.com/a", "git@github.com:a/b"):
        with pytest.raises(InvalidRequest, match="not accepted"):
            listed.parse(refused)


def test_paths_must_lie_below_a_root(tmp_path: Path) -> None:
    allowed, beside = tmp_path / "allowed", tmp_path / "allowed-not"
    (allowed / "repo").mkdir(parents=True)
    beside.mkdir()
    (allowed / "link").symlink_to(beside)
    for location in (f"{allowed}/repo", f"file://{allowed}/repo"):
        assert policy(allowed).parse(location) == allowed / "repo"
        with pytest.raises(InvalidRequest, match="not accepted"):
            policy(allowed, local=False).parse(location)
    for outside in (beside, allowed / "link", allowed / ".." / "allowed-not", Path("/etc")):
        with pytest.raises(InvalidRequest) as caught:
            policy(allowed).parse(str(outside))
        assert caught.value.field == "repo.path"
    with pytest.raises(PreconditionFailed, match="not a directory"):
        policy(allowed).parse(str(allowed / "missing"))
