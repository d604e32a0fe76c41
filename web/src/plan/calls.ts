// Plan sessions as the gateway tells of them, and the requests that are under way.
import { signal } from "@preact/signals";
import { get, post } from "../api";
import { randomName } from "../names";

export interface Research {
  summary: string;
  sources: string[];
  data_points: string[];
  coverage: number;
  error: string;
}

export interface MemoryResults {
  /** Absent where nothing was asked of memory. */
  coverage?: number;
  content: string;
  gaps: string[];
  sources: string[];
  research: Research | null;
}

export interface ToolCallMade {
  step: number;
  tool: string;
  arguments: string;
  success: boolean;
  outcome: string;
  result: string;
}

export interface PlanSession {
  session_id: string;
  goal: string;
  selected_entities: string[];
  status: string;
  approach: string;
  reasoning: string;
  question: string;
  memory_results: MemoryResults | null;
  results: string;
  tool_calls_made: ToolCallMade[];
  iterations: number;
  stop_reason: string;
  usage: { prompt_tokens: number; completion_tokens: number; model_calls: number; tool_calls: number; cost: number; duration_ms: number } | null;
  error: string;
  proposals: number;
  started_at_ms: number;
  updated_at_ms: number;
  working: boolean;
}

/** By session: the request that this page waits for, or what was wrong with the last one. */
export const underway = signal<ReadonlyMap<string, { busy: boolean; problem?: unknown }>>(new Map());

function say(session: string, standing: { busy: boolean; problem?: unknown }): void {
  underway.value = new Map(underway.value).set(session, standing);
}

/** Sends what may take a minute; the session has what came of it, whoever waits. */
function send(session: string, path: string, body: Record<string, unknown>): Promise<void> {
  say(session, { busy: true });
  return post(path, body).then(
    () => say(session, { busy: false }),
    (problem: unknown) => say(session, { busy: false, problem }),
  );
}

/** Begins a session under a name of its own; answers the name at once. */
export function begin(goal: string, entities: readonly string[]): string {
  const session = randomName("plan");
  void send(session, "/api/execute-plan", { goal, selected_entities: entities, session_id: session });
  return session;
}

/** Decides about the proposal of that number, and about no other that may have taken its place meanwhile. */
export function decide(session: string, proposal: number, decision: string, adjustment: string): Promise<void> {
  return send(session, "/api/approve-approach", {
    session_id: session,
    proposal,
    decision,
    ...(adjustment && decision !== "approved" && { adjustment }),
  });
}

export function carryOut(session: string): Promise<void> {
  return send(session, "/api/continue-plan", { session_id: session });
}

export async function session(id: string, signal: AbortSignal): Promise<PlanSession | null> {
  const answer = await get<{ session: PlanSession | null }>(`/api/plan-sessions/${encodeURIComponent(id)}`, {}, signal);
  return answer.session;
}

export function sessions(pageToken: string, signal: AbortSignal): Promise<{ sessions: PlanSession[]; next_page_token: string }> {
  return get("/api/plan-sessions", { page_size: 50, page_token: pageToken }, signal);
}
