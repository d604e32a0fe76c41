"""A repository's documents, docstrings and history as a memory, searched in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from swe_ai_fleet.agents.sub_agents import MemoryResults, RepositoryMemory
from swe_ai_fleet.domain.command import Command, CommandResult, Output
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.definition import ToolFailure, ToolTimeout
from tests.tables import table

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


async def search(root: Path, entities: Sequence[str] = (), queries: Sequence[str] = ()) -> MemoryResults:
    async with open_workspace(root) as workspace:
        return await RepositoryMemory(workspace).search(entities, queries)


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
        assert found.gaps == ("Not a document", "not def")
        assert [f"[{source}]\n{text}" in found.content for source, text in expected.items()] == [True] * 6
        (commit,) = set(found.sources) - expected.keys()
        assert commit.startswith("commit ")
        assert f"[{commit}]\nAdd billing\nFor the new shop." in found.content

    async def test_ignored_files_and_links_are_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "secret.md").write_text("do not read")
        root = make_repository(tmp_path / "r", {".gitignore": "build.md\n", "a.md": "yes"})
        (root / "build.md").write_text("do not read")
        (root / "link.md").symlink_to("../secret.md")
        (root / "deep").symlink_to(tmp_path)
        assert (await search(root, ["yes", "do not read"])).gaps == ("do not read",)

    async def test_without_a_repository_the_directory_is_walked_and_long_sections_are_cut(self, tmp_path: Path) -> None:
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs" / "a.md").write_text(f"# One\nfirst\n\n{'word ' * 900}\n\nlast")
        (tmp_path / "node_modules").mkdir()
        (tmp_path / "node_modules" / "b.md").write_text("foreign")
        found = await search(tmp_path, ["first", "last", "foreign"])
        assert (found.sources, found.gaps) == (("docs/a.md#One",), ("foreign",))
        assert len(found.content) < 4_500


class TestRecall:
    async def test_entities_by_name_queries_by_weight(self, tmp_path: Path) -> None:
        files = {
            "a.md": "# Invoices\n\nAn Invoice lists what is owed.\n",
            "b.md": "Totals are rounded half up.\n",
            "c.md": "Invoicing is not meant.\n",
        }
        root = make_repository(tmp_path / "r", files)
        found = await search(root, ["Invoice", "Stripe"], ["rounded totals", "deployment"])
        assert (found.sources, found.gaps, found.coverage) == (
            ("a.md#Invoices", "b.md"), ("Stripe", "deployment"), 50.0,
        )  # fmt: skip

    async def test_whole_words_only(self, tmp_path: Path) -> None:
        naming = {"Invoice": "class Invoice:", "tax rate": "the Tax Rate of", "C++": "in C++.", "x": "axa x"}
        others = ("Invoices", "load_invoice", "taxes rate", "C", "axa", "init")
        files = {f"{phrase}.md": text for phrase, text in {**naming, "__init__": "an __init__ here"}.items()}
        root = make_repository(tmp_path / "r", files | {f"other/{text}.md": text for text in others})
        assert {*(await search(root, [*naming, "__init__"])).sources} == {*files}


class Answering:
    """A workspace whose commands all answer the same."""

    def __init__(self, result: CommandResult) -> None:
        self.result = result
        self.root = Path("/nowhere")
        self.mount = "/workspace"
        self.environment = Environment()
        self.commands: list[Command] = []

    async def run(self, command: Command) -> CommandResult:
        self.commands.append(command)
        return self.result


def answered(text: str, *, exit_code: int = 0, timed_out: bool = False) -> Answering:
    output = Output(head=text.encode(), total=len(text.encode()))
    return Answering(
        CommandResult(exit_code=exit_code, stdout=output, stderr=output, duration_ms=1, timed_out=timed_out)
    )


class TestRepositoryMemory:
    @table("text", ["", "{}", "[]", '{"found": [], "passages": [], "searched": "1"}', "x" * 1000, '{"found": null}'])
    async def test_a_program_that_was_tampered_with(self, text: str) -> None:
        with pytest.raises(ToolFailure, match="gave no proper answer"):
            await RepositoryMemory(answered(text)).search(["a"], [])

    async def test_a_program_that_fails_or_hangs(self) -> None:
        with pytest.raises(ToolFailure, match="the search failed: boom"):
            await RepositoryMemory(answered("boom", exit_code=1)).search(["a"], [])
        with pytest.raises(ToolTimeout, match="did not end within"):
            await RepositoryMemory(answered("", timed_out=True)).search(["a"], [])
