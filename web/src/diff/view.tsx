/** A diff to look at: its files, folded where they are long, as one column or two. */

import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { Button, count, Empty, useMedia } from "../ui";
import { coloured, languageOf, type Piece } from "./colours";
import { visible } from "../visible";
import { wordMarks, type Mark } from "./between";
import { paired, parseDiff, pathOf, type DiffLine, type FileDiff, type Hunk, type Row } from "./parse";

export type DiffStyle = "unified" | "split";

/** Files with more changed lines begin folded, and so do those after as many lines in all. */
const FOLDED_LINES = 400;
const OPEN_LINES = 1_200;
const SHOWN_LINES = 600;
const SHOWN_FILES = 100;
const LONGEST_LINE = 4_000;
/** Of a longer run of unchanged lines so many are shown at either end. */
const CONTEXT_LINES = 3;
/** Two columns of code have no room on a narrower screen. */
export const NARROW = "(max-width: 899px)";

/** The files of a diff. `title` says whose it is, to those who listen. */
export function DiffView({ text, style, title }: { text: string; style: DiffStyle; title: string }) {
  const files = useMemo(() => parseDiff(text), [text]);
  if (!files.length && text.trim()) return <pre class="mono-block">{text.slice(0, 20_000)}</pre>;
  return <FilesView files={files} style={style} title={title} />;
}

/** Files that were read already; one column on a narrow screen, whatever was asked for. */
export function FilesView({ files, style: asked, title }: { files: readonly FileDiff[]; style: DiffStyle; title: string }) {
  const style = useMedia(NARROW) ? "unified" : asked;
  const [shown, setShown] = useState(SHOWN_FILES);
  if (!files.length) return <Empty title="Nothing was changed" />;
  let before = 0;
  return (
    <div class="diff" role="group" aria-label={title}>
      {files.slice(0, shown).map((file, at) => {
        const lines = file.hunks.reduce((sum, hunk) => sum + hunk.lines.length, 0);
        const open = lines <= FOLDED_LINES && before <= OPEN_LINES;
        before += lines;
        return <File key={`${at}-${pathOf(file)}`} file={file} style={style} open={open} />;
      })}
      {files.length > shown && (
        <Button small onClick={() => setShown(shown + SHOWN_FILES)}>
          Show {Math.min(SHOWN_FILES, files.length - shown)} more of {files.length} files
        </Button>
      )}
    </div>
  );
}

function File({ file, style, open }: { file: FileDiff; style: DiffStyle; open: boolean }) {
  const [unfolded, setUnfolded] = useState(open);
  const path = pathOf(file);
  return (
    <details class="diff-file" open={unfolded} onToggle={(event) => setUnfolded(event.currentTarget.open)}>
      <summary class="diff-file-head">
        <span class="diff-path">
          {file.oldPath !== file.newPath && (file.status === "renamed" || file.status === "copied") && (
            <>
              <bdi>{visible(file.oldPath)}</bdi> →{" "}
            </>
          )}
          <bdi>{visible(path)}</bdi>
        </span>
        {file.status !== "modified" && <span class="tag">{file.status}</span>}
        {file.modes && <span class="tag">mode {file.modes}</span>}
        {file.binary && <span class="tag">binary</span>}
        <span class="diff-counts">
          <span class="added">+{count(file.additions)}</span> <span class="removed">−{count(file.deletions)}</span>
        </span>
      </summary>
      {unfolded && <Body file={file} style={style} path={path} />}
    </details>
  );
}

function Body({ file, style, path }: { file: FileDiff; style: DiffStyle; path: string }) {
  const [most, setMost] = useState(SHOWN_LINES);
  if (file.binary) return <p class="diff-said">A binary file; its content is not shown.</p>;
  if (!file.hunks.length) return <p class="diff-said">No line was changed.</p>;
  let room = most;
  const hunks: Hunk[] = [];
  for (const hunk of file.hunks) {
    if (room <= 0) break;
    hunks.push(hunk.lines.length > room ? { ...hunk, lines: hunk.lines.slice(0, room) } : hunk);
    room -= hunk.lines.length;
  }
  const all = file.hunks.reduce((sum, hunk) => sum + hunk.lines.length, 0);
  const last = file.hunks.at(-1)?.lines.reduce((most, line) => Math.max(most, line.old, line.new), 0) ?? 0;
  return (
    <>
      <div class="diff-box" role="region" aria-label={`Changes of ${visible(path)}`} tabIndex={0}>
        <table class={`diff-table diff-${style} diff-digits-${Math.min(6, Math.max(2, String(last).length))}`}>
          <colgroup>
            <col class="diff-number" />
            {style === "split" && <col />}
            <col class="diff-number" />
            <col />
          </colgroup>
          <thead class="sr-only">
            <tr>
              {style === "split" ? (
                <>
                  <th scope="col">Old line</th>
                  <th scope="col">Before</th>
                  <th scope="col">New line</th>
                  <th scope="col">After</th>
                </>
              ) : (
                <>
                  <th scope="col">Old line</th>
                  <th scope="col">New line</th>
                  <th scope="col">Change</th>
                </>
              )}
            </tr>
          </thead>
          {hunks.map((hunk, at) => (
            <HunkRows key={at} hunk={hunk} style={style} language={languageOf(path)} />
          ))}
        </table>
      </div>
      {all > most && (
        <Button small onClick={() => setMost(most + SHOWN_LINES * 4)}>
          Show more of {count(all)} lines
        </Button>
      )}
    </>
  );
}

/** Rows as they are drawn, or how many unchanged ones are left out. */
type Shown = Row | { folded: number; at: number };

function foldedRows(rows: readonly Row[], opened: ReadonlySet<number>): Shown[] {
  const made: Shown[] = [];
  for (let at = 0; at < rows.length; ) {
    let end = at;
    while (end < rows.length && rows[end]?.left?.kind === " ") end += 1;
    const [head, tail] = [at + CONTEXT_LINES, end - CONTEXT_LINES];
    if (tail - head > 1 && !opened.has(at)) made.push(...rows.slice(at, head), { folded: tail - head, at }, ...rows.slice(tail, end));
    else made.push(...rows.slice(at, end));
    if (end < rows.length) made.push(rows[end] as Row);
    at = end + 1;
  }
  return made;
}

function HunkRows({ hunk, style, language }: { hunk: Hunk; style: DiffStyle; language: string | undefined }) {
  const [opened, setOpened] = useState<ReadonlySet<number>>(new Set());
  const colours = useMemo(() => hunkColours(hunk.lines, language), [hunk, language]);
  const rows = useMemo(() => paired(hunk.lines), [hunk]);
  const marks = useMemo(() => rowMarks(rows), [rows]);
  const code = (line: DiffLine) => <Code line={line} pieces={marked(colours.get(line) ?? [], marks.get(line))} class={classOf(line)} />;
  return (
    <tbody>
      <tr class="diff-hunk">
        <td colSpan={style === "split" ? 4 : 3}>{hunk.header}</td>
      </tr>
      {inOrder(foldedRows(rows, opened), style).map((row, at) =>
        "folded" in row ? (
          <tr key={at} class="diff-hunk">
            <td colSpan={style === "split" ? 4 : 3}>
              <button type="button" class="link-button" onClick={() => setOpened(new Set([...opened, row.at]))}>
                Show {count(row.folded)} unchanged lines
              </button>
            </td>
          </tr>
        ) : style === "split" ? (
          <tr key={at}>
            <Half line={row.left} side="old" code={code} />
            <Half line={row.right} side="new" code={code} />
          </tr>
        ) : (
          <Whole key={at} line={(row.left ?? row.right) as DiffLine} code={code} />
        ),
      )}
    </tbody>
  );
}

type Drawn = (line: DiffLine) => ComponentChildren;

function Whole({ line, code }: { line: DiffLine; code: Drawn }) {
  return (
    <tr class={classOf(line)}>
      <td class="diff-number">{line.old || ""}</td>
      <td class="diff-number">{line.new || ""}</td>
      {code(line)}
    </tr>
  );
}

/** In one column, what was removed stands before what was added in its place. */
function inOrder(rows: readonly Shown[], style: DiffStyle): Shown[] {
  if (style === "split") return [...rows];
  const made: Shown[] = [];
  let added: Row[] = [];
  for (const row of rows) {
    const changed = !("folded" in row) && row.left?.kind !== " ";
    if (!changed) {
      made.push(...added, row);
      added = [];
      continue;
    }
    if (row.left) made.push({ left: row.left, right: null });
    if (row.right) added.push({ left: null, right: row.right });
  }
  return [...made, ...added];
}

function rowMarks(rows: readonly Row[]): Map<DiffLine, Mark[]> {
  const made = new Map<DiffLine, Mark[]>();
  for (const { left, right } of rows) {
    if (left?.kind !== "-" || right?.kind !== "+") continue;
    const found = wordMarks(left.text, right.text);
    if (found) made.set(left, found[0]).set(right, found[1]);
  }
  return made;
}

/** Pieces cut where marks begin and end. */
function marked(pieces: readonly Piece[], marks: readonly Mark[] | undefined): Piece[] {
  if (!marks?.length) return [...pieces];
  const made: Piece[] = [];
  let at = 0;
  for (const piece of pieces) {
    const end = at + piece.text.length;
    const cuts = new Set([at, end, ...marks.flat().filter((cut) => cut > at && cut < end)]);
    const places = [...cuts].sort((one, other) => one - other);
    for (const [index, from] of places.slice(0, -1).entries()) {
      const inside = marks.some((mark) => mark[0] <= from && from < mark[1]);
      const text = piece.text.slice(from - at, (places[index + 1] ?? end) - at);
      made.push({ text, scope: inside ? `${piece.scope} diff-word`.trim() : piece.scope });
    }
    at = end;
  }
  return made;
}

function Half({ line, side, code }: { line: DiffLine | null; side: "old" | "new"; code: Drawn }) {
  if (!line)
    return (
      <>
        <td class="diff-number diff-none" />
        <td class="diff-none" />
      </>
    );
  return (
    <>
      <td class={`diff-number ${classOf(line)}`}>{line[side] || ""}</td>
      {code(line)}
    </>
  );
}

function Code({ line, pieces, class: name }: { line: DiffLine; pieces: readonly Piece[]; class: string }) {
  if (line.kind === "\\") return <td class={`diff-code diff-note ${name}`}>{line.text}</td>;
  const sign = line.kind === " " ? " " : line.kind === "-" ? "−" : "+";
  return (
    <td class={`diff-code ${name}`}>
      <span class="diff-sign">{sign}</span>
      {line.text.length > LONGEST_LINE
        ? `${visible(line.text.slice(0, LONGEST_LINE))}… (${count(line.text.length)} characters)`
        : pieces.map((piece, at) =>
            piece.scope ? (
              <span key={at} class={piece.scope}>
                {visible(piece.text)}
              </span>
            ) : (
              visible(piece.text)
            ),
          )}
    </td>
  );
}

function classOf(line: DiffLine): string {
  return line.kind === "+" ? "diff-added" : line.kind === "-" ? "diff-removed" : "";
}

/** Both sides of a hunk are coloured as the code that each of them is. */
function hunkColours(lines: readonly DiffLine[], language: string | undefined): Map<DiffLine, Piece[]> {
  const made = new Map<DiffLine, Piece[]>();
  for (const skipped of ["+", "-"]) {
    const side = lines.filter((line) => line.kind !== skipped && line.kind !== "\\");
    const colours = coloured(
      side.map((line) => line.text),
      language,
    );
    for (const [at, line] of side.entries()) made.set(line, colours[at] ?? []);
  }
  return made;
}
