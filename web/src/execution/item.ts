/** The entries of an agent's run, and what they are made from. */

import type { ApprovalRequest, Blob, Call, Plan, Resolution, Usage } from "./events";

/** A tool call with what it gave. `outcome` is `waiting`, `started`, or how it ended. */
export interface CallView {
  callId: string;
  name: string;
  arguments: string;
  outcome: string;
  content: string;
  error: string;
  exitCode: number | null;
  seconds: number;
  truncated: boolean;
  artifact: string;
  cached: boolean;
  repairs: string[];
}

/** One thing in an agent's run. */
export type Item = { key: string; at: number; step: number } & (
  | {
      kind: "reply";
      content: string;
      calls: CallView[];
      usage: Usage;
      durationMs: number;
      finishReason: string;
      repairs: string[];
    }
  | { kind: "calls"; calls: CallView[] }
  | { kind: "note"; text: string }
  | { kind: "condensed"; method: string; before: number; after: number }
  | { kind: "loop"; pattern: string; advice: string }
  | { kind: "plan"; plan: Plan; reason: string; number: number }
  | { kind: "checkpoint"; commit: string; revision: number; bundle: Blob | null }
  | { kind: "approval"; request: ApprovalRequest; resolution: Resolution | null }
  | { kind: "lost"; reason: string }
  | { kind: "stopped"; reason: string }
  | { kind: "reassigned"; attempt: number; reason: string }
);

/** A call as the model asked for it. */
export function asked(call: Call): CallView {
  return {
    callId: call.call_id,
    name: call.name,
    arguments: call.arguments,
    outcome: "waiting",
    content: "",
    error: "",
    exitCode: null,
    seconds: 0,
    truncated: false,
    artifact: "",
    cached: false,
    repairs: [],
  };
}

/** Of an audit entry, what is shown. */
export interface Entry {
  call_id: string;
  tool: string;
  operation: string;
  arguments?: Record<string, unknown>;
  hash?: string;
}

/** Of a tool's result, what is shown. */
export interface Result {
  success: boolean;
  content?: string;
  error?: string;
  exit_code?: number | null;
  outcome?: string;
  duration?: number;
  truncated?: boolean;
  artifact?: string;
  cached?: boolean;
}

/** What a message says. */
export function content(message: unknown): string {
  return String((message as { content?: unknown } | undefined)?.content ?? "");
}

/** What an agent is told at first, one message after the other. */
export function told(messages: unknown): string {
  if (!Array.isArray(messages)) return "";
  return messages.map((one) => `${String((one as { role?: string }).role ?? "")}:\n${content(one)}`).join("\n\n");
}
