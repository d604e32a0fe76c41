/** Syntax colours for lines of code. What comes out is text with names of classes, never markup. */

import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import dockerfile from "highlight.js/lib/languages/dockerfile";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import makefile from "highlight.js/lib/languages/makefile";
import markdown from "highlight.js/lib/languages/markdown";
import protobuf from "highlight.js/lib/languages/protobuf";
import python from "highlight.js/lib/languages/python";
import ruby from "highlight.js/lib/languages/ruby";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import css from "./css";

const LANGUAGES = {
  bash,
  c,
  cpp,
  css,
  dockerfile,
  go,
  ini,
  java,
  javascript,
  json,
  makefile,
  markdown,
  protobuf,
  python,
  ruby,
  rust,
  sql,
  typescript,
  xml,
  yaml,
};

const ENDINGS: ReadonlyMap<string, keyof typeof LANGUAGES> = new Map(
  (
    [
      ["bash", "sh bash zsh"],
      ["c", "c h"],
      ["cpp", "cc cpp cxx hh hpp hxx"],
      ["css", "css scss less"],
      ["dockerfile", "dockerfile containerfile"],
      ["go", "go"],
      ["ini", "ini cfg toml conf properties"],
      ["java", "java"],
      ["javascript", "js jsx mjs cjs"],
      ["json", "json jsonl ipynb"],
      ["makefile", "makefile mk"],
      ["markdown", "md markdown"],
      ["protobuf", "proto"],
      ["python", "py pyi"],
      ["ruby", "rb rake gemfile"],
      ["rust", "rs"],
      ["sql", "sql"],
      ["typescript", "ts tsx mts cts"],
      ["xml", "xml html htm svg vue"],
      ["yaml", "yaml yml"],
    ] as const
  ).flatMap(([language, endings]) => endings.split(" ").map((ending) => [ending, language] as const)),
);

/** A piece of a line, and what it is there for (classes of the style sheet; empty: plain). */
export interface Piece {
  text: string;
  scope: string;
}

/** Colouring is left out where it would take longer than reading. */
const MOST_CHARACTERS = 60_000;
const LONGEST_LINE = 2_000;

let registered = false;

/** The language of a file by its name; undefined where there is none for it. */
export function languageOf(path: string): string | undefined {
  const name = (path.split("/").at(-1) ?? "").toLowerCase();
  return ENDINGS.get(name.split(".").at(-1) ?? "");
}

/** Lines of one file in colours, each as its pieces. */
export function coloured(lines: readonly string[], language: string | undefined): Piece[][] {
  const plain = () => lines.map((text) => (text ? [{ text, scope: "" }] : []));
  const whole = lines.join("\n");
  if (!language || whole.length > MOST_CHARACTERS || lines.some((line) => line.length > LONGEST_LINE)) return plain();
  if (!registered) {
    for (const [name, definition] of Object.entries(LANGUAGES)) hljs.registerLanguage(name, definition);
    registered = true;
  }
  const made: Piece[][] = [[]];
  // The tree of tokens, not the markup that would be made of it.
  const result = hljs.highlight(whole, { language, ignoreIllegals: true }) as unknown as { _emitter: { rootNode: Token } };
  walk(result._emitter.rootNode, "", made);
  return made.length === lines.length ? made : plain();
}

interface Token {
  scope?: string;
  children: (Token | string)[];
}

function walk(token: Token, outer: string, made: Piece[][]): void {
  const scope = token.scope && !token.scope.startsWith("language:") ? named(token.scope) : outer;
  for (const child of token.children) {
    if (typeof child !== "string") {
      walk(child, scope, made);
      continue;
    }
    for (const [at, text] of child.split("\n").entries()) {
      if (at) made.push([]);
      if (text) made.at(-1)?.push({ text, scope });
    }
  }
}

/** `title.function` is coloured as `title`. */
function named(scope: string): string {
  return `hl-${scope.split(".")[0] ?? ""}`;
}
