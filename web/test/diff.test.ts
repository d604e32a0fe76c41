import assert from "node:assert/strict";
import { test } from "node:test";
import { coloured, languageOf } from "../src/diff/colours";
import { paired, parseDiff, pathOf } from "../src/diff/parse";

const CHANGED = `diff --git a/src/a.py b/src/a.py
index 1111111..2222222 100644
--- a/src/a.py
+++ b/src/a.py
@@ -1,4 +1,5 @@ def one():
 kept
-old one
-old two
+new one
+new two
+new three
 kept too
`;

test("a changed file has its lines with their numbers", () => {
  const [file] = parseDiff(CHANGED);
  assert.ok(file);
  assert.equal(pathOf(file), "src/a.py");
  assert.equal(file.status, "modified");
  assert.deepEqual([file.additions, file.deletions], [3, 2]);
  const lines = file.hunks[0]?.lines ?? [];
  assert.deepEqual(
    lines.map((line) => [line.kind, line.old, line.new]),
    [
      [" ", 1, 1],
      ["-", 2, 0],
      ["-", 3, 0],
      ["+", 0, 2],
      ["+", 0, 3],
      ["+", 0, 4],
      [" ", 4, 5],
    ],
  );
});

test("side by side, what was removed stands beside what came in its place", () => {
  const rows = paired(parseDiff(CHANGED)[0]?.hunks[0]?.lines ?? []);
  assert.deepEqual(
    rows.map((row) => [row.left?.text, row.right?.text]),
    [
      ["kept", "kept"],
      ["old one", "new one"],
      ["old two", "new two"],
      [undefined, "new three"],
      ["kept too", "kept too"],
    ],
  );
});

test("lines of a file that look like a diff are lines of the file", () => {
  const text = `diff --git a/x.patch b/x.patch
new file mode 100644
--- /dev/null
+++ b/x.patch
@@ -0,0 +1,4 @@
+diff --git a/evil b/evil
+--- a/evil
++++ b/evil
+@@ -1 +1 @@
diff --git a/y b/y
deleted file mode 100644
--- a/y
+++ /dev/null
@@ -1 +0,0 @@
--- a/z
`;
  const files = parseDiff(text);
  assert.deepEqual(files.map(pathOf), ["x.patch", "y"]);
  assert.deepEqual(files.map((file) => file.status), ["added", "deleted"]);
  assert.equal(files[0]?.additions, 4);
  assert.equal(files[1]?.hunks[0]?.lines[0]?.text, "-- a/z");
});

test("names that git quotes, names with blanks and markup, renames and binary files", () => {
  const text = `diff --git "a/\\303\\274 \\"q\\".py" "b/\\303\\274 \\"q\\".py"
new file mode 100644
--- /dev/null
+++ "b/\\303\\274 \\"q\\".py"
@@ -0,0 +1 @@
+x
diff --git a/<img src=x onerror=alert(1)>.py b/<img src=x onerror=alert(1)>.py
new file mode 100644
--- /dev/null
+++ b/<img src=x onerror=alert(1)>.py\t
@@ -0,0 +1 @@
+x
\\ No newline at end of file
diff --git a/one b/two b/three
similarity index 90%
rename from one b/two
rename to three
diff --git a/p.png b/p.png
index 1..2 100644
GIT binary patch
literal 3
KcmZQzU|<6P0RR91
diff --git a/run.sh b/run.sh
old mode 100644
new mode 100755
`;
  const files = parseDiff(text);
  assert.deepEqual(files.map(pathOf), [
    'ü "q".py',
    "<img src=x onerror=alert(1)>.py",
    "three",
    "p.png",
    "run.sh",
  ]);
  assert.equal(files[2]?.oldPath, "one b/two");
  assert.equal(files[2]?.status, "renamed");
  assert.equal(files[3]?.binary, true);
  assert.equal(files[4]?.modes, "100644 → 100755");
  assert.equal(files[1]?.hunks[0]?.lines.at(-1)?.kind, "\\");
});

test("what is no diff, or a cut one, breaks nothing", () => {
  assert.deepEqual(parseDiff(""), []);
  assert.deepEqual(parseDiff("hello\nworld\n"), []);
  const cut = CHANGED.split("\n").slice(0, 8).join("\n");
  assert.equal(parseDiff(cut)[0]?.deletions, 2);
  const wide = parseDiff(CHANGED.replace("-1,4 +1,5", "-1,999999999 +1,999999999"));
  assert.equal(wide[0]?.hunks[0]?.lines.length, 7);
});

test("a long diff takes as long as it is, not longer", () => {
  const lines = 200_000;
  const text = `--- a/x\n+++ b/x\n@@ -0,0 +1,${lines} @@\n${"+\\\"".repeat(1)}${"\n+x".repeat(lines - 1)}\n`;
  const begun = performance.now();
  assert.equal(parseDiff(text)[0]?.additions, lines);
  assert.ok(performance.now() - begun < 2_000);
});

test("colours change no character and stay on their lines", () => {
  const lines = ['def f():', '    """a', "    <b>bold</b>", '    """', "    return 'x'  # <script>"];
  const made = coloured(lines, languageOf("a/b/test.py"));
  assert.deepEqual(made.map((pieces) => pieces.map((piece) => piece.text).join("")), lines);
  assert.ok(made[0]?.some((piece) => piece.scope === "hl-keyword"));
  assert.ok(made[2]?.every((piece) => piece.scope === "hl-string"));
  assert.equal(languageOf("Makefile"), "makefile");
  assert.equal(languageOf("noext"), undefined);
});
