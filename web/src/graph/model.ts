/** Graphs of an execution: what its nodes are, what comes after what, and where each stands. */

import type { AgentView } from "../execution/agent";
import type { ExecutionView } from "../execution/view";
import type { WorkflowDefinition, WorkflowNode } from "../execution/events";

export interface GraphNode {
  id: string;
  label: string;
  /** What it does, in a word or two. */
  detail: string;
  /** Empty: nothing is known of it. */
  status: string;
  breakpoint?: boolean;
}

export interface GraphEdge {
  source: string;
  target: string;
  label: string;
}

export interface Graph {
  title: string;
  nodes: GraphNode[];
  edges: GraphEdge[];
}

/** A workflow as the services send it. */
export interface WorkflowGraph {
  nodes: { id: string; type: string; label: string; breakpoint: boolean; line: number }[];
  edges: { source: string; target: string; label: string }[];
}

/** A workflow that does not run. */
export function drawn(title: string, graph: WorkflowGraph): Graph {
  return {
    title,
    nodes: graph.nodes.map((node) => ({
      id: node.id,
      label: node.id,
      detail: node.type === node.label || !node.label ? node.type : `${node.type}: ${node.label}`,
      status: "",
      breakpoint: node.breakpoint,
    })),
    edges: graph.edges.map((edge) => ({ source: edge.source, target: edge.target, label: edge.label ?? "" })),
  };
}

/** A run of a workflow; what a map or a sub-workflow is made of is listed beside it. */
export function workflowGraph(view: ExecutionView): Graph | null {
  const definition = view.task?.workflow?.workflow;
  if (!definition) return null;
  return {
    title: definition.name,
    nodes: definition.nodes.map((node) => ({
      id: node.id,
      label: node.id,
      detail: doing(node),
      status: view.nodes.get(node.id)?.status ?? "pending",
      breakpoint: node.breakpoint ?? false,
    })),
    edges: edgesOf(definition),
  };
}

/** The subtasks of an execution. */
export function subtaskGraph(view: ExecutionView): Graph | null {
  if (!view.subtasks.length) return null;
  return {
    title: "Subtasks",
    nodes: view.subtasks.map((one) => ({
      id: one.subtask_id,
      label: one.subtask_id,
      detail: one.role.toLowerCase(),
      status: subtaskStatus(view, one.subtask_id),
    })),
    edges: view.subtasks.flatMap((one) =>
      one.dependencies.map((source) => ({ source, target: one.subtask_id, label: "" })),
    ),
  };
}

export function subtaskStatus(view: ExecutionView, id: string): string {
  const outcome = view.subtaskOutcomes.get(id);
  if (outcome) return outcome.status;
  return view.subtaskExecutions.has(id) ? "running" : "pending";
}

/** The last plan of an agent, a chain of its steps. */
export function planGraph(agent: AgentView): Graph | null {
  const plan = agent.plans.at(-1);
  if (!plan?.steps.length) return null;
  const number = agent.plans.length;
  const ids = plan.steps.map((_, at) => String(at + 1));
  return {
    title: `Plan of ${agent.id}`,
    nodes: plan.steps.map((step, at) => ({
      id: String(at + 1),
      label: `${at + 1}. ${step.tool}_${step.operation}`,
      detail: step.why,
      status: stepStatus(agent.planStep(number, at + 1)),
    })),
    edges: ids.slice(1).map((target, at) => ({ source: ids[at] ?? "", target, label: "" })),
  };
}

function stepStatus(outcome: string): string {
  if (!outcome) return "pending";
  if (outcome === "success") return "completed";
  return outcome === "started" || outcome === "waiting" ? "running" : "failed";
}

function doing(node: WorkflowNode): string {
  if (node.type === "tool" && node.tool) return `tool: ${node.tool}`;
  if (node.type === "map" && node.node) return `map of ${node.node.type}`;
  if (node.type === "workflow" && node.workflow)
    return `workflow: ${typeof node.workflow === "string" ? node.workflow : node.workflow.name}`;
  return node.type;
}

function edgesOf(definition: WorkflowDefinition): GraphEdge[] {
  return definition.edges.map((edge) => ({ source: edge.source, target: edge.target, label: edge.label ?? "" }));
}
