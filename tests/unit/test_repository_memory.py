"""A repository's documents, docstrings and history as a memory, searched in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools import ToolRegistry

FILES = {
    "README.md": "# Billing\n\nWhat customers owe.\n\n## Rounding rules\n\n"
    "Totals are rounded half up to whole cents.\n",
    "docs/taxes.md": "# Taxes\n\nThe tax rate of a country comes from `tax_rates.csv`.\n\n"
    "```sh\n# no heading\nmake\n```\n",
    "docs/notes.txt": "Refunds are paid within ten days.\n",
    "other/notes.txt": "Not a document.\n",
    "billing.py": '"""Money in whole cents."""\n\n\nclass Invoice:\n    """What one customer owes at one time."""\n',
    "broken.py": "def (:\n",
    "binary.md": b"\0\1\2",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FLEET_SANDBOX", "none")
    monkeypatch.setattr(ToolRegistry, "_default", None)


async def search(root: Path, entities: Sequence[str] = (), queries: Sequence[str] = ()) -> dict[str, Any]:
    with chdir(root):
        return await ToolRegistry.execute_tool("search_memory", entities=list(entities), queries=list(queries))


class TestPassages:
    async def test_documents_by_section_docstrings_by_name_commits_by_message(self, tmp_path: Path) -> None:
        root = make_repository(tmp_path / "r", FILES, message="Add billing\n\nFor the new shop.")
        expected = {
            "README.md#Billing": "What customers owe.",
            "README.md#Rounding rules": "Totals are rounded half up to whole cents.",
            "docs/taxes.md#Taxes": (
                "The tax rate of a country comes from `tax_rates.csv`.\n\n```sh\n# no heading\nmake\n```"
            ),
            "docs/notes.txt": "Refunds are paid within ten days.",
            "billing.py": "Money in whole cents.",
            "billing.py#Invoice": "What one customer owes at one time.",
        }
        words = ["customers owe", "half up", "tax rate", "ten days", "Money in", "at one time", "new shop"]
        found = await search(root, [*words, "Not a document", "not def"])
        assert found["gaps"] == ["Not a document", "not def"]
        assert [f"[{source}]\n{text}" in found["content"] for source, text in expected.items()] == [True] * 6
        (commit,) = set(found["sources"]) - expected.keys()
        assert commit.startswith("commit ")
        assert f"[{commit}]\nAdd billing\nFor the new shop." in found["content"]

    async def test_ignored_files_and_links_are_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "secret.md").write_text("do not read")
        root = make_repository(tmp_path / "r", {".gitignore": "build.md\n", "a.md": "yes"})
        (root / "build.md").write_text("do not read")
        (root / "link.md").symlink_to("../secret.md")
        (root / "deep").symlink_to(tmp_path)
        assert (await search(root, ["yes", "do not read"]))["gaps"] == ["do not read"]


class TestRecall:
    async def test_entities_by_name_queries_by_weight(self, tmp_path: Path) -> None:
        files = {
            "a.md": "# Invoices\n\nAn Invoice lists what is owed.\n",
            "b.md": "Totals are rounded half up.\n",
            "c.md": "Invoicing is not meant.\n",
        }
        root = make_repository(tmp_path / "r", files)
        found = await search(root, ["Invoice", "Stripe"], ["rounded totals", "deployment"])
        assert (found["sources"], found["gaps"], found["coverage"]) == (
            ["a.md#Invoices", "b.md"], ["Stripe", "deployment"], 50.0,
        )  # fmt: skip
