/** One agent's run as its events tell it: what it said, what it did, what came of it. */

import { added, NOTHING_SPENT } from "./events";
import type {
  ApprovalRequest, Blob, Call, Plan, Resolution, StoredEvent, Usage,
} from "./events";
import { asked, content, told, type CallView, type Entry, type Item, type Result } from "./item";
import { kindOf, type AgentKind } from "./names";

export type AgentStatus = "running" | "awaiting_approval" | "finished" | "lost";

type Reply = Extract<Item, { kind: "reply" }>;
type WithCalls = Extract<Item, { calls: CallView[] }>;

const LONGEST_SPEECH = 20_000;

/** Changed in place, but for its items and their calls; `revision` counts the changes. */
export class AgentView {
  readonly id: string;
  readonly kind: AgentKind;
  revision = 0;
  role = "";
  model = "";
  temperature: number | null = null;
  seed: number | null = null;
  tools: string[] = [];
  instructions = "";
  status: AgentStatus = "running";
  stopReason = "";
  attempt = 1;
  step = 0;
  usage: Usage = NOTHING_SPENT;
  lastTool = "";
  startedAt = 0;
  finishedAt = 0;
  answer = "";
  error = "";
  auditHead = "";
  items: Item[] = [];
  plans: Plan[] = [];
  /** What the model says at this moment. */
  speech = "";
  /** By call: the key of the item that has it. */
  #calls = new Map<string, string>();

  constructor(id: string) {
    this.id = id;
    this.kind = kindOf(id);
  }

  /** The state of a step of a plan: its last call's outcome; empty: not begun. */
  planStep(plan: number, number: number): string {
    let outcome = "";
    const start = `p${plan}s${number}t`;
    for (const id of this.#calls.keys()) if (id.startsWith(start)) outcome = this.#find(id)?.outcome ?? outcome;
    return outcome;
  }

  hear(text: string, begins: boolean): void {
    const last = this.items.at(-1);
    // Pieces may come after the reply that they are of: it has said them already.
    if (!begins && !this.speech && last?.kind === "reply" && last.content.includes(text)) return;
    this.revision += 1;
    const all = begins ? text : this.speech + text;
    this.speech = all.length > LONGEST_SPEECH ? all.slice(-LONGEST_SPEECH) : all;
  }

  apply(event: StoredEvent): void {
    this.revision += 1;
    const body = event.payload;
    const at = event.at_ms;
    const key = String(event.sequence);
    const step = Number(body.step ?? this.step);
    switch (event.type) {
      case "run_claimed":
        this.status = "running";
        this.stopReason = "";
        this.speech = "";
        if (!body.resumes) this.#begin();
        break;
      case "run_started":
        this.#begin();
        this.role = String(body.role ?? "");
        this.model = String(body.model ?? "");
        this.temperature = (body.temperature as number | null | undefined) ?? null;
        this.seed = (body.seed as number | null | undefined) ?? null;
        this.tools = (body.tools as string[] | undefined) ?? [];
        this.instructions = told(body.messages);
        this.startedAt = at;
        break;
      case "model_replied":
        this.#reply(key, at, step, body);
        break;
      case "message_added":
        this.#said(key, at, step, body.message as { role?: string; call_id?: string } | undefined);
        break;
      case "call_repaired":
        this.#repair(String(body.call_id ?? ""), (body.repairs as string[] | undefined) ?? []);
        break;
      case "history_condensed":
        this.items.push({
          key,
          at,
          step,
          kind: "condensed",
          method: String(body.method ?? ""),
          before: Number(body.tokens_before ?? 0),
          after: Number(body.tokens_after ?? 0),
        });
        break;
      case "loop_noticed":
        this.items.push({
          key,
          at,
          step,
          kind: "loop",
          pattern: String(body.pattern ?? ""),
          advice: String(body.advice ?? ""),
        });
        break;
      case "plan_made": {
        const plan = body.plan as Plan;
        this.plans.push(plan);
        const number = this.plans.length;
        this.items.push({ key, at, step, kind: "plan", plan, reason: String(body.reason ?? ""), number });
        break;
      }
      case "workspace_checkpointed":
        this.items.push({
          key,
          at,
          step,
          kind: "checkpoint",
          commit: String(body.commit ?? ""),
          revision: Number(body.revision ?? 0),
          bundle: (body.bundle as Blob | null | undefined) ?? null,
        });
        break;
      case "approval_requested":
        this.items.push({ key, at, step, kind: "approval", request: body.request as ApprovalRequest, resolution: null });
        break;
      case "tool_started":
        this.#started(key, at, body.entry as Entry);
        break;
      case "tool_finished":
        this.#finished(key, at, body.entry as Entry, body.result as Result);
        break;
      case "run_finished":
        this.status = "finished";
        this.speech = "";
        this.stopReason = String(body.stop_reason ?? "");
        this.answer = String(body.answer ?? "");
        this.error = String(body.error ?? "");
        this.auditHead = String(body.audit_head ?? "") || this.auditHead;
        this.finishedAt = at;
        if ((body.usage as Usage | undefined)?.model_calls) this.usage = added(NOTHING_SPENT, body.usage as Usage);
        break;
      default:
        break;
    }
  }

  resolved(resolution: Resolution): void {
    this.revision += 1;
    this.items = this.items.map((item) =>
      item.kind === "approval" && item.request.approval_id === resolution.approval_id ? { ...item, resolution } : item,
    );
  }

  lost(reason: string, at: number): void {
    this.revision += 1;
    this.status = "lost";
    this.stopReason = "lost";
    this.speech = "";
    this.items.push({ key: `lost-${this.revision}`, at, step: this.step, kind: "lost", reason });
  }

  stopped(reason: string, at: number): void {
    this.revision += 1;
    this.status = "finished";
    this.stopReason = "cancelled";
    this.speech = "";
    this.items.push({ key: `stopped-${this.revision}`, at, step: this.step, kind: "stopped", reason });
  }

  reassigned(attempt: number, reason: string, at: number): void {
    this.revision += 1;
    this.status = "running";
    this.attempt = attempt;
    this.speech = "";
    this.items.push({ key: `again-${this.revision}`, at, step: this.step, kind: "reassigned", attempt, reason });
  }

  /** Its execution has ended; one that waited for a person has ended with it. */
  executionEnded(status: string): void {
    this.speech = "";
    this.revision += 1;
    if (this.status === "running" && !this.startedAt) this.status = "finished";
    if (this.status !== "awaiting_approval") return;
    this.status = "finished";
    this.stopReason = status === "cancelled" ? "cancelled" : "lost";
  }

  #begin(): void {
    this.items = this.items.filter((item) => item.kind === "lost" || item.kind === "reassigned");
    this.plans = [];
    this.#calls.clear();
    this.usage = NOTHING_SPENT;
    this.step = 0;
    this.answer = "";
    this.error = "";
  }

  #reply(key: string, at: number, step: number, body: Record<string, unknown>): void {
    const reply = body.reply as {
      message: { content?: string; tool_calls?: Call[] };
      finish_reason?: string;
      usage?: Usage;
      repairs?: string[];
      model?: string;
    };
    const usage = added(NOTHING_SPENT, reply.usage);
    const calls = (reply.message.tool_calls ?? []).map(asked);
    for (const call of calls) this.#calls.set(call.callId, key);
    this.items.push({
      key,
      at,
      step,
      kind: "reply",
      content: reply.message.content ?? "",
      calls,
      usage,
      durationMs: Number(body.duration_ms ?? 0),
      finishReason: reply.finish_reason ?? "",
      repairs: reply.repairs ?? [],
    });
    this.step = step;
    this.speech = "";
    this.model ||= reply.model ?? "";
    this.usage = added(this.usage, usage);
  }

  /** What the fleet says: to the model, or in answer to a call that no tool carries out. */
  #said(key: string, at: number, step: number, message: { role?: string; call_id?: string } | undefined): void {
    const text = content(message);
    const callId = message?.call_id ?? "";
    if (message?.role === "tool" && this.#calls.has(callId)) {
      // An answer may begin with any word, and is one: what cannot be read is refused under the tool's own name.
      const answer = this.#find(callId)?.name === "final_answer";
      const failed = text.startsWith(answer ? "Error: final_answer needs" : "Error:");
      this.#change(callId, { outcome: failed ? "error" : "success", [failed ? "error" : "content"]: text });
    } else this.items.push({ key, at, step, kind: "note", text });
  }

  #find(callId: string): CallView | undefined {
    const item = this.#item(this.#calls.get(callId));
    return item?.calls.find((call) => call.callId === callId);
  }

  #item(key: string | undefined): WithCalls | undefined {
    for (let at = this.items.length - 1; key !== undefined && at >= 0; at -= 1) {
      const item = this.items[at];
      if (item?.key === key) return "calls" in item ? item : undefined;
    }
    return undefined;
  }

  /** Says more of a call. What is drawn is told from what was drawn by its identity. */
  #change(callId: string, more: Partial<CallView>): void {
    const item = this.#item(this.#calls.get(callId));
    if (!item) return;
    const calls = item.calls.map((call) => (call.callId === callId ? { ...call, ...more } : call));
    this.items[this.items.lastIndexOf(item)] = { ...item, calls };
  }

  #repair(callId: string, repairs: string[]): void {
    if (callId) {
      this.#change(callId, { repairs });
      return;
    }
    const last = this.items.filter((item): item is Reply => item.kind === "reply").at(-1);
    if (last) this.items[this.items.lastIndexOf(last)] = { ...last, repairs: [...last.repairs, ...repairs] };
  }

  /** Makes room for the fleet's own calls, which no reply asked for. */
  #expect(key: string, at: number, entry: Entry): void {
    if (this.#calls.has(entry.call_id)) return;
    const call = asked({
      call_id: entry.call_id,
      name: `${entry.tool}_${entry.operation}`,
      arguments: JSON.stringify(entry.arguments ?? {}),
    });
    const last = this.items.at(-1);
    if (last?.kind === "calls") this.items[this.items.length - 1] = { ...last, calls: [...last.calls, call] };
    else this.items.push({ key, at, step: this.step, kind: "calls", calls: [call] });
    this.#calls.set(entry.call_id, last?.kind === "calls" ? last.key : key);
  }

  #started(key: string, at: number, entry: Entry): void {
    this.lastTool = `${entry.tool}_${entry.operation}`;
    this.#expect(key, at, entry);
    this.#change(entry.call_id, { outcome: "started" });
  }

  #finished(key: string, at: number, entry: Entry, result: Result): void {
    this.auditHead = entry.hash || this.auditHead;
    // A decision stands in the chain of the agent that asked; it is no tool call of the agent's.
    if (entry.tool === "approval") return;
    this.#expect(key, at, entry);
    this.#change(entry.call_id, {
      outcome: result.outcome || (result.success ? "success" : "error"),
      content: result.content ?? "",
      error: result.error ?? "",
      exitCode: result.exit_code ?? null,
      seconds: result.duration ?? 0,
      truncated: result.truncated ?? false,
      artifact: result.artifact ?? "",
      cached: result.cached ?? false,
    });
    this.lastTool = `${entry.tool}_${entry.operation}`;
    this.usage = added(this.usage, { tool_calls: 1 });
  }
}
