/** What sets two changes of the same commit apart: a diff of the one's files to the other's, made of their diffs alone. */

import { diffArrays, diffWordsWithSpace } from "diff";
import { parseDiff, pathOf, startOf, type DiffLine, type FileDiff, type Hunk } from "./parse";

/** Lines of the commit that a diff shows, those it removes, and what it puts before which. */
interface Change {
  base: Map<number, string>;
  removed: Set<number>;
  added: Map<number, string[]>;
}

/** Files that take longer to compare are shown as replaced. */
const MOST_MS = 500;
/** Lines beyond this are not compared word by word. */
const LONGEST_LINE = 1_000;
/** Of the longer line so much has to be the same: else everything would be marked. */
const ALIKE = 0.4;

/** The files in which two diffs of one commit differ: `-` is what the first alone has, `+` what the second alone has. */
export function between(one: string, other: string): FileDiff[] {
  const [first, second] = [one, other].map((text) => new Map(parseDiff(text).map((file) => [pathOf(file), file])));
  const paths = new Set([...(first?.keys() ?? []), ...(second?.keys() ?? [])]);
  return [...paths].sort().flatMap((path) => apart(path, first?.get(path), second?.get(path)) ?? []);
}

function apart(path: string, one: FileDiff | undefined, other: FileDiff | undefined): FileDiff | undefined {
  const [first, second] = [read(one), read(other)];
  const base = new Map([...first.base, ...second.base]);
  const positions = [...new Set([...base.keys(), ...first.added.keys(), ...second.added.keys()])].sort((a, b) => a - b);
  const file: FileDiff = {
    oldPath: path, newPath: path, status: "modified", binary: Boolean(one?.binary || other?.binary), modes: "",
    additions: 0, deletions: 0, hunks: [],
  };
  let [oldLine, newLine, last] = [1, 1, 0];
  for (let start = 0; start < positions.length; ) {
    let end = start + 1;
    while (end < positions.length && positions[end] === (positions[end - 1] ?? 0) + 1) end += 1;
    const part = positions.slice(start, end);
    const begins = part[0] ?? 1;
    [oldLine, newLine, last] = [oldLine + begins - 1 - last, newLine + begins - 1 - last, base.has(part.at(-1) ?? 0) ? (part.at(-1) ?? 0) : (part.at(-1) ?? 1) - 1];
    const [before, after] = [shown(first, base, part), shown(second, base, part)];
    const hunk = hunkOf(before, after, oldLine, newLine, file);
    if (hunk) file.hunks.push(hunk);
    oldLine += before.length;
    newLine += after.length;
    start = end;
  }
  return file.hunks.length || (file.binary && Boolean(one) !== Boolean(other)) ? file : undefined;
}

function read(file: FileDiff | undefined): Change {
  const change: Change = { base: new Map(), removed: new Set(), added: new Map() };
  for (const hunk of file?.hunks ?? []) {
    let next = startOf(hunk);
    for (const line of hunk.lines) {
      if (line.kind === "\\") continue;
      if (line.kind === "+") {
        change.added.set(next, [...(change.added.get(next) ?? []), line.text]);
        continue;
      }
      change.base.set(line.old, line.text);
      if (line.kind === "-") change.removed.add(line.old);
      next = line.old + 1;
    }
  }
  return change;
}

function shown(change: Change, base: ReadonlyMap<number, string>, positions: readonly number[]): string[] {
  return positions.flatMap((at) => {
    const kept = base.get(at);
    return [...(change.added.get(at) ?? []), ...(kept === undefined || change.removed.has(at) ? [] : [kept])];
  });
}

function hunkOf(before: string[], after: string[], oldLine: number, newLine: number, file: FileDiff): Hunk | undefined {
  const lines: DiffLine[] = [];
  let [old, next] = [oldLine, newLine];
  const parts = diffArrays(before, after, { timeout: MOST_MS }) ?? [
    { value: before, removed: true, added: false },
    { value: after, removed: false, added: true },
  ];
  for (const part of parts) {
    for (const text of part.value) {
      if (part.added) (file.additions += 1), lines.push({ kind: "+", text, old: 0, new: next++ });
      else if (part.removed) (file.deletions += 1), lines.push({ kind: "-", text, old: old++, new: 0 });
      else lines.push({ kind: " ", text, old: old++, new: next++ });
    }
  }
  if (lines.every((line) => line.kind === " ")) return undefined;
  return { header: `@@ -${oldLine},${before.length} +${newLine},${after.length} @@`, lines };
}

/** From where to where a line is marked. */
export type Mark = readonly [from: number, to: number];

/** The words in which a line differs from the one in its place; nothing where they have little in common. */
export function wordMarks(before: string, after: string): readonly [before: Mark[], after: Mark[]] | undefined {
  const longer = Math.max(before.length, after.length);
  if (longer > LONGEST_LINE || before === after) return undefined;
  const [left, right]: [Mark[], Mark[]] = [[], []];
  let [at, to, same] = [0, 0, 0];
  for (const part of diffWordsWithSpace(before, after)) {
    const length = part.value.length;
    if (part.removed) left.push([at, at + length]);
    if (part.added) right.push([to, to + length]);
    if (!part.removed && !part.added) same += part.value.trim().length;
    if (!part.added) at += length;
    if (!part.removed) to += length;
  }
  return same >= ALIKE * Math.max(before.trim().length, after.trim().length) ? [left, right] : undefined;
}
