/** A workflow's text with its line numbers; what is wrong with it is said while it is written. */

import { useEffect, useId, useRef, useState } from "preact/hooks";
import { aborted } from "../api";
import { visible } from "../visible";
import { ProblemBanner, StatusBadge } from "../ui";
import { validate, type Fault, type Validation } from "./calls";

const PAUSE_MS = 400;
const INDENT = "  ";

export const SKETCH = `name: my-workflow
description: Reads a question and answers it, if a person agrees.
inputs:
  question: string
nodes:
  - {id: agree, type: approval, prompt: "Answer this: \${inputs.question}?"}
  - id: answer
    type: agent
    query: "\${inputs.question}"
edges:
  - {source: agree, target: answer}
outputs:
  answer: \${nodes.answer.output.answer}
`;

interface Props {
  text: string;
  onText: (text: string) => void;
  onChecked: (checked: Validation | undefined) => void;
}

export function Editor({ text, onText, onChecked }: Props) {
  const id = useId();
  const area = useRef<HTMLTextAreaElement>(null);
  const gutter = useRef<HTMLDivElement>(null);
  const leaving = useRef(false);
  const [checked, setChecked] = useState<Validation>();
  const [problem, setProblem] = useState<unknown>();
  useEffect(() => {
    if (!text.trim()) {
      setChecked(undefined);
      onChecked(undefined);
      return;
    }
    const stop = new AbortController();
    const timer = setTimeout(() => {
      validate(text, stop.signal).then(
        (found) => {
          setChecked(found);
          setProblem(undefined);
          onChecked(found);
        },
        (error: unknown) => {
          if (!aborted(error)) setProblem(error);
        },
      );
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text]);

  const wrong = new Set(checked?.faults.map((fault) => fault.line));
  const lines = text.split("\n").length;
  return (
    <div class="stack-tight">
      <label for={id} class="legend">
        Definition (YAML)
      </label>
      <div class="editor">
        <div class="editor-gutter" ref={gutter} aria-hidden="true">
          {Array.from({ length: lines }, (_, at) => (
            <div key={at} class={wrong.has(at + 1) ? "editor-wrong" : ""}>
              {at + 1}
            </div>
          ))}
        </div>
        <textarea
          id={id}
          ref={area}
          class="editor-text"
          rows={24}
          spellcheck={false}
          autocomplete="off"
          autocapitalize="off"
          wrap="off"
          value={text}
          aria-describedby={`${id}-hint ${id}-faults`}
          aria-invalid={Boolean(checked?.faults.length)}
          onInput={(event) => onText(event.currentTarget.value)}
          onScroll={(event) => {
            if (gutter.current) gutter.current.scrollTop = event.currentTarget.scrollTop;
          }}
          onBlur={() => (leaving.current = false)}
          onKeyDown={(event) => {
            if (event.key === "Escape") {
              leaving.current = true;
              return;
            }
            if (event.key === "Tab" && !leaving.current && !event.ctrlKey && !event.altKey && !event.metaKey) {
              event.preventDefault();
              onText(indented(event.currentTarget, event.shiftKey));
            } else if (event.key !== "Shift") leaving.current = false;
          }}
        />
      </div>
      <p class="hint" id={`${id}-hint`}>
        Tab indents, Shift+Tab the other way. To leave the field with Tab, press Escape first.
      </p>
      <ProblemBanner problem={problem} />
      <div id={`${id}-faults`} role="status">
        {checked && !checked.faults.length && <StatusBadge status="passed" text="nothing is wrong with it" />}
        {checked && checked.faults.length > 0 && (
          <>
            <StatusBadge
              status="failed"
              text={checked.faults.length === 1 ? "1 thing is wrong" : `${checked.faults.length} things are wrong`}
            />
            <ol class="faults">
              {checked.faults.slice(0, 100).map((fault, at) => (
                <FaultLine key={at} fault={fault} onGo={() => goTo(area.current, fault.line)} />
              ))}
            </ol>
          </>
        )}
      </div>
    </div>
  );
}

function FaultLine({ fault, onGo }: { fault: Fault; onGo: () => void }) {
  return (
    <li>
      {fault.line > 0 && (
        <button type="button" class="link-button" onClick={onGo}>
          Line {fault.line}
        </button>
      )}
      {fault.node && <code>{visible(fault.node)}</code>} <span class="prose-text">{visible(fault.message)}</span>
      {fault.hint && <span class="muted"> {visible(fault.hint)}</span>}
    </li>
  );
}

/** Puts the cursor on a line and shows it. */
function goTo(area: HTMLTextAreaElement | null, line: number): void {
  if (!area) return;
  const before = area.value.split("\n").slice(0, line - 1);
  const start = before.reduce((sum, one) => sum + one.length + 1, 0);
  const end = area.value.indexOf("\n", start);
  area.focus();
  area.setSelectionRange(start, end < 0 ? area.value.length : end);
  area.scrollTop = Math.max(0, (line - 6) * Number.parseFloat(getComputedStyle(area).lineHeight));
}

/** The text with its selected lines moved in or out; the selection moves along. */
function indented(area: HTMLTextAreaElement, out: boolean): string {
  const { value, selectionStart, selectionEnd } = area;
  if (!out && selectionStart === selectionEnd) {
    const made = value.slice(0, selectionStart) + INDENT + value.slice(selectionEnd);
    queueMicrotask(() => area.setSelectionRange(selectionStart + INDENT.length, selectionStart + INDENT.length));
    return made;
  }
  const from = value.lastIndexOf("\n", selectionStart - 1) + 1;
  const until = value.indexOf("\n", Math.max(from, selectionEnd - 1));
  const to = until < 0 ? value.length : until;
  const lines = value.slice(from, to).split("\n");
  const moved = lines.map((line) => (out ? line.replace(/^ {1,2}/, "") : line && INDENT + line)).join("\n");
  queueMicrotask(() => area.setSelectionRange(from, from + moved.length));
  return value.slice(0, from) + moved + value.slice(to);
}
