// Style sheets in colours, by their shapes alone.
import assert from "node:assert/strict";
import { test } from "node:test";
import { coloured } from "../src/diff/colours";

const scopes = (text: string): [string, string][] =>
  coloured(text.split("\n"), "css").flatMap((line) => line.filter((piece) => piece.scope).map(({ text: words, scope }): [string, string] => [words.trim(), scope.replace("hl-", "")]));

test("selectors, properties and values are told apart", () => {
  const found = scopes('@media (max-width: 60rem) {\n  .a:hover { --gap: 2px; color: #fff !important; }\n}\n#b::after { content: "x"; margin: calc(1em + 5%); } /* c */');
  for (const one of [
    ["@media", "keyword"],
    ["--gap", "attribute"],
    ["2px", "number"],
    ["color", "attribute"],
    ["#fff", "number"],
    ["!important", "meta"],
    ["#b", "selector-id"],
    ['"x"', "string"],
    ["calc", "built_in"],
    ["5%", "number"],
    ["/* c */", "comment"],
  ])
    assert.ok(found.some(([text, scope]) => text === one[0] && scope === one[1]), `${one}: ${JSON.stringify(found)}`);
});

test("colouring loses no character, however a sheet is broken", () => {
  for (const text of ["a { b: c", "}}} {{{ : ; #", "/* never\nclosed", "a".repeat(1999), `${"{".repeat(1000)}\n${"}".repeat(1000)}`, `${"-a".repeat(900)}\n${"a-".repeat(900)}:`]) {
    const lines = coloured(text.split("\n"), "css");
    assert.equal(lines.map((line) => line.map((piece) => piece.text).join("")).join("\n"), text);
  }
});
