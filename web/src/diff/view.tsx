/** A diff to look at: its files, folded where they are long, as one column or two. */

import { useMemo, useState } from "preact/hooks";
import { Button, count, Empty } from "../ui";
import { coloured, languageOf, type Piece } from "./colours";
import { visible } from "../visible";
import { paired, parseDiff, pathOf, type DiffLine, type FileDiff, type Hunk } from "./parse";

export type DiffStyle = "unified" | "split";

/** Files with more changed lines begin folded, and so do those after as many lines in all. */
const FOLDED_LINES = 400;
const OPEN_LINES = 1_200;
const SHOWN_LINES = 600;
const SHOWN_FILES = 100;
const LONGEST_LINE = 4_000;

/** The files of a diff. `title` says whose it is, to those who listen. */
export function DiffView({ text, style, title }: { text: string; style: DiffStyle; title: string }) {
  const files = useMemo(() => parseDiff(text), [text]);
  const [shown, setShown] = useState(SHOWN_FILES);
  if (!files.length)
    return text.trim() ? <pre class="mono-block">{text.slice(0, 20_000)}</pre> : <Empty title="Nothing was changed" />;
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
  return (
    <>
      <div class="diff-box" role="region" aria-label={`Changes of ${visible(path)}`} tabIndex={0}>
        <table class={`diff-table diff-${style}`}>
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

function HunkRows({ hunk, style, language }: { hunk: Hunk; style: DiffStyle; language: string | undefined }) {
  const colours = useMemo(() => hunkColours(hunk.lines, language), [hunk, language]);
  return (
    <tbody>
      <tr class="diff-hunk">
        <td colSpan={style === "split" ? 4 : 3}>{hunk.header}</td>
      </tr>
      {style === "split"
        ? paired(hunk.lines).map((row, at) => (
            <tr key={at}>
              <Half line={row.left} side="old" pieces={row.left ? colours.get(row.left) : undefined} />
              <Half line={row.right} side="new" pieces={row.right ? colours.get(row.right) : undefined} />
            </tr>
          ))
        : hunk.lines.map((line, at) => (
            <tr key={at} class={classOf(line)}>
              <td class="diff-number">{line.old || ""}</td>
              <td class="diff-number">{line.new || ""}</td>
              <Code line={line} pieces={colours.get(line)} />
            </tr>
          ))}
    </tbody>
  );
}

function Half({ line, side, pieces }: { line: DiffLine | null; side: "old" | "new"; pieces: Piece[] | undefined }) {
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
      <Code line={line} pieces={pieces} class={classOf(line)} />
    </>
  );
}

function Code({ line, pieces, class: name = "" }: { line: DiffLine; pieces: Piece[] | undefined; class?: string }) {
  if (line.kind === "\\") return <td class={`diff-code diff-note ${name}`}>{line.text}</td>;
  const sign = line.kind === " " ? " " : line.kind === "-" ? "−" : "+";
  return (
    <td class={`diff-code ${name}`}>
      <span class="diff-sign">{sign}</span>
      {line.text.length > LONGEST_LINE
        ? `${visible(line.text.slice(0, LONGEST_LINE))}… (${count(line.text.length)} characters)`
        : (pieces ?? []).map((piece, at) =>
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

// Where it was at first.
export { visible };
