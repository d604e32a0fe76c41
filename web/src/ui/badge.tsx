import type { ComponentChildren } from "preact";
import { bare, words } from "../types";

type Tone = "good" | "bad" | "warn" | "live" | "ask" | "calm";

const TONES: Record<string, Tone> = {
  COMPLETED: "good",
  FAILED: "bad",
  TIMEOUT: "bad",
  LOST: "bad",
  DOWN: "bad",
  REJECTED: "bad",
  REJECT: "bad",
  NO_WINNER: "warn",
  AWAITING_APPROVAL: "ask",
  REVISE: "warn",
  DEGRADED: "warn",
  IN_PROGRESS: "live",
  RUNNING: "live",
  UP: "good",
  ACCEPT: "good",
  HEALTHY: "good",
  UNHEALTHY: "bad",
  SUCCEEDED: "good",
  DELIVERED: "good",
  FINISHED: "good",
  ACCEPTED: "good",
  DONE: "good",
  PASSED: "good",
  VERIFIED: "good",
  UNVERIFIED: "warn",
  REFUTED: "bad",
};

const SIGNS: Record<Tone, string> = { good: "✓", bad: "✕", warn: "!", live: "●", ask: "?", calm: "○" };

/** A status as a word with a sign and a colour; the enum's full name does as well. */
export function StatusBadge({ status, text, tone }: { status: string; text?: string; tone?: Tone }) {
  const kind = tone ?? TONES[bare(status).toUpperCase()] ?? "calm";
  return (
    <span class={`badge badge-${kind}`}>
      <span class="badge-sign" aria-hidden="true">
        {SIGNS[kind]}
      </span>
      {text ?? (words(status) || "unknown")}
    </span>
  );
}

/** A word in a box, without a meaning of its own. */
export function Tag({ children }: { children: ComponentChildren }) {
  return <span class="tag">{children}</span>;
}
