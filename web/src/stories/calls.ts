// Stories as the context service has them.
import { get, post, Problem } from "../api";

export interface Story {
  story_id: string;
  title: string;
  description: string;
  acceptance_criteria: string[];
  case_id: string;
  phase: string;
  notes: Record<string, string>;
  created_at_ms: number;
  updated_at_ms: number;
}

export interface StoryTask {
  task_id: string;
  story_id: string;
  title: string;
  description: string;
  role: string;
  state: string;
  depends_on: string[];
}

export interface Decision {
  decision_id: string;
  story_id: string;
  title: string;
  rationale: string;
  alternatives: string[];
  state: string;
  decided_by: string;
  supersedes: string;
  created_at_ms: number;
}

export interface WorkRecord {
  execution_id: string;
  task_id: string;
  kind: string;
  status: string;
  summary: string;
  ended_at_ms: number;
}

export interface StorySession {
  story?: Story | null;
  version: number;
  open_tasks: StoryTask[];
  ready: string[];
  decisions: Decision[];
  work: WorkRecord[];
  phases: { phase: string; at_ms: number; reason: string; by: string }[];
  next_steps: string[];
}

export interface Relation {
  source: string;
  kind: string;
  target: string;
}

export interface Graph {
  relations: Relation[];
  nodes: string[];
  truncated: boolean;
}

export interface ContextBlock {
  kind: string;
  title: string;
  text: string;
  tokens: number;
  relevance: number;
}

export interface StoryContext {
  blocks: ContextBlock[];
  token_count: number;
  version_hash: string;
  omitted: string[];
}

/** A story in a list. */
export interface StoryCard {
  story_id: string;
  title: string;
  case_id: string;
  phase: string;
  version: number;
  task_count: number;
  open_task_count: number;
  decision_count: number;
  created_at_ms: number;
  changed_at_ms: number;
}

export interface ListStories {
  stories: StoryCard[];
  next_page_token: string;
}

export const PHASES = ["PLAN", "DESIGN", "BUILD", "TEST", "REVIEW", "DONE"] as const;

export interface Opened {
  readonly session: StorySession;
  readonly graph: Graph;
}

/** A story with what surrounds it. Raises Problem. */
export async function openStory(id: string, signal: AbortSignal): Promise<Opened> {
  const [told, graph] = await Promise.all([
    post<{ stories: StorySession[] }>("/api/context/rehydrate", { story_id: id }, { signal }),
    get<Graph>("/api/graph", { node: `story:${id}`, depth: 2, page_size: 500 }, signal),
  ]);
  const session = told.stories[0];
  if (!session?.story) throw new Problem("Not found", 404, `There is no story ${id}.`, "NOT_FOUND");
  return { session, graph };
}

/** Where a node of the graph is shown, if it is. */
export function placeOf(node: string): string | undefined {
  const [kind = "", ...rest] = node.split(":");
  const id = rest.join(":");
  if (kind === "story") return `/stories/${encodeURIComponent(id)}`;
  if (kind === "execution") return `/executions/${encodeURIComponent(id)}`;
  return undefined;
}
