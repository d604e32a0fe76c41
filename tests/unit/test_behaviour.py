"""Equal behaviour: what a normalised patch leaves out, and what it must not."""

from __future__ import annotations

import difflib
from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.candidate import Artifacts, Candidate
from swe_ai_fleet.in_process import MemoryLog
from swe_ai_fleet.orchestrator.ranking import MAX_COMPARED_BYTES, behaviour_keys, normalised
from tests.candidates import a_candidate

MODE = "old mode 100644\nnew mode 100755\n"


def patch(old: list[str], new: list[str], *, path: str = "a.py", context: int = 3, header: str = "") -> bytes:
    """What git would say of two versions of a file, with so many lines of context."""
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=context, lineterm="")
    head = f"diff --git a/{path} b/{path}\n{header}index {len(old):07x}..{len(new):07x} 100644\n"
    return (head + "".join(f"{line}\n" for line in lines)).encode()


def content(lines: list[str]) -> list[str]:
    return [line.rstrip(" \t") for line in lines if line.strip(" \t\r")]


lines = st.lists(
    st.sampled_from(["a", "b", "b ", "", " ", "  c", "c", "-- d", "++ e", "@@ -1 +1 @@", "\\ f"]), max_size=9
)


@example(["a", "b"], ["a", "x", "b"], ["a", "b", "x"])
@given(lines, lines, lines)
def test_what_is_called_equal_is_equal_but_for_blanks(old: list[str], one: list[str], other: list[str]) -> None:
    first, second = normalised(patch(old, one)), normalised(patch(old, other))
    assert first is not None
    assert second is not None
    if first == second:
        assert content(one) == content(other)


@example(list("abcdef"), list("abcxdef"), 0, 3)
@given(lines, lines, st.integers(0, 9), st.integers(0, 9))
def test_context_and_the_cut_of_hunks_do_not_count(old: list[str], new: list[str], one: int, other: int) -> None:
    filled = [f"line {number}" if not content([line]) else line for number, line in enumerate(old)]
    assert normalised(patch(filled, new, context=one)) == normalised(patch(filled, new, context=other))


@given(lines, lines, st.lists(st.integers(0, 9), max_size=3))
def test_blank_lines_and_blanks_at_line_ends_do_not_count(old: list[str], new: list[str], at: list[int]) -> None:
    solid = [f"{number} {line}".rstrip() for number, line in enumerate(old)]
    kept = [line for number, line in enumerate(solid) if number % 3] + content(new)
    blanks = list(kept)
    for position in at:
        blanks.insert(position, " ")
    spaced = [f"{line} \t" for line in blanks]
    assert normalised(patch(solid, kept)) == normalised(patch(solid, blanks))
    # Where git sees every line changed it may align otherwise; then they stay apart, which costs a place, no more.
    assert normalised(patch([], kept)) == normalised(patch([], spaced))


def test_a_change_of_blanks_only_is_no_change() -> None:
    assert normalised(patch(["a", "b"], ["a", "", "b  "])) == normalised(b"") == b""
    bare = b"diff --git a/x b/x\n@@ -1,3 +1,3 @@\n a\n\n-b\n+c\n"
    assert normalised(bare) == normalised(bare.replace(b"\n\n", b"\n \n"))
    # Nor do blanks at the end of the lines around a change count.
    plain = normalised(patch(["a", "b", "c"], ["a", "x", "c"]))
    for old, new in ((["a ", "b", "c"], ["a", "x", "c\t"]), (["a", "b", "", "c"], ["a ", "x ", "c "])):
        assert normalised(patch(old, new)) == plain


def test_the_order_of_files_does_not_count() -> None:
    one, other = patch(["a"], ["b"]), patch(["c"], ["d"], path="b.py")
    assert normalised(one + other) == normalised(other + one)
    assert normalised(one + other) != normalised(one)


def test_indentation_modes_names_and_binary_contents_count() -> None:
    plain = patch(["a"], ["b"])
    assert normalised(patch(["a"], ["  b"])) != normalised(plain)
    assert normalised(patch(["a"], ["b"], header=MODE)) != normalised(plain)
    assert normalised(patch(["a"], ["b"], path="c.py")) != normalised(plain)
    binary = b"diff --git a/x.png b/x.png\nindex 1..%d 100644\nBinary files a/x.png and b/x.png differ\n"
    assert normalised(binary % 2) != normalised(binary % 3)
    data = b"diff --git a/x b/x\nindex 1..2\nGIT binary patch\nliteral 3\nKc%s\n\nliteral 0\nHc\n\n"
    assert normalised(data % b"AAA") != normalised(data % b"BBB")


@given(st.binary(max_size=300))
@example(b"diff --git a/x b/x\n@@ -1,999999999 +1,999999999 @@\n x\n")
@example(b"not a patch\n")
def test_what_is_no_patch_has_no_form(data: bytes) -> None:
    form = normalised(data)
    assert form is None or form == b"" or data.startswith(b"diff --git ") or b"\ndiff --git " in data


async def test_keys_are_those_of_the_change_or_of_the_bytes() -> None:
    blobs = MemoryLog()

    async def candidate(name: str, data: bytes | None, *, kept: bool = True, size: int = 0) -> Candidate:
        ref: BlobRef | None = None
        if data is not None:
            ref = await (blobs if kept else MemoryLog()).put("t", "e", data, "text/x-diff")
            ref = replace(ref, size=size or ref.size)
        return a_candidate(name, artifacts=Artifacts(patch=ref))

    tidy, spaced = patch(["a"], ["b"]), patch(["a"], ["", "b "])
    keys = await behaviour_keys(
        [
            await candidate("tidy", tidy),
            await candidate("spaced", spaced),
            await candidate("other", patch(["a"], ["c"])),
            await candidate("none", None),
            await candidate("strange", b"??"),
            await candidate("gone", b"gone", kept=False),
            await candidate("huge", patch(["a"], ["", "", "b"]), size=MAX_COMPARED_BYTES + 1),
        ],
        blobs,
    )
    assert keys["tidy"] == keys["spaced"]
    assert keys["none"] == ""
    assert len(set(keys.values())) == 6


def test_a_patch_that_is_cut_off_or_torn_has_no_form() -> None:
    head, *hunk = patch(["a", "b", "c"], ["a", "x", "c"]).split(b"\n")[:-1]
    whole = [head, *hunk]
    assert normalised(b"\n".join([*whole, b""])) is not None
    assert normalised(b"\n".join(whole[:-1])) is None
    assert normalised(b"diff --git a/x b/x\n@@ -1 +1 @@\n-a\n+b\n") is not None, "one line has no count"
    removing, adding = patch(["a", "b"], []).split(b"\n")[:-2], patch([], ["a", "b"]).split(b"\n")[:-2]
    assert normalised(b"\n".join(removing)) is None
    assert normalised(b"\n".join(adding)) is None
    assert normalised(b"\n".join([*whole[:-1], b"torn"])) is None
