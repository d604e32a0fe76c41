// One message on its way: what a chat answers, as it comes.
import { call, get, post, Problem, send, serverSentEvents } from "../api";

export interface NamedThing {
  kind: string;
  name: string;
  position: number;
}

export interface Reference {
  phrase: string;
  standing: string;
  things: NamedThing[];
}

export interface AnswerTable {
  title: string;
  columns: string[];
  rows: { cells: string[] }[];
}

export interface Answer {
  session_id: string;
  turn: number;
  text: string;
  tables: AnswerTable[];
  success: boolean;
  stop_reason: string;
  references: Reference[];
  tools: string[];
  task_proposed: boolean;
  execution_id: string;
  prompt_tokens: number;
  completion_tokens: number;
}

export interface Turn {
  number: number;
  text: string;
  answer: string;
  answered_at_ms: number;
  tools: string[];
  success: boolean;
  stop_reason: string;
  execution_id: string;
  tables: AnswerTable[];
  references: Reference[];
}

export interface Conversation {
  session_id: string;
  started_at_ms: number;
  updated_at_ms: number;
  turn_count: number;
  memory_namespaces: string[];
  last_text: string;
  turns: Turn[];
  task_proposed: boolean;
}

export interface Message {
  readonly text: string;
  /** Sent again with the same id, it is answered once. */
  readonly id: string;
}

export interface ToolStep {
  readonly tool: string;
  readonly state: "running" | "done" | "failed";
}

interface Update {
  tool_called?: { tool: string };
  tool_ended?: { tool: string; success: boolean };
  text_delta?: string;
  answer?: Answer;
}

export interface Watcher {
  onTools: (steps: readonly ToolStep[]) => void;
  onText: (text: string) => void;
}

/** Sends a message and answers its answer; what happens before that goes to the watcher. Raises Problem. */
export async function ask(
  request: { session: string; message: Message; seenTurn: number; namespaces: readonly string[] },
  watcher: Watcher,
  signal: AbortSignal,
): Promise<Answer> {
  const body = {
    session_id: request.session,
    text: request.message.text,
    channel: "CHANNEL_MARKDOWN",
    message_id: request.message.id,
    memory_namespaces: request.namespaces,
    seen_turn: request.seenTurn,
  };
  const response = await send("POST", "/api/chat", { body, signal, accept: "text/event-stream" });
  let steps: ToolStep[] = [];
  let text = "";
  for await (const { event, data } of serverSentEvents(response)) {
    const said = JSON.parse(data) as Update & { title?: string; status?: number; detail?: string; code?: string; field?: string; hint?: string };
    if (event === "problem") {
      throw new Problem(said.title ?? "The chat failed", said.status ?? 500, said.detail ?? "", said.code, said.field, said.hint);
    }
    if (said.answer) return said.answer;
    if (said.tool_called) {
      steps = [...steps, { tool: said.tool_called.tool, state: "running" }];
      text = "";
      watcher.onText(text);
      watcher.onTools(steps);
    } else if (said.tool_ended) {
      const { tool, success } = said.tool_ended;
      const at = steps.findIndex((step) => step.tool === tool && step.state === "running");
      steps = steps.map((step, index) => (index === at ? { tool, state: success ? "done" : "failed" } : step));
      watcher.onTools(steps);
    } else if (said.text_delta) {
      text += said.text_delta;
      watcher.onText(text);
    }
  }
  throw new Problem("The answer broke off", 0, "The connection ended before the answer was there.", "UNAVAILABLE", "", "Send it again: nothing is done twice.");
}

/** Stops the message that is being answered; its answer then says so. Raises Problem. */
export async function stop(session: string): Promise<void> {
  const found = await get<{ executions: { execution_id: string }[] }>("/api/executions", { task_id: session, page_size: 1 });
  for (const { execution_id: id } of found.executions) {
    await post(`/api/executions/${encodeURIComponent(id)}/cancel`, { reason: "stopped in the chat" });
  }
}

/** A conversation; nothing where it has not begun. Raises Problem. */
export async function conversation(session: string, signal: AbortSignal): Promise<Conversation | undefined> {
  try {
    const path = `/api/conversations/${encodeURIComponent(session)}`;
    return (await call<{ conversation: Conversation }>("GET", path, { signal })).conversation;
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return undefined;
    throw error;
  }
}
