import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { Problem } from "../api";
import { visible } from "../visible";
import { Button } from "./button";

/** Says that something is on its way. */
export function Loading({ what = "Loading" }: { what?: string }) {
  return (
    <p class="loading" role="status">
      <span class="spinner" aria-hidden="true" /> {what} …
    </p>
  );
}

/** Says that there is nothing, and what would change that. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <div class="empty-more">{children}</div>}
    </div>
  );
}

/** Says what went wrong, and the way out. */
export function ProblemBanner({ problem, retry }: { problem: unknown; retry?: () => void }) {
  if (!problem) return null;
  const known = problem instanceof Problem ? problem : undefined;
  const said = problem instanceof Error ? problem.message : String(problem);
  return (
    <div class="banner banner-bad" role="alert">
      <div class="banner-words">
        <strong>{visible(known?.title ?? "") || "That did not work"}</strong>
        {said && said !== known?.title && <p>{visible(said)}</p>}
        {known?.field && (
          <p>
            Field: <code>{visible(known.field)}</code>
          </p>
        )}
        {known?.hint && <p>{visible(known.hint)}</p>}
        {known && known.retryAfterSeconds > 0 && <p>Try again in {known.retryAfterSeconds} s.</p>}
      </div>
      {retry && (
        <Button small onClick={retry}>
          Try again
        </Button>
      )}
    </div>
  );
}

/** Something to know, in a box. */
export function Note({ children, tone = "calm" }: { children: ComponentChildren; tone?: "calm" | "warn" | "good" }) {
  return <div class={`banner banner-${tone}`}>{children}</div>;
}

interface Toast {
  readonly id: number;
  readonly text: string;
  readonly bad: boolean;
}

const toasts = signal<readonly Toast[]>([]);
let last = 0;

/** Says something in passing; it is read out, and goes by itself. */
export function toast(text: string, { bad = false } = {}): void {
  const id = ++last;
  toasts.value = [...toasts.value.slice(-2), { id, text, bad }];
  setTimeout(() => {
    toasts.value = toasts.value.filter((one) => one.id !== id);
  }, 6000);
}

/** Where toasts are shown; once in the page. */
export function Toasts() {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((one) => (
        <p key={one.id} class={`toast${one.bad ? " toast-bad" : ""}`}>
          {one.text}
        </p>
      ))}
    </div>
  );
}
