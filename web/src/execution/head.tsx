/** What an execution is about, where it stands, what it cost; and the way to stop it. */

import { useState } from "preact/hooks";
import { post } from "../api";
import { serverNow } from "../clock";
import { visible } from "../visible";
import { words } from "../types";
import {
  Button,
  Confirm,
  cost,
  count,
  duration,
  firstLine,
  Link,
  moment,
  PageHead,
  plural,
  StatusBadge,
  structured,
  Tag,
  TextField,
  toast,
  useNow,
} from "../ui";
import { baselineLine } from "./baseline";
import type { Task } from "./events";
import { Fold, LongText } from "./fold";
import type { Following } from "./following";
import { phaseOf, stepsOf } from "./phase";
import { toneOf } from "./verdict";
import type { ExecutionView } from "./view";

const CONNECTION: Readonly<Record<string, string>> = {
  connecting: "connecting",
  live: "live",
  reconnecting: "reconnecting",
  ended: "ended",
  "signed-out": "signed out",
  closed: "closed",
};

/** One line that names a task; as the lists have it. */
export function titleOf(task: Task): string {
  if (!task.workflow) return task.description;
  const inputs = structured(task.workflow.inputs) ?? {};
  const said = Object.values(inputs).find((value) => typeof value === "string" && value.trim()) as string | undefined;
  return said ? `${task.workflow.workflow.name}: ${said}` : task.workflow.workflow.name;
}

export function ExecutionHead({ id, following }: { id: string; following: Following }) {
  const { view, state } = following;
  const [stopping, setStopping] = useState(false);
  const task = view.task;
  const description = task ? titleOf(task) : "";
  return (
    <>
      <PageHead
        title={visible(firstLine(description, 120)) || visible(task?.task_id ?? `Execution ${id}`)}
        lead={
          <span class="row execution-lead">
            <StatusBadge status={view.status} {...(view.ended && { tone: toneOf(view) })} />
            {!view.ended && <Tag>{phaseOf(view)}</Tag>}
            {task && <Tag>{words(task.kind)}</Tag>}
            {task && <Tag>{words(task.role)}</Tag>}
            <span class={`connection connection-${state}`} data-state={state}>
              {CONNECTION[state] ?? state}
            </span>
            <Figures view={view} />
          </span>
        }
      >
        {!view.ended && (
          <Button kind="danger" disabled={view.cancelRequested} onClick={() => setStopping(true)}>
            {view.cancelRequested ? "Stopping …" : "Cancel"}
          </Button>
        )}
      </PageHead>
      <Steps view={view} />
      {!view.ended && <Tested view={view} />}
      {task && (
        <Fold
          class="execution-task"
          head={<>Task {visible(task.task_id)}</>}
          body={() => <TaskFacts id={id} view={view} description={task.description} />}
        />
      )}
      {stopping && <Stop id={id} onClose={() => setStopping(false)} />}
    </>
  );
}

/** What it took so far, in a line. */
function Figures({ view }: { view: ExecutionView }) {
  useNow(1000);
  const spent = view.spent;
  const took = view.ended ? view.durationMs || view.finishedAt - view.startedAt : serverNow() - view.startedAt;
  const agents = [...view.agents.values()].filter((one) => one.kind === "solver").length;
  const figures = [
    duration(Math.max(0, took)),
    view.subtasks.length
      ? `${view.subtaskOutcomes.size} of ${view.subtasks.length} subtasks`
      : view.task?.kind === "judge"
        ? plural(view.task.patches?.length ?? view.candidates.size, "patch", "patches")
        : plural(agents, "agent"),
    plural(spent.prompt_tokens + spent.completion_tokens, "token"),
    spent.cached_tokens ? `${count(spent.cached_tokens)} cached` : "",
    plural(spent.model_calls, "model call"),
    plural(spent.tool_calls, "tool call"),
    spent.cost ? cost(spent.cost) : "",
  ];
  return <span class="muted small figures-line">{figures.filter(Boolean).join(" · ")}</span>;
}

const STEP_WORDS: Readonly<Record<string, string>> = { done: "done", current: "running", todo: "to come", skipped: "skipped" };

/** The steps that it goes through, with what each takes. */
function Steps({ view }: { view: ExecutionView }) {
  useNow(1000);
  const steps = stepsOf(view, serverNow());
  if (!steps.length) return null;
  return (
    <ol class="steps" aria-label="Steps">
      {steps.map((step) => (
        <li key={step.name} class={`step step-${step.state}`} aria-current={step.state === "current" ? "step" : undefined}>
          <span class="step-name">{step.name}</span> <span class="sr-only">{STEP_WORDS[step.state]}</span>
          {step.ms > 0 && <span class="muted small">{duration(step.ms)}</span>}
        </li>
      ))}
    </ol>
  );
}

/** What the untouched commit's tests say, and which checks run since when. */
function Tested({ view }: { view: ExecutionView }) {
  useNow(1000);
  const line = baselineLine(view.baseline, view.baselineError);
  return (
    <>
      {line && <p class="small baseline">Baseline: {visible(line)}</p>}
      {[...view.checking].map(([name, checks]) => (
        <p key={name} class="small muted">
          {visible(name) || "baseline"}: {visible(checks.command) || "the repository's tests"},{" "}
          {duration(Math.max(0, serverNow() - checks.since))}
        </p>
      ))}
    </>
  );
}

function TaskFacts({ id, view, description }: { id: string; view: ExecutionView; description: string }) {
  const task = view.task;
  const facts: [string, string][] = [
    ["Execution", id],
    ["Repository", task?.repo?.location ?? ""],
    ["From commit", view.baseCommit],
    ["Accepted", moment(view.startedAt)],
    ["Ended", view.finishedAt ? moment(view.finishedAt) : ""],
    ["Driven by", view.owner],
    ["Requirements", (task?.constraints?.requirements ?? []).join("; ")],
    ["Rubric", task?.constraints?.rubric ?? ""],
    ["Cancelled because", view.cancelReason],
  ];
  return (
    <div class="stack">
      <LongText text={description} />
      {task?.parent_execution_id && (
        <p>
          <Link href={`/executions/${encodeURIComponent(task.parent_execution_id)}`}>The execution that it is a part of</Link>
        </p>
      )}
      <dl class="facts">
        {facts
          .filter(([, value]) => value)
          .map(([name, value]) => [
            <dt key={`${name}-name`}>{name}</dt>,
            <dd key={name}>{visible(value)}</dd>,
          ])}
      </dl>
      <Context view={view} />
    </div>
  );
}

function Context({ view }: { view: ExecutionView }) {
  const context = view.context;
  if (view.contextError) return <p class="muted">No context: {visible(view.contextError)}</p>;
  if (!context || (!context.text && !context.recalled.length)) return null;
  return (
    <Fold
      head={
        <>
          Context that agents were given ({count(context.tokens)} tokens, {context.recalled.length} memories)
        </>
      }
      body={() => (
        <div class="stack">
          {context.text && <LongText text={context.text} />}
          {context.recalled.length > 0 && (
            <ul class="stack-tight">
              {context.recalled.slice(0, 50).map((one, at) => (
                <li key={at}>
                  <span class="prose-text">{visible(one.memory.text)}</span>{" "}
                  <span class="muted small">
                    {visible(one.memory.source || one.memory.namespace)} · {one.score.toFixed(2)} · by {one.found_by}
                  </span>
                </li>
              ))}
            </ul>
          )}
        </div>
      )}
    />
  );
}

function Stop({ id, onClose }: { id: string; onClose: () => void }) {
  const [reason, setReason] = useState("");
  return (
    <Confirm
      title="Cancel this execution?"
      yes="Cancel it"
      onClose={onClose}
      onYes={async () => {
        const answer = await post<{ already_ended: boolean }>(`/api/executions/${encodeURIComponent(id)}/cancel`, {
          reason,
        });
        toast(answer.already_ended ? "It had already ended." : "It is being stopped.");
      }}
    >
      <p>Its agents and their processes are stopped. What was done stays in its log.</p>
      <TextField label="Reason (optional)" value={reason} onInput={setReason} />
    </Confirm>
  );
}
