/** Diffs as git writes them, read file by file. Whatever a file is called or holds, it stays text. */

export interface DiffLine {
  kind: " " | "+" | "-" | "\\";
  text: string;
  old: number;
  new: number;
}

export interface Hunk {
  header: string;
  lines: DiffLine[];
}

export interface FileDiff {
  oldPath: string;
  newPath: string;
  status: "added" | "deleted" | "renamed" | "copied" | "modified";
  binary: boolean;
  modes: string;
  additions: number;
  deletions: number;
  hunks: Hunk[];
}

/** A row of two sides; either may be empty. */
export interface Row {
  left: DiffLine | null;
  right: DiffLine | null;
}

const HUNK = /^@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(.*)$/s;

/** The files of a diff, in its order. What is no diff is left out. */
export function parseDiff(text: string): FileDiff[] {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  const files: FileDiff[] = [];
  let file: FileDiff | null = null;
  let at = 0;
  while (at < lines.length) {
    const line = lines[at] ?? "";
    at += 1;
    if (line.startsWith("diff --git ")) {
      file = begun(line.slice("diff --git ".length));
      files.push(file);
    } else if (line.startsWith("--- ") && (lines[at] ?? "").startsWith("+++ ")) {
      // A plain unified diff has no line that opens a file.
      if (!file || file.hunks.length) {
        file = begun("");
        files.push(file);
      }
      named(file, path(line.slice(4)), path((lines[at] ?? "").slice(4)));
      at += 1;
    } else if (file && HUNK.test(line)) {
      at = hunk(file, line, lines, at);
    } else if (file) {
      header(file, line);
    }
  }
  return files;
}

/** What a file is called after the change, or before it where it is gone. */
export function pathOf(file: FileDiff): string {
  return file.status === "deleted" ? file.oldPath : file.newPath || file.oldPath;
}

/** The line of the old file before which a hunk's first line stands. */
export function startOf(hunk: Hunk): number {
  const found = HUNK.exec(hunk.header);
  return Number(found?.[1] ?? 1) + (found?.[2] === "0" ? 1 : 0);
}

/** The lines of a hunk side by side: what was removed beside what was added in its place. */
export function paired(lines: readonly DiffLine[]): Row[] {
  const rows: Row[] = [];
  let removed: DiffLine[] = [];
  let put: DiffLine[] = [];
  const flush = () => {
    for (let row = 0; row < Math.max(removed.length, put.length); row += 1)
      rows.push({ left: removed[row] ?? null, right: put[row] ?? null });
    removed = [];
    put = [];
  };
  for (const line of lines) {
    if (line.kind === "-") {
      if (put.length) flush();
      removed.push(line);
    } else if (line.kind === "+") put.push(line);
    else if (line.kind === "\\") (put.length ? put : removed).push(line);
    else {
      flush();
      rows.push({ left: line, right: line });
    }
  }
  flush();
  return rows;
}

function begun(names: string): FileDiff {
  const [oldPath, newPath] = both(names);
  return {
    oldPath,
    newPath,
    status: "modified",
    binary: false,
    modes: "",
    additions: 0,
    deletions: 0,
    hunks: [],
  };
}

/** `a/x b/x`: the two names are the same, or quoted, or said again by the lines that follow. */
function both(names: string): [string, string] {
  if (names.startsWith('"')) {
    const end = closing(names);
    return [bare(unquoted(names.slice(0, end + 1)), "a/"), bare(path(names.slice(end + 2)), "b/")];
  }
  const half = (names.length - 1) / 2;
  if (Number.isInteger(half) && names[half] === " " && names.slice(2, half) === names.slice(half + 3))
    return [names.slice(2, half), names.slice(half + 3)];
  const cut = names.lastIndexOf(' "b/');
  if (cut > 0) return [bare(names.slice(0, cut), "a/"), bare(unquoted(names.slice(cut + 1)), "b/")];
  const space = names.indexOf(" b/");
  return space < 0 ? [names, names] : [bare(names.slice(0, space), "a/"), names.slice(space + 3)];
}

function named(file: FileDiff, oldPath: string, newPath: string): void {
  if (oldPath === "/dev/null") file.status = "added";
  else file.oldPath = bare(oldPath, "a/");
  if (newPath === "/dev/null") file.status = "deleted";
  else file.newPath = bare(newPath, "b/");
}

function header(file: FileDiff, line: string): void {
  const rest = (start: string) => path(line.slice(start.length));
  if (file.hunks.length) return;
  if (line.startsWith("new file mode ")) file.status = "added";
  else if (line.startsWith("deleted file mode ")) file.status = "deleted";
  else if (line.startsWith("rename from ")) (file.status = "renamed"), (file.oldPath = rest("rename from "));
  else if (line.startsWith("rename to ")) file.newPath = rest("rename to ");
  else if (line.startsWith("copy from ")) (file.status = "copied"), (file.oldPath = rest("copy from "));
  else if (line.startsWith("copy to ")) file.newPath = rest("copy to ");
  else if (line.startsWith("old mode ")) file.modes = line.slice("old mode ".length);
  else if (line.startsWith("new mode ")) file.modes += ` → ${line.slice("new mode ".length)}`;
  else if (line === "GIT binary patch" || (line.startsWith("Binary files ") && line.endsWith(" differ")))
    file.binary = true;
}

/** Reads as many lines as the hunk says it has: what its lines hold may look like anything. */
function hunk(file: FileDiff, line: string, lines: readonly string[], start: number): number {
  const found = HUNK.exec(line);
  if (!found) return start;
  let old = Number(found[1]);
  let next = Number(found[3]);
  let olds = found[2] === undefined ? 1 : Number(found[2]);
  let news = found[4] === undefined ? 1 : Number(found[4]);
  const made: Hunk = { header: line, lines: [] };
  file.hunks.push(made);
  let at = start;
  while (at < lines.length && (olds > 0 || news > 0)) {
    const text = lines[at] ?? "";
    const kind = text[0] ?? " ";
    if (kind === "\\") made.lines.push({ kind, text: text.slice(1).trim(), old: 0, new: 0 });
    else if (kind === "-") {
      made.lines.push({ kind, text: text.slice(1), old, new: 0 });
      old += 1;
      olds -= 1;
      file.deletions += 1;
    } else if (kind === "+") {
      made.lines.push({ kind, text: text.slice(1), old: 0, new: next });
      next += 1;
      news -= 1;
      file.additions += 1;
    } else if (kind === " ") {
      made.lines.push({ kind, text: text.slice(1), old, new: next });
      old += 1;
      next += 1;
      olds -= 1;
      news -= 1;
    } else break;
    at += 1;
  }
  if ((lines[at] ?? "").startsWith("\\")) {
    made.lines.push({ kind: "\\", text: (lines[at] ?? "").slice(1).trim(), old: 0, new: 0 });
    at += 1;
  }
  return at;
}

function bare(name: string, prefix: string): string {
  return name.startsWith(prefix) ? name.slice(prefix.length) : name;
}

/** A name as it stands at the end of a line; git puts a tab behind one with blanks. */
function path(text: string): string {
  if (text.startsWith('"')) return unquoted(text.slice(0, closing(text) + 1));
  const tab = text.indexOf("\t");
  return tab < 0 ? text : text.slice(0, tab);
}

/** Where a quoted name ends. */
function closing(text: string): number {
  for (let at = 1; at < text.length; at += 1) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === '"') return at;
  }
  return text.length;
}

const ESCAPES: Readonly<Record<string, number>> = { a: 7, b: 8, t: 9, n: 10, v: 11, f: 12, r: 13 };

/** A name as C writes it: octal bytes of UTF-8. */
function unquoted(text: string): string {
  const bytes: number[] = [];
  const encoder = new TextEncoder();
  const inner = text.replace(/^"|"$/g, "");
  for (let at = 0; at < inner.length; at += 1) {
    const each = inner[at] ?? "";
    if (each !== "\\") {
      const point = String.fromCodePoint(inner.codePointAt(at) ?? 0);
      bytes.push(...encoder.encode(point));
      at += point.length - 1;
      continue;
    }
    at += 1;
    const octal = /^[0-3][0-7]{2}/.exec(inner.slice(at, at + 3));
    if (octal) {
      bytes.push(Number.parseInt(octal[0], 8));
      at += 2;
    } else bytes.push(ESCAPES[inner[at] ?? ""] ?? (inner.charCodeAt(at) || 92));
  }
  return new TextDecoder().decode(Uint8Array.from(bytes));
}
