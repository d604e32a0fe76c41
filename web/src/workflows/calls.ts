// Workflows as the gateway tells of them.
import { get, post } from "../api";
import type { WorkflowGraph } from "../graph/model";

export interface WorkflowInput {
  name: string;
  type: string;
  description: string;
  required: boolean;
  default_json: string;
}

export interface Summary {
  name: string;
  description: string;
  inputs: WorkflowInput[];
  outputs: string[];
  nodes: number;
  built_in: boolean;
}

export interface Fault {
  message: string;
  line: number;
  node: string;
  hint: string;
}

export interface Validation {
  faults: Fault[];
  summary: Summary | null;
  mermaid: string;
  svg: string;
  graph: WorkflowGraph | null;
}

export interface Named {
  summary: Summary | null;
  definition: string;
  mermaid: string;
  svg: string;
  graph: WorkflowGraph | null;
}

export interface Run {
  name?: string;
  definition?: string;
  task_id: string;
  inputs_json: string;
  approval: string;
  repo?: { path?: string; url?: string; ref?: string };
}

export function list(signal: AbortSignal): Promise<{ workflows: Summary[]; broken: string[] }> {
  return get("/api/workflows", {}, signal);
}

export function named(name: string, signal: AbortSignal): Promise<Named> {
  return get(`/api/workflows/${encodeURIComponent(name)}`, {}, signal);
}

export function validate(definition: string, signal: AbortSignal): Promise<Validation> {
  return post("/api/workflows/validate", { definition }, { signal });
}

export function run(order: Run): Promise<{ execution_id: string }> {
  return post("/api/workflow-runs", order);
}
