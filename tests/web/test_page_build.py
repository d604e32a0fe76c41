"""The page that is served is the one that its sources make."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_WEB = _ROOT / "web"
_PAGE = _ROOT / "services/gateway/page"
_FILES = {"app.css", "app.js", "favicon.svg", "index.html", "licenses.txt"}


def test_the_sources_make_the_same_bytes_elsewhere(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (_WEB / "node_modules").is_dir():
        pytest.skip("node or the page's packages are not installed; npm ci in web/")
    subprocess.run([node, "build.mjs", "--outdir", str(tmp_path)], cwd=_WEB, check=True, timeout=60)
    assert {path.name for path in tmp_path.iterdir()} == _FILES
    assert [name for name in sorted(_FILES) if (tmp_path / name).read_bytes() != (_PAGE / name).read_bytes()] == []


def test_nothing_in_the_page_is_inline_or_comes_from_elsewhere() -> None:
    index = (_PAGE / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|<script(?![^>]*\ssrc=)", index)
    assert {url for url in re.findall(r'(?:src|href)="([^"]*)"', index) if url.startswith(("http", "//"))} == set()
    assert "sourceMappingURL" not in (_PAGE / "app.js").read_text()
    assert not re.search(r"@import|url\((?!['\"]?data:)", (_PAGE / "app.css").read_text())


def test_the_lock_names_no_place_to_download_from() -> None:
    lock = json.loads((_WEB / "package-lock.json").read_text())
    assert lock["packages"]
    assert [name for name, entry in lock["packages"].items() if "resolved" in entry] == []
    assert [name for name, entry in lock["packages"].items() if name and "integrity" not in entry] == []
    package = json.loads((_WEB / "package.json").read_text())
    wanted = {**package["dependencies"], **package["devDependencies"]}
    assert [name for name, version in wanted.items() if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
