import assert from "node:assert/strict";
import { test } from "node:test";
import { between, wordMarks } from "../src/diff/between";

const head = (path: string) => `diff --git a/${path} b/${path}\n--- a/${path}\n+++ b/${path}\n`;
const drawn = (one: string, other: string) =>
  between(one, other).map((file) => [
    file.newPath,
    ...file.hunks.map((hunk) => [hunk.header, ...hunk.lines.map((line) => line.kind + line.text)]),
  ]);

test("two changes of one file differ in what each alone puts there", () => {
  const one = `${head("a.py")}@@ -2,3 +2,5 @@\n def one():\n     return 1\n+def two():\n+    return 3\n # end\n`;
  const other = `${head("a.py")}@@ -3,2 +3,5 @@\n     return 1\n+def two():\n+    # Twice one.\n+    return 2\n # end\n`;
  assert.deepEqual(drawn(one, other), [
    [
      "a.py",
      ["@@ -2,5 +2,6 @@", " def one():", "     return 1", " def two():", "-    return 3", "+    # Twice one.", "+    return 2", " # end"],
    ],
  ]);
  assert.deepEqual(between(one, one), []);
});

test("what only one of them touches is shown against the commit's own lines, at its own numbers", () => {
  const one = `${head("a.py")}@@ -1,2 +1,3 @@\n+import os\n x = 1\n y = 2\n@@ -40,2 +41,1 @@\n-old\n last\n`;
  const two = `${head("a.py")}@@ -1,2 +1,3 @@\n+import os\n x = 1\n y = 2\n${head("b.py")}@@ -0,0 +1,1 @@\n+new\n`;
  assert.deepEqual(drawn(one, two), [
    ["a.py", ["@@ -41,1 +41,2 @@", "+old", " last"]],
    ["b.py", ["@@ -1,0 +1,1 @@", "+new"]],
  ]);
});

test("words that differ are marked, lines that have little in common are not", () => {
  const marks = wordMarks("    return 'Hi'", "    return 'Hello'");
  assert.deepEqual(marks, [[[12, 14]], [[12, 17]]]);
  assert.equal(wordMarks("import os", "def hello_world():"), undefined);
  assert.equal(wordMarks("x".repeat(2_000), "y"), undefined);
});
