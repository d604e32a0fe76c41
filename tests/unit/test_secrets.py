"""Masking by value: every form, every place, every chunking, every cut."""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
import time
from urllib.parse import quote, quote_plus, unquote

from hypothesis import example, given
from hypothesis import strategies as st

from swe_ai_fleet.domain.command import Output
from swe_ai_fleet.tools.secrets import MASK, Secrets
from tests.tables import table

TOKEN = "hunter2-token/+=? \"é\\n'&<b>"
PIECE = 4
"""So many characters of a secret may never be seen at a cut."""

# Brackets stand in the mask itself; digits and spaces stand in notes of cuts.
values = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="[].…0123456789"), min_size=6, max_size=30
)
surroundings = st.text(st.characters(max_codepoint=0x2FF), max_size=30)
ESCAPE_BEGUN = re.compile(r"[%&\\#][0-9A-Za-z#]{0,9}\Z")
"""What comes before must not make an escape together with the value's first letters."""
harmless = st.text(st.sampled_from("abc \n%41\\u.&;[]=\u00e9\ud83d"), max_size=120)


def written(value: str) -> dict[str, str]:
    """A value as other programs write it."""
    raw = value.encode()
    wrapped = base64.encodebytes(b"padding " + raw * 3).decode()
    return {
        "plain": value,
        "capitals": value.upper(),
        "base64": base64.b64encode(raw).decode(),
        "base64 in a longer text": base64.b64encode(b"x" + raw + b"yz").decode(),
        "base64 of basic authentication": base64.b64encode(b"ab:" + raw).decode(),
        "base64, URL-safe": base64.urlsafe_b64encode(b"xy" + raw).decode(),
        "base64 in lines": wrapped,
        "base64 in lines, indented": wrapped.replace("\n", "\n    "),
        "base64 of JSON": base64.b64encode(json.dumps({"key": value}).encode()).decode(),
        "hexadecimal": raw.hex(),
        "hexadecimal in capitals": raw.hex().upper(),
        "hexadecimal in lines": "\n".join(raw.hex()[i : i + 8] for i in range(0, len(raw.hex()), 8)),
        "quoted": quote(value, safe=""),
        "quoted in small letters": "".join(f"%{byte:02x}" for byte in raw),
        "quoted partly": quote(value, safe="/+=?&<>'\""),
        "quoted as a form": quote_plus(value),
        "quoted twice": quote(quote(value, safe=""), safe=""),
        "JSON": json.dumps(value),
        "JSON, not only ASCII": json.dumps(value, ensure_ascii=False),
        "JSON in JSON": json.dumps(json.dumps({"key": value})),
        "JSON, every character": "".join(f"\\u{ord(character):04X}" for character in value),
        "JSON with slashes escaped": json.dumps(value).replace("/", "\\/"),
        "Python": repr(value),
        "Python bytes": repr(raw),
        "shell": shlex.quote(value) if "'" not in value else value,
        "shell, backslashes": "".join(c if c.isalnum() or ord(c) > 127 else f"\\{c}" for c in value),
        "HTML": html.escape(value),
        "HTML, numbers": "".join(f"&#{ord(character)};" for character in value),
        "git": "".join(map(as_git_writes, value)),
    }


def as_git_writes(character: str) -> str:
    """A character of a file name as git quotes it."""
    if character in '"\\':
        return f"\\{character}"
    return character if " " <= character <= "~" else "".join(f"\\{byte:03o}" for byte in character.encode())


@table("form", written(TOKEN))
@table("value", [TOKEN, "hunter2-hunter2", "5up3r%41s3cr3t&amp;\\x41"])
def test_every_form_is_masked(value: str, form: str) -> None:
    text = written(value)[form]
    masked = Secrets([value])(f"before: {text} :after")
    assert masked.startswith("before: ") and masked.endswith(" :after")
    assert MASK in masked
    left = masked.removeprefix("before: ").removesuffix(" :after").replace(MASK, "")
    # What is left are quotes, padding, and what stood before and after the value within its base64.
    assert len(left) <= len("cGFkZGluZyBcImtleVwiOiA") + form.count("lines") * 16, masked


class TestProperties:
    @given(value=values, before=surroundings, after=surroundings)
    @example(value="00000é", before="\\", after="")
    @example(value='"00000', before="\\", after="\\")
    @example(value="a%41bcd", before="%", after="41")
    def test_no_form_survives(self, value: str, before: str, after: str) -> None:
        mask = Secrets([value])
        for name, form in written(value).items():
            if name.endswith(("capitals", "base64 of JSON")):
                continue  # not every letter has a capital that leads back to it; see the table above
            if name != "plain" and ESCAPE_BEGUN.search(before):
                continue
            masked = mask(before + form + after)
            assert MASK in masked, name
            assert form not in masked, name
            assert value not in masked, name

    @given(known=st.lists(values, min_size=1, max_size=4), text=harmless, data=st.data())
    def test_secrets_that_overlap_in_any_way(self, known: list[str], text: str, data: st.DataObject) -> None:
        order = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=6))
        for value in order:
            shared = data.draw(st.integers(0, 4))
            text = text + value[shared if text.endswith(value[:shared]) else 0 :]
        masked = Secrets(known)(text)
        for value in known:
            assert value not in masked

    @given(value=values, text=harmless)
    def test_text_without_a_piece_of_a_secret_is_left_alone(self, value: str, text: str) -> None:
        lowered = text.lower()
        if any(value.lower()[i : i + PIECE] in lowered for i in range(len(value) - PIECE + 1)):
            return
        assert Secrets([f"zq{value}qz"])(text) == text.replace(f"zq{value}qz", MASK)
        assert Secrets([text[:5]])(text) == text

    @given(value=values, before=surroundings, after=surroundings, data=st.data())
    @example(value="abcdef", before="", after="", data=None)
    def test_any_chunking(self, value: str, before: str, after: str, data: st.DataObject | None) -> None:
        mask = Secrets([value])
        name = data.draw(st.sampled_from(list(written(value)))) if data else "plain"
        text = before + written(value)[name] + after + value
        shown, stream = "", mask.stream()
        position = 0
        while position < len(text):
            step = data.draw(st.integers(1, 12)) if data else 1
            shown += stream.feed(text[position : position + step])
            position += step
        shown += stream.finish()
        assert value not in shown
        if not ESCAPE_BEGUN.search(before):
            assert written(value)[name] not in shown
        if name in ("plain", "quoted", "hexadecimal", "JSON"):
            # In base64 a character that a secret shares with what precedes it may have been shown already.
            assert shown == mask(text)

    @given(
        value=values.filter(lambda value: not set("xy") & set(value)),
        encoding=st.sampled_from(["plain", "quoted", "hexadecimal", "base64"]),
        head=st.integers(0, 60),
        tail=st.integers(0, 60),
        line=st.booleans(),
    )
    def test_any_cut_of_a_flood(self, value: str, encoding: str, head: int, tail: int, line: bool) -> None:
        form = written(value)[encoding]
        kept_form = form.rstrip("=")[:-1] if encoding == "base64" else form  # the last one mixes with the padding
        whole = (("x\n" if line else "xy") + form + "xyxyxyxyxyx" + form + "xy").encode()
        head, tail = min(head, len(whole)), min(tail, len(whole))
        if head + tail >= len(whole):
            return
        output = Output(head=whole[:head], tail=whole[len(whole) - tail :], total=len(whole))
        masked = Secrets([value])(output.text())
        for kept in masked.replace("bytes left out", "").split("..."):
            shown = kept.strip("\n[] ")
            assert not shows(*((value, unquote(shown)) if encoding == "quoted" else (kept_form, shown))), masked


def shows(form: str, text: str) -> bool:
    """Whether four characters of a form that are not there by chance can be read."""
    pieces = {form[i : i + PIECE] for i in range(len(form) - PIECE + 1)}
    return any(piece in text.replace(MASK, "") for piece in pieces if piece not in "xyxyxy")


class TestValues:
    def test_a_value_read_from_a_file_short_ones_and_what_a_stream_holds_back(self) -> None:
        assert Secrets(["short", ""])("short") == "short"
        assert Secrets(["hunter2-token\n"])("Bearer hunter2-token!") == f"Bearer {MASK}!"
        stream = Secrets(["hunter2-token"]).stream()
        fed = ("the key is ", "hun", "gry? no: hunter2-t", "oken, he said")
        assert [stream.feed(text) for text in fed] == ["the key is ", "", "hungry? no: ", f"{MASK}, he said"]
        assert stream.finish() == ""

    @table("line_end", ["\n", "\r\n", "\\n", "\n    "])
    def test_a_private_key(self, line_end: str) -> None:
        body = base64.b64encode(bytes(range(256))).decode()
        lines = [body[i : i + 64] for i in range(0, len(body), 64)]
        key = "\n".join(["-----BEGIN PRIVATE KEY-----", *lines, "-----END PRIVATE KEY-----"]) + "\n"
        mask = Secrets([key])
        shown = mask(line_end.join(["x", *key.splitlines(), "y"]))
        assert not any(line[:8] in shown for line in lines)
        assert mask(f"  12 | {lines[1]}") == f"  12 | {MASK}"
        assert lines[0][:20] not in mask("".join(lines))
        # What stands in every key is no secret.
        assert mask("-----BEGIN PRIVATE KEY-----") == "-----BEGIN PRIVATE KEY-----"


class TestCuts:
    @table(
        ("text", "shown"),
        [
            ("key=hunter2-\n[... 40 bytes left out ...]\n", f"key={MASK}\n[... 40 bytes left out ...]\n"),
            ("[... 40 bytes left out ...]\n6789\nend", f"[... 40 bytes left out ...]\n{MASK}\nend"),
            ("key=hunter…", f"key={MASK}…"), ("key=hunt...", f"key={MASK}..."), ("hun... 789", "hun... 789"),
            ("[...]\noken-0123456789 end", f"[...]\n{MASK} end"), ("key=hunter2-t", f"key={MASK}"),
            ("en-0123456789 end", f"{MASK} end"), ("the hunter", "the hunter"),
        ],
    )  # fmt: skip
    def test_what_a_cut_leaves_of_a_secret_is_masked(self, text: str, shown: str) -> None:
        assert Secrets(["hunter2-token-0123456789"])(text) == shown

    def test_in_the_middle_of_an_escape(self) -> None:
        mask, cut = Secrets(["pass/wörd/word"]), "\n[... 9 bytes left out ...]\n"
        assert "pass" not in mask(f"pass%2{cut}")
        assert "rd" not in mask(f"{cut}B6rd%2Fword").replace("word", "")
        assert "word" not in mask(f"{cut}Fword")


@table("pattern", ["%41", "\\", "...", "a", " \n", "&amp;"])
def test_no_text_makes_it_slow(pattern: str) -> None:
    many = [base64.b64encode(bytes([number] * 24)).decode() + str(number) for number in range(50)]
    mask = Secrets(["aaaaaaaa", "hunter2-token", "-----BEGIN KEY-----\nabcdefgh\n...secret\n", *many])
    started = time.perf_counter()
    mask(pattern * (60_000 // len(pattern)))
    assert time.perf_counter() - started < 15
