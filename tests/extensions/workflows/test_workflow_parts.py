"""References, conditions, the order of graphs, pictures and messages of workflows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.event import NodeUpdated
from swe_ai_fleet.domain.workflow import BranchCase, Condition, Edge, Node, NodeStatus, NodeType, Workflow
from swe_ai_fleet.extensions.workflows import mermaid
from swe_ai_fleet.extensions.workflows.conditions import condition_of, holds, verify
from swe_ai_fleet.extensions.workflows.node_inputs import answer_output
from swe_ai_fleet.extensions.workflows.references import BadReference, NodeValue, Scope, parsed, references_in, resolved

SCOPE = Scope(
    inputs={"name": "Ada", "n": 3, "list": [1, {"deep": [True, None]}], "none": None, "odd key": {"a b": 1}},
    nodes={
        "a": NodeValue(output={"text": "hello", "2": "two"}, status="completed", label="yes"),
        "failed": NodeValue(output={"error": "broke"}, status="failed", error="broke"),
        "skipped": NodeValue(status="skipped"),
    },
    item={"x": 1},
    index=4,
    has_item=True,
)


class TestReferences:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("${inputs.name}", "Ada"),
            ("${ inputs.n }", 3),
            ("n=${inputs.n}, ${inputs.name}!", "n=3, Ada!"),
            ("${inputs.list}", [1, {"deep": [True, None]}]),
            ("${inputs.list[1].deep[0]}", True),
            ('${inputs["odd key"]["a b"]}', 1),
            ("of ${inputs.list}", 'of [1, {"deep": [true, null]}]'),
            ("${nodes.a.output.text}", "hello"),
            ("${nodes.a.output[2]}", "two"),
            ("${nodes.a.status} ${nodes.a.label}", "completed yes"),
            ("${nodes.failed.error}", "broke"),
            ("${nodes.skipped.output.any.thing[3]}", None),
            ("<${nodes.skipped.output}>", "<>"),
            ("${item.x}${index}", "14"),
            ("${item}", {"x": 1}),
            ("$${inputs.name}", "${inputs.name}"),
            ("$$${inputs.name}", "$${inputs.name}"),
            ("$5 {a} $ $$", "$5 {a} $ $$"),
        ],
    )
    def test_what_they_name(self, text: str, value: object) -> None:
        assert resolved(text, SCOPE) == value

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("${inputs.nam}", "there is no input 'nam' (there are: name, n, list, none, odd key)"),
            ("${inputs.list[7]}", "there is no [7] in a list of 2"),
            ("${inputs.name.x}", "a value of type string has no 'x'"),
            ("${inputs.none.x}", "a value of type null has no 'x'"),
            ("${nodes.b.output}", "node 'b' has given nothing yet"),
            ("${nodes.a.output.x}", "there is no 'x' (there are: text, 2)"),
            ("${nodes.a.inputs}", "is not a reference"),
            ("${env.HOME}", "is not a reference"),
            ("${__class__}", "is not a reference"),
            ("${inputs.a..b}", "is not a reference"),
            ("${inputs.name", "has no closing brace"),
            ("${" + "x" * 1000 + "}", "has no closing brace"),
        ],
    )
    def test_what_names_nothing(self, text: str, said: str) -> None:
        with pytest.raises(BadReference) as caught:
            resolved(text, SCOPE)
        assert said in str(caught.value)

    def test_all_texts_of_a_value_but_no_keys_and_not_twice(self) -> None:
        value = {"${inputs.n}": ["${inputs.n}", {"x": "a${inputs.n}"}], "y": 1.5}
        assert resolved(value, SCOPE) == {"${inputs.n}": [3, {"x": "a3"}], "y": 1.5}
        assert resolved("a ${inputs.x}", Scope(inputs={"x": "${inputs.y}"})) == "a ${inputs.y}"

    def test_it_does_not_grow_without_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("swe_ai_fleet.extensions.workflows.references.MAX_CHARS", 1000)
        scope = Scope(inputs={"x": "y" * 90, "l": ["y" * 90]})
        assert len(resolved("${inputs.x}" * 11, scope)) == 990
        for value in ("${inputs.x}" * 12, ["${inputs.x}"] * 12, ["${inputs.l}"] * 12, {"a": ["_${inputs.l}"] * 12}):
            with pytest.raises(BadReference, match="longer than 1000"):
                resolved(value, scope)

    def test_too_deep(self) -> None:
        value: Any = "x"
        for _ in range(100):
            value = [value]
        with pytest.raises(BadReference, match="levels deep"):
            resolved(value, SCOPE)
        assert [*references_in(value)] == []

    @given(st.text(alphabet='${}.[]"abinputs0 \\', max_size=60))
    def test_any_text_is_read_or_refused(self, text: str) -> None:
        try:
            parts = parsed(text)
        except BadReference:
            return
        plain = "".join(part if isinstance(part, str) else part.text for part in parts)
        assert len(plain) <= len(text)


def when(ref: str, op: str, value: object = None) -> bool:
    condition = condition_of({"ref": ref, "op": op, "value": value})
    verify(condition)
    return holds(condition, SCOPE)


def test_answers_that_are_json_are_data() -> None:
    for text, data in (
        ('{"ok": true}', {"ok": True}),
        ("```json\n[1, 2]\n```", [1, 2]),
        ("```\n{}\n```", {}),
        ("```python\n[1]\n```", None),
        ("The answer is [1].", None),
        ("42", None),
        ('{"x": NaN}', None),
        ("[" * 100_000, None),
    ):
        assert answer_output(text, model="m") == {"answer": text, "data": data, "model": "m"}, text[:40]


class TestConditions:
    @pytest.mark.parametrize(
        ("ref", "op", "value", "held"),
        [
            ("${inputs.n}", "eq", 3, True), ("${inputs.n}", "eq", 3.0, True), ("${inputs.n}", "eq", "3", False),
            ("${inputs.list[1].deep[0]}", "eq", 1, False), ("${inputs.n}", "ne", 4, True),
            ("${inputs.n}", "lt", 4, True), ("${inputs.n}", "le", 3, True), ("${inputs.n}", "gt", 3, False),
            ("${inputs.n}", "ge", 2.5, True), ("${inputs.name}", "lt", "Bob", True),
            ("${inputs.n}", "in", [1, 3], True), ("${inputs.name}", "in", "Adam", True),
            ("${inputs.list}", "contains", 1, True), ("${inputs.list}", "contains", True, False),
            ("${inputs.name}", "contains", "da", True), ("${nodes.a.output}", "contains", "text", True),
            ("${inputs.none}", "contains", "x", False), ("${inputs.name}", "eq", "${inputs.name}", True),
            ("${inputs.none}", "exists", None, True), ("${inputs.nope}", "exists", None, False),
            ("${inputs.none}", "empty", None, True), ("${inputs.nope.x}", "empty", None, True),
            ("${inputs.n}", "empty", None, False), ("${inputs.n}", "truthy", None, True),
            ("${inputs.nope}", "truthy", None, False), ("${inputs.nope}", "not", None, True),
            ("", "not", {"ref": "${inputs.n}", "value": 3}, False),
            ("", "all", ["${inputs.n}", {"ref": "${inputs.n}", "op": "gt", "value": 1}], True),
            ("", "any", [{"ref": "${inputs.n}", "op": "gt", "value": 9}, "${inputs.nope}"], False),
        ],
    )  # fmt: skip
    def test_each_comparison(self, ref: str, op: str, value: object, held: bool) -> None:
        assert when(ref, op, value) is held

    @pytest.mark.parametrize(
        ("ref", "op", "value", "said"),
        [
            ("${inputs.n}", "lt", "4", "values of type integer and string cannot"),
            ("${inputs.list[1].deep[0]}", "lt", 2, "values of type boolean and integer"),
            ("${inputs.name}", "contains", 3, "a value of type string holds no integer"),
            ("${inputs.n}", "contains", 3, "a value of type integer holds no integer"),
            ("${inputs.nope}", "eq", 3, "there is no input"),
            ("${inputs.n}", "like", 3, "is not a comparison"),
            ("n", "eq", 3, "ref is not a reference"),
            ("${inputs.n}", "exists", 3, "takes no value"),
            ("${inputs.n}", "all", ["${inputs.n}"], "takes conditions as its value and no ref"),
            ("", "all", [], "takes a list of conditions"),
            ("", "any", [3], "a condition is not of type integer"),
            ("", "any", [{"if": 3}], "unknown field in a condition: 'if'"),
            ("", "any", [{"ref": 3}], "must be strings"),
        ],
    )
    def test_what_cannot_be_judged(self, ref: str, op: str, value: object, said: str) -> None:
        with pytest.raises(InvalidRequest, match=said):
            when(ref, op, value)


WORKFLOW = Workflow(
    name="a <b> & 'c'",
    nodes=(
        Node(id="start", type=NodeType.TOOL, tool='say "hi" ]; click<script>'),
        Node(id="which", type=NodeType.BRANCH, cases=(BranchCase(label="x", when=Condition(ref="${inputs.q}")),)),
        Node(id="left", type=NodeType.AGENT, query="q", breakpoint=True, description="ﬁne \x00 \u2028"),
        Node(id="right", type=NodeType.APPROVAL, prompt="?"),
        Node(id="sub", type=NodeType.WORKFLOW, workflow="other"),
        Node(id="each", type=NodeType.MAP, over="${inputs.l}", node=Node(id="i", type=NodeType.TOOL, tool="t")),
    ),
    edges=(
        Edge(source="start", target="which"),
        Edge(source="which", target="left", label='x"<y>'),
        Edge(source="which", target="right", label="no"),
        *(Edge(source=source, target="each") for source in ("left", "right", "start")),
        Edge(source="each", target="sub"),
    ),
)
STANDING = {
    "start": NodeUpdated(node_id="start", status=NodeStatus.COMPLETED),
    "which": NodeUpdated(node_id="which", status=NodeStatus.COMPLETED),
    "left": NodeUpdated(node_id="left", status=NodeStatus.RUNNING),
}


class TestDrawing:
    def test_mermaid(self) -> None:
        assert mermaid(WORKFLOW, STANDING) == (
            "flowchart TD\n"
            '    n0_start["start<br/>say #34;hi#34; #93;#59; click#60;script#62;"]\n'
            '    n1_which{"which<br/>branch"}\n'
            '    n2_left("left<br/>agent")\n'
            '    n3_right[/"right<br/>approval"/]\n'
            '    n4_sub[["sub<br/>other"]]\n'
            '    n5_each[["each<br/>map of tool"]]\n'
            "    n0_start --> n1_which\n"
            '    n1_which -- "x#34;#60;y#62;" --> n2_left\n'
            '    n1_which -- "no" --> n3_right\n'
            "    n2_left --> n5_each\n"
            "    n3_right --> n5_each\n"
            "    n0_start --> n5_each\n"
            "    n5_each --> n4_sub\n"
            "    classDef completed fill:#e8f5e9,stroke:#2e7d32\n"
            "    class n0_start,n1_which completed\n"
            "    classDef running fill:#e3f2fd,stroke:#1565c0\n"
            "    class n2_left running\n"
        )

    @settings(max_examples=50)
    @given(st.text(max_size=60), st.text(max_size=60))
    def test_any_text_is_drawn_safely(self, tool: str, label: str) -> None:
        nodes = (Node(id="a", type=NodeType.TOOL, tool=tool), Node(id="b", type=NodeType.TOOL, tool="t"))
        made = Workflow(name=label, nodes=nodes, edges=(Edge(source="a", target="b", label=label),))
        lines = mermaid(made).splitlines()
        assert len(lines) == 4
        assert lines[1].count('"') == 2
