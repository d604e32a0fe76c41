/** Plans, subtasks and workflows of an execution as graphs; what each node was given and gave; steering. */

import { useState } from "preact/hooks";
import { post } from "../api";
import { visible } from "../visible";
import { planGraph, subtaskGraph, subtaskStatus, workflowGraph, type Graph } from "../graph/model";
import { GraphPicture } from "../graph/picture";
import { words } from "../types";
import { Button, duration, Empty, Link, ProblemBanner, StatusBadge, toast } from "../ui";
import type { NodeUpdate } from "./events";
import { Fold, LongText } from "./fold";
import { Whole } from "./whole";
import type { ExecutionView } from "./view";

export function hasGraph(view: ExecutionView): boolean {
  return Boolean(
    view.task?.workflow || view.subtasks.length || [...view.agents.values()].some((agent) => agent.plans.length),
  );
}

export function GraphTab({ id, view }: { id: string; view: ExecutionView }) {
  const workflow = workflowGraph(view);
  const subtasks = subtaskGraph(view);
  const plans = [...view.agents.values()].flatMap((agent) => planGraph(agent) ?? []);
  if (!workflow && !subtasks && !plans.length) return <Empty title="There is no plan to draw" />;
  return (
    <div class="stack">
      {workflow && <Workflow id={id} view={view} graph={workflow} />}
      {subtasks && <Subtasks view={view} graph={subtasks} />}
      {plans.slice(0, 12).map((graph) => (
        <section key={graph.title} class="stack-tight">
          <h3>{visible(graph.title)}</h3>
          <GraphPicture graph={graph} />
        </section>
      ))}
    </div>
  );
}

function Workflow({ id, view, graph }: { id: string; view: ExecutionView; graph: Graph }) {
  const [chosen, setChosen] = useState("");
  const top = new Set(graph.nodes.map((node) => node.id));
  const inner = [...view.nodes.values()].filter((node) => !top.has(node.node_id));
  const paused = [...view.nodes.values()].filter((node) => node.status === "paused");
  const known = view.nodes.get(chosen);
  return (
    <section class="stack" aria-label="Workflow">
      {!view.ended && <Steering id={id} paused={paused.map((node) => node.node_id)} />}
      <div class="graph-with-details">
        <GraphPicture graph={graph} chosen={chosen} onChoose={setChosen} />
        <div class="stack">
          {/* Only that it is there is read out: what it says changes while it runs. */}
          <p class="sr-only" role="status">
            {chosen && `Node ${visible(chosen)} is shown`}
          </p>
          {chosen ? (
            <NodeDetails id={id} name={chosen} node={known} />
          ) : (
            <p class="muted">Choose a node to see what it was given and what it gave.</p>
          )}
        </div>
      </div>
      {inner.length > 0 && (
        <Fold
          head={<>Nodes of maps and sub-workflows ({inner.length})</>}
          body={() => (
            <ul class="list-plain stack-tight">
              {inner.slice(0, 500).map((node) => (
                <li key={node.node_id} class="row">
                  <button type="button" class="link-button" onClick={() => setChosen(node.node_id)}>
                    {visible(node.node_id)}
                  </button>
                  <StatusBadge status={node.status} />
                </li>
              ))}
            </ul>
          )}
        />
      )}
    </section>
  );
}

const ACTIONS = [
  ["STEER_ACTION_PAUSE", "Pause"],
  ["STEER_ACTION_STEP", "Step"],
  ["STEER_ACTION_CONTINUE", "Continue"],
] as const;

function Steering({ id, paused }: { id: string; paused: string[] }) {
  const [busy, setBusy] = useState("");
  const [problem, setProblem] = useState<unknown>();
  async function steer(action: string, nodeId = ""): Promise<void> {
    setBusy(action + nodeId);
    setProblem(undefined);
    try {
      await post(`/api/workflow-runs/${encodeURIComponent(id)}/steer`, { action, node_id: nodeId });
      toast("The run is told.");
    } catch (error) {
      setProblem(error);
    }
    setBusy("");
  }
  return (
    <div class="card stack-tight" role="group" aria-label="Steer the run">
      <div class="row">
        {ACTIONS.map(([action, name]) => (
          <Button key={action} small busy={busy === action} onClick={() => void steer(action)}>
            {name}
          </Button>
        ))}
        <span class="muted small" role="status">
          {paused.length
            ? `Paused before ${paused.map(visible).join(", ")}.`
            : "Pause holds before every node that has not begun."}
        </span>
      </div>
      {paused.length > 1 && (
        <div class="row">
          {paused.slice(0, 20).map((node) => (
            <Button key={node} small busy={busy === `STEER_ACTION_STEP${node}`} onClick={() => void steer("STEER_ACTION_STEP", node)}>
              Let {visible(node)} go
            </Button>
          ))}
        </div>
      )}
      <ProblemBanner problem={problem} />
    </div>
  );
}

function NodeDetails({ id, name, node }: { id: string; name: string; node: NodeUpdate | undefined }) {
  return (
    <article class="card stack-tight" aria-label={`Node ${visible(name)}`}>
      <div class="row-spread">
        <h3>{visible(name)}</h3>
        <StatusBadge status={node?.status ?? "pending"} />
      </div>
      {!node && <p class="muted">It has not begun.</p>}
      {node && (
        <>
          <p class="muted small">
            {[
              node.attempt > 1 ? `attempt ${node.attempt}, ${node.failures ?? 0} failed` : "",
              node.duration_ms ? duration(node.duration_ms) : "",
              node.label ? `took the way ${node.label}` : "",
            ]
              .filter(Boolean)
              .map(visible)
              .join(" · ")}
          </p>
          {node.execution_id && (
            <Link href={`/executions/${encodeURIComponent(node.execution_id)}`}>The execution that does its work</Link>
          )}
          {node.error && <p class="bad prose-text">{visible(node.error)}</p>}
          {node.inputs && (
            <>
              <h4>Inputs</h4>
              <LongText text={node.inputs} />
            </>
          )}
          {(node.output || node.output_blob) && (
            <>
              <h4>Output</h4>
              {node.output && <LongText text={node.output} />}
              {node.output_blob && <Whole id={id} digest={node.output_blob.digest} name={`${name}.json`} />}
            </>
          )}
        </>
      )}
    </article>
  );
}

function Subtasks({ view, graph }: { view: ExecutionView; graph: Graph }) {
  const [chosen, setChosen] = useState("");
  const subtask = view.subtasks.find((one) => one.subtask_id === chosen);
  const outcome = view.subtaskOutcomes.get(chosen);
  const execution = view.subtaskExecutions.get(chosen);
  return (
    <section class="stack" aria-label="Subtasks">
      <h3>Subtasks</h3>
      <div class="graph-with-details">
        <GraphPicture graph={graph} chosen={chosen} onChoose={setChosen} />
        <div>
          <p class="sr-only" role="status">
            {subtask && `Subtask ${visible(subtask.subtask_id)} is shown`}
          </p>
          {subtask ? (
            <article class="card stack-tight">
              <div class="row-spread">
                <h4>{visible(subtask.subtask_id)}</h4>
                <StatusBadge status={subtaskStatus(view, subtask.subtask_id)} />
              </div>
              <p class="muted small">
                {words(subtask.role)}, priority {subtask.priority}
              </p>
              <LongText text={subtask.description} />
              {outcome?.error && <p class="bad prose-text">{visible(outcome.error)}</p>}
              {outcome?.commit_sha && (
                <p>
                  Merged as <code>{visible(outcome.commit_sha.slice(0, 12))}</code>
                </p>
              )}
              {execution && <Link href={`/executions/${encodeURIComponent(execution)}`}>Its execution</Link>}
            </article>
          ) : (
            <p class="muted">Choose a subtask to see what it is about.</p>
          )}
        </div>
      </div>
    </section>
  );
}
