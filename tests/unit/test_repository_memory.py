"""Searching documents and history: terms, ranking, passages, and the whole of it in the sandbox."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.sub_agents import RepositoryMemory
from swe_ai_fleet.agents.sub_agents.recall.passages import MAX_CHARS, Passage, passages
from swe_ai_fleet.agents.sub_agents.recall.program import recall
from swe_ai_fleet.agents.sub_agents.recall.ranking import Index, names, terms
from swe_ai_fleet.domain.command import Command, CommandResult, Output
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.sandbox import open_workspace
from swe_ai_fleet.testing.repositories import commit_files, make_repository
from swe_ai_fleet.tools.failure import ToolFailure, ToolTimeout

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


class TestTerms:
    @pytest.mark.parametrize(
        ("one", "other"),
        [("invoices", "invoice"), ("fixes", "fix"), ("classes", "class"), ("Queries", "query"), ("notes", "NOTE")],
    )
    def test_plurals_meet(self, one: str, other: str) -> None:
        assert list(terms(one)) == list(terms(other)) != []


class TestRanking:
    def test_the_best_comes_first_and_strangers_not_at_all(self) -> None:
        index = Index(["tax rates of countries", "rounding of totals to cents", "totals and taxes", "nothing here"])
        assert [number for _, number in index.rank("rounding totals")] == [1, 2]
        assert index.rank("kubernetes") == []

    def test_a_rare_word_weighs_more_than_a_common_one(self) -> None:
        index = Index(["common rare", "common plain", "common dull", "common grey"])
        assert index.rank("rare")[0][1] == 0
        both = {number: score for score, number in index.rank("common rare")}
        assert both[0] > 2 * both[1] > 0

    @given(st.lists(st.text(max_size=60), max_size=8), st.text(max_size=40))
    def test_scores_are_positive_and_sorted(self, texts: list[str], query: str) -> None:
        ranked = Index(texts).rank(query)
        scores = [score for score, _ in ranked]
        assert scores == sorted(scores, reverse=True)
        assert all(score > 0 for score in scores)
        asked = set(terms(query))
        assert {number for _, number in ranked} == {n for n, text in enumerate(texts) if asked & set(terms(text))}


class TestNames:
    @pytest.mark.parametrize(
        ("phrase", "text", "found"),
        [
            ("Invoice", "an invoice is", True),
            ("Invoice", "class Invoice:", True),
            ("Invoice", "Invoices", False),
            ("Invoice", "load_invoice", False),
            ("tax rate", "the Tax Rate of", True),
            ("C++", "in C++.", True),
            ("C", "in C++.", True),
            ("", "anything", False),
            ("x", "axa x", True),
            ("x", "axa", False),
        ],
    )
    def test_whole_words_only(self, phrase: str, text: str, found: bool) -> None:
        assert names(phrase, text) is found


class TestPassages:
    def test_documents_by_section_docstrings_by_name_commits_by_message(self, tmp_path: Path) -> None:
        root = make_repository(tmp_path / "r", FILES, message="Add billing\n\nFor the new shop.")
        found = {passage.source: passage.text for passage in passages(str(root), seconds=10)}
        commit = next(source for source in found if source.startswith("commit "))
        assert found.pop(commit) == "Add billing\nFor the new shop."
        assert found == {
            "README.md#Billing": "What customers owe.",
            "README.md#Rounding rules": "Totals are rounded half up to whole cents.",
            "docs/taxes.md#Taxes": (
                "The tax rate of a country comes from `tax_rates.csv`.\n\n```sh\n# no heading\nmake\n```"
            ),
            "docs/notes.txt": "Refunds are paid within ten days.",
            "billing.py": "Money in whole cents.",
            "billing.py#Invoice": "What one customer owes at one time.",
        }

    def test_ignored_files_and_links_are_not_read(self, tmp_path: Path) -> None:
        (tmp_path / "secret.md").write_text("do not read")
        root = make_repository(tmp_path / "r", {".gitignore": "build.md\n", "a.md": "yes"})
        (root / "build.md").write_text("do not read")
        (root / "link.md").symlink_to("../secret.md")
        (root / "deep").symlink_to(tmp_path)
        texts = [passage.text for passage in passages(str(root), seconds=10)]
        assert "yes" in texts
        assert "do not read" not in texts

    def test_long_sections_are_cut_between_paragraphs(self, tmp_path: Path) -> None:
        paragraphs = [f"{number} " + "word " * 60 for number in range(20)]
        (tmp_path / "a.md").write_text("# Long\n\n" + "\n\n".join(paragraphs) + "\n\n" + "x" * (3 * MAX_CHARS))
        found = passages(str(tmp_path.resolve()), seconds=10)
        assert all(len(passage.text) <= MAX_CHARS for passage in found)
        assert {passage.source for passage in found} == {"a.md#Long"}
        joined = "".join(passage.text for passage in found)
        assert [f"{number} word" in joined for number in range(20)] == [True] * 20
        assert joined.count("x") >= 3 * MAX_CHARS


class TestRecall:
    def test_entities_by_name_queries_by_weight(self) -> None:
        found = [
            Passage("a.md#Invoices", "An Invoice lists what is owed."),
            Passage("b.md", "Totals are rounded half up."),
            Passage("c.md", "Invoicing is not meant."),
        ]
        request = {"entities": ["Invoice", "Stripe"], "queries": ["rounded totals", "deployment"], "threshold": 0.5}
        answer = recall(found, {**request, "hits": 2})
        assert answer["found"] == [
            {"asked": "Invoice", "passages": [0]},
            {"asked": "Stripe", "passages": []},
            {"asked": "rounded totals", "passages": [1]},
            {"asked": "deployment", "passages": []},
        ]
        assert answer["passages"] == [
            {"source": "a.md#Invoices", "text": "An Invoice lists what is owed."},
            {"source": "b.md", "text": "Totals are rounded half up."},
        ]

    def test_what_is_called_just_that_comes_first(self) -> None:
        sources = ("x.py#Invoice.total", "a.md#On invoices", "x.py#billing.Invoice", "b.md#invoice", "Invoice")
        found = [Passage(source, "The Invoice." + " More words." * (5 * n)) for n, source in enumerate(sources)]
        request = {"entities": ["Invoice"], "queries": [], "threshold": 0.5, "hits": 3}
        shown: Any = recall(found, request)["passages"]
        assert {each["source"] for each in shown} == {"x.py#billing.Invoice", "b.md#invoice", "Invoice"}

    def test_the_program_needs_nothing_but_the_standard_library(self, tmp_path: Path) -> None:
        import swe_ai_fleet.agents.sub_agents.recall as package

        directory = Path(package.__file__).parent
        program = (
            "import sys; sys.path[:] = [sys.argv[1], *sys.path]; from recall.program import main; main(sys.argv[2])"
        )
        (tmp_path / "a.md").write_text("hello")
        request = json.dumps({"entities": ["hello"], "queries": [], "threshold": 0.5, "hits": 1, "seconds": 5})
        argv = [sys.executable, "-I", "-S", "-c", program, str(directory.parent), request]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=True)
        assert json.loads(done.stdout)["passages"] == [{"source": "a.md", "text": "hello"}]


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
    async def test_in_the_sandbox(self, tmp_path: Path) -> None:
        root = make_repository(tmp_path / "r", FILES, message="Add billing")
        commit_files(root, {"x.py": "x = 1\n"}, message="Ship to Norway\n\nCustoms forms are printed in Oslo.")
        async with open_workspace(root) as workspace:
            found = await RepositoryMemory(workspace).search(
                ["Invoice", "invoice", "Stripe"], ["how are totals rounded?", "customs forms"]
            )
        assert (found.coverage, found.gaps) == (80.0, ("Stripe",))
        assert "README.md#Rounding rules" in found.sources
        assert "billing.py#Invoice" in found.sources
        assert any(source.startswith("commit ") for source in found.sources)
        assert "[README.md#Rounding rules]\nTotals are rounded half up to whole cents." in found.content

    @pytest.mark.parametrize(
        "text", ["", "{}", "[]", '{"found": [], "passages": [], "searched": "1"}', "x" * 1000, '{"found": null}']
    )
    async def test_a_program_that_was_tampered_with(self, text: str) -> None:
        with pytest.raises(ToolFailure, match="gave no proper answer"):
            await RepositoryMemory(answered(text)).search(["a"], [])

    async def test_a_program_that_fails_or_hangs(self) -> None:
        with pytest.raises(ToolFailure, match="the search failed: boom"):
            await RepositoryMemory(answered("boom", exit_code=1)).search(["a"], [])
        with pytest.raises(ToolTimeout, match="did not end within"):
            await RepositoryMemory(answered("", timed_out=True)).search(["a"], [])
