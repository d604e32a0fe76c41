"""The page, as the gateway serves it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway_house import BEARER, house, refused


async def test_the_page_is_files_of_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret.txt").write_text("outside")
    directory = tmp_path / "page"
    directory.mkdir()
    monkeypatch.setattr("services.gateway.access.guard.DIRECTORY", directory)
    html = {"Accept": "text/html,*/*"}
    async with house() as built:
        missing = await built.client.get("/", headers=html)
        assert missing.status_code == 404 and missing.headers["content-type"].startswith("text/plain")
        assert "has not been built" in missing.text
        (directory / "index.html").write_text("<!doctype html>the page")
        (directory / "app.js").write_text("1")
        (directory / ".hidden.js").write_text("hidden")
        (directory / "notes.py").write_text("source")
        (directory / "link.txt").symlink_to(tmp_path / "secret.txt")
        for path in ("/", "/index.html", "/executions/1", "/no.js"):
            answer = await built.client.get(path, headers=html)
            assert answer.text == "<!doctype html>the page", path
            assert answer.headers["cache-control"] == "no-cache"
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
        script = await built.client.get("/app.js")
        assert script.headers["content-type"].startswith("text/javascript")
        same = await built.client.get("/app.js", headers={"If-None-Match": f'"x", W/{script.headers["etag"]}'})
        assert same.status_code == 304 and same.content == b"" and same.headers["etag"] == script.headers["etag"]
        (directory / "app.js").write_text("22")
        changed = await built.client.get("/app.js", headers={"If-None-Match": script.headers["etag"]})
        assert changed.text == "22"
        head = await built.client.head("/app.js")
        assert head.status_code == 200 and head.content == b"" and head.headers["content-length"] == "2"
        for path in (
            "/no.js",
            "/.hidden.js",
            "/notes.py",
            "/link.txt",
            "/..%2fsecret.txt",
            "/%2e%2e/secret.txt",
            "/a%00b.js",
        ):
            answer = await built.client.get(path)
            assert answer.status_code == 404 and "outside" not in answer.text, path
        for path in ("/api/nothing", "/api", "/api/"):
            refused(await built.client.get(path, headers=html | BEARER), 404)
            refused(await built.client.get(path, headers=html), 401)
        posted = await built.client.post("/", headers=BEARER)
        assert refused(posted, 405) and posted.headers["allow"] == "GET, HEAD"
