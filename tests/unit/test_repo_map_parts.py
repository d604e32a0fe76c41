"""The parts of the map of a repository: tags, ranks, cache, parsing in a child."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.testing.repositories import write_files
from swe_ai_fleet.tools.repo_map.tags import MAX_DEFINITIONS, MAX_NAME_CHARS, MAX_SIGNATURE_CHARS, dump, extract, load

SAMPLES = {
    "c": (
        "#define LIMIT 3\nstruct point { int x; };\n"
        "static int add(struct point *p,\n    int y) {\n  return go(p->x);\n}\n",
        {"LIMIT": "#define LIMIT 3", "point": "struct point", "add": "static int add(struct point *p, int y)"},
        {"go", "x", "point"},
    ),
    "cpp": (
        "namespace shop {\nclass Cart : public Base {\n public:\n  int total(int tax) { return sum(tax); }\n};\n"
        "int Cart::count() { return items.size(); }\n}\n",
        {"shop": "namespace shop", "Cart": "class Cart : public Base", "total": "int total(int tax)"},
        {"Base", "sum", "size"},
    ),
    "go": (
        "package a\ntype Cart struct{ items []Item }\nfunc (c *Cart) Total(tax int) int { return sum(c.items) }\n"
        "func New() *Cart { return &Cart{} }\nconst Limit = 3\n",
        {"Cart": "type Cart struct{ items []Item }", "Total": "func (c *Cart) Total(tax int) int"},
        {"Item", "sum", "Cart", "items"},
    ),
    "java": (
        "public class Cart extends Base {\n  public int total(int tax) { return Sums.of(tax, new Item()); }\n}\n"
        "interface Shop { void open(); }\n",
        {"Cart": "public class Cart extends Base", "total": "public int total(int tax)", "Shop": "interface Shop"},
        {"Base", "of", "Item", "Sums"},
    ),
    "javascript": (
        "import { tax } from './tax';\nexport class Cart extends Base { total(rate) { return sum(this.items); } }\n"
        "export const open = async (shop) => { return <Door kind={1} />; };\n",
        {"Cart": "export class Cart extends Base", "total": "export class Cart extends Base { total(rate)"},
        {"tax", "Base", "sum", "items", "Door"},
    ),
    "python": (
        "LIMIT = 3\n\nclass Cart(Base):\n    @cached\n"
        "    async def total(\n        self,\n        tax: Rate,\n    ) -> int:\n"
        "        def local(): ...\n        return sums.of(local, tax)\n",
        {"LIMIT": "LIMIT = 3", "Cart": "class Cart(Base)", "total": "async def total(self, tax: Rate) -> int"},
        {"Base", "cached", "Rate", "of", "local"},
    ),
    "ruby": (
        "module Shop\n  class Cart < Base\n    def total(tax)\n      Item.sum(tax)\n    end\n  end\nend\n",
        {"Shop": "module Shop", "Cart": "class Cart < Base", "total": "def total(tax)"},
        {"Base", "Item", "sum"},
    ),
    "rust": (
        "pub struct Cart { items: Vec<Item> }\n"
        "impl Cart {\n    pub fn total(&self, tax: Rate) -> u32 { sum(self.items) }\n}\n"
        "trait Shop { fn open(&self); }\nconst LIMIT: u32 = 3;\n",
        {"Cart": "pub struct Cart", "total": "pub fn total(&self, tax: Rate) -> u32", "Shop": "trait Shop"},
        {"Item", "Rate", "sum", "items", "Cart"},
    ),
    "typescript": (
        "export interface Shop { open(door: Door): void }\nexport type Rate = number;\nenum Kind { A }\n"
        "export abstract class Cart extends Base implements Shop { total(tax: Rate): Sum { return sum(tax); } }\n",
        {"Shop": "export interface Shop", "Rate": "export type Rate = number;", "Kind": "enum Kind"},
        {"Door", "Base", "Sum", "sum", "Shop", "Rate"},
    ),
    "tsx": (
        "export const Page = (props: Props) => <Door open={shut(props)} />;\n"
        "function App(): Tree { return <Page />; }\n",
        {"Page": "export const Page = (props: Props) =>", "App": "function App(): Tree"},
        {"Props", "Door", "shut", "Tree", "Page"},
    ),
}  # fmt: skip


class TestTags:
    @pytest.mark.parametrize("language", SAMPLES)
    def test_each_language_has_definitions_and_references(self, language: str) -> None:
        source, definitions, references = SAMPLES[language]
        tags = extract(language, source.encode())
        found = {tag.name: tag.signature.rstrip("=> ") for tag in tags.definitions}
        assert {name: found[name] for name in definitions} == {n: s.rstrip("=> ") for n, s in definitions.items()}
        assert references <= tags.references.keys(), tags.references

    def test_what_is_local_is_left_out_and_methods_know_their_class(self) -> None:
        tags = extract("python", SAMPLES["python"][0].encode())
        found = [(tag.name, tag.line, tag.parent) for tag in tags.definitions]
        assert found == [("LIMIT", 1, -1), ("Cart", 3, -1), ("total", 5, 1)]
        assert "Cart" not in tags.references, "where a name is defined is no use of it"

    @pytest.mark.parametrize(
        "source",
        [
            b"(" * 20_000, b"def f(" + b"x, " * 50_000 + b"): pass\n", b"class " + b"A" * 100_000 + b": pass\n",
            "def caf\u00e9(\u202e\u0007): pass\n".encode(), b"\xff\xfe\x00def x(): pass\n", b"",
            b"".join(b"def f%d(): g%d()\n" % (number, number) for number in range(6_000)),
        ],
        ids=range(7),
    )  # fmt: skip
    def test_hostile_sources_give_bounded_printable_tags(self, source: bytes) -> None:
        tags = extract("python", source)
        assert len(tags.definitions) <= MAX_DEFINITIONS
        for tag in tags.definitions:
            assert len(tag.name) <= MAX_NAME_CHARS and len(tag.signature) <= MAX_SIGNATURE_CHARS
            assert tag.signature.isprintable()
        assert load(dump(tags)) == tags

    @given(st.binary(max_size=300))
    def test_any_bytes_are_parsed_in_any_language(self, source: bytes) -> None:
        for language in SAMPLES:
            tags = extract(language, source)
            assert load(dump(tags)) == tags


CHILD = """
import json, os, signal, sys
from swe_ai_fleet.tools.repo_map.listing import SourceFile
from swe_ai_fleet.tools.repo_map.parsing import parse_files
from swe_ai_fleet.tools.repo_map.tags import extract

def by(language, source):
    if b"crash" in source:
        os.kill(os.getpid(), signal.SIGSEGV)
    if b"hang" in source:
        signal.pause()
    if b"ours" in source:
        raise ImportError("no parser")
    if b"memory" in source:
        raise MemoryError
    return extract(language, source)

files = [SourceFile(path=name, language="python", digest="0" * 40) for name in sys.argv[1:]]
for file, tags, same in parse_files(os.getcwd(), files, seconds=60, file_seconds=0.5, by=by):
    print(file.path, None if tags is None else [tag.name for tag in tags.definitions], same)
"""


def test_a_crash_or_a_hang_costs_one_file(tmp_path: Path) -> None:
    """In a process of its own: what it forks must not be a copy of the test run."""
    write_files(tmp_path, {"a.py": "def a(): ...\n"})
    write_files(tmp_path, {f"{word}.py": f"def {word}(): ...\n" for word in ("crash", "hang", "memory")})
    argv = [sys.executable, "-c", CHILD, *["a.py", "crash.py", "hang.py", "absent.py", "memory.py", "a.py"]]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "a.py ['a'] False", "crash.py [] True", "hang.py [] True", "absent.py None False", "memory.py [] False",
        "a.py ['a'] False",
    ]  # fmt: skip


def test_what_there_was_no_time_for_is_said_and_such_a_map_is_not_kept(tmp_path: Path) -> None:
    write_files(tmp_path, {"src/a.py": "def a(): ...\n", "src/b.go": "package b\n"})
    request = {"scope": ".", "focus": [], "max_tokens": 100, "seconds": 0, "known": []}
    program = "import sys; from swe_ai_fleet.tools.repo_map.program import main; main(sys.argv[1])"
    argv = [sys.executable, "-c", program, json.dumps(request)]
    answer = json.loads(subprocess.run(argv, cwd=tmp_path, env={}, capture_output=True, check=True, timeout=60).stdout)
    assert (answer["key"], answer["text"], answer["unread"]) == ("", "", 2)
