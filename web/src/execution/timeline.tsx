/** Agents side by side, each with its steps as they happen. */

import { useState } from "preact/hooks";
import { visible } from "../visible";
import { Button, cost, count, duration, Empty, firstLine, StatusBadge, tokens } from "../ui";
import type { AgentView } from "./agent";
import { Fold, LongText, Revised } from "./fold";
import { ItemView } from "./items";
import type { AgentKind } from "./names";
import { repeated, verdictOf } from "./verdict";
import type { ExecutionView } from "./view";

const AGENTS_AT_ONCE = 12;
const ITEMS_AT_ONCE = 12;

const BY_NAME = new Intl.Collator("en", { numeric: true });

const GROUPS: readonly (readonly [title: string, kinds: readonly AgentKind[]])[] = [
  ["Agents", ["solver"]],
  ["Planner and merges", ["planner", "merge"]],
  ["Reviews", ["review"]],
  ["Revisions", ["revision"]],
  ["Judges", ["judge"]],
];

export function Timeline({ id, view }: { id: string; view: ExecutionView }) {
  const agents = [...view.agents.values()].sort((one, other) => BY_NAME.compare(one.id, other.id));
  if (!agents.length)
    return <Empty title={view.ended ? "No agent was at work here" : "No agent has begun yet"} />;
  return (
    <div class="stack">
      {GROUPS.map(([title, kinds]) => {
        const group = agents.filter((agent) => kinds.includes(agent.kind));
        if (!group.length) return null;
        return <Group key={title} id={id} view={view} title={title} agents={group} folded={title !== "Agents"} />;
      })}
    </div>
  );
}

function Group(props: { id: string; view: ExecutionView; title: string; agents: AgentView[]; folded: boolean }) {
  const { id, view, title, agents, folded } = props;
  const [shown, setShown] = useState(AGENTS_AT_ONCE);
  const body = () => (
    <>
      <div class="agents">
        {agents.slice(0, shown).map((agent) => (
          <Revised key={agent.id} revision={`${agent.revision} ${verdictOf(view, agent)}`} draw={() => <Agent id={id} agent={agent} revision={agent.revision} verdict={verdictOf(view, agent)} />} />
        ))}
      </div>
      {agents.length > shown && (
        <Button small onClick={() => setShown(shown + AGENTS_AT_ONCE * 2)}>
          Show more of {count(agents.length)} agents
        </Button>
      )}
    </>
  );
  if (folded)
    return (
      <Fold
        class="agent-group"
        open={!agents.every((agent) => agent.status === "finished")}
        head={
          <>
            {title} <span class="tab-count">{agents.length}</span>
          </>
        }
        body={body}
      />
    );
  return <section aria-label={title}>{body()}</section>;
}

/** No component: the agent is the same one when it has changed. */
function agentBadge(agent: AgentView, verdict: string) {
  if (agent.status !== "finished") return <StatusBadge status={agent.status} />;
  // An answer is no success: whether it is one, checks say.
  if (agent.stopReason === "final_answer") return verdict ? <StatusBadge status={verdict} /> : <StatusBadge status="answered" tone="calm" />;
  return <StatusBadge status={agent.stopReason || "finished"} tone={agent.stopReason === "cancelled" ? "calm" : "warn"} />;
}

function Agent({ id, agent, verdict }: { id: string; agent: AgentView; revision: number; verdict: string }) {
  const [shown, setShown] = useState(ITEMS_AT_ONCE);
  const start = Math.max(0, agent.items.length - shown);
  return (
    <article class="card agent" aria-label={visible(agent.id)} data-agent={agent.id}>
      <header class="agent-head">
        <div class="row-spread">
          <h3 class="agent-name">{visible(agent.id)}</h3>
          {agentBadge(agent, verdict)}
        </div>
        <p class="muted small agent-facts">
          {[
            agent.role.toLowerCase(),
            agent.model,
            `step ${agent.step}`,
            `${tokens(agent.usage)} tokens`,
            `${count(agent.usage.tool_calls)} ${agent.usage.tool_calls === 1 ? "call" : "calls"}`,
            agent.usage.cost ? cost(agent.usage.cost) : "",
            agent.finishedAt ? duration(agent.finishedAt - agent.startedAt) : "",
            agent.attempt > 1 ? `attempt ${agent.attempt}` : "",
          ]
            .filter(Boolean)
            .map(visible)
            .join(" · ")}
        </p>
      </header>
      {agent.instructions && (
        <Fold head="What it was told" body={() => <LongText text={agent.instructions} most={4_000} plain />} />
      )}
      {start > 0 && (
        <Button small kind="quiet" onClick={() => setShown(shown + ITEMS_AT_ONCE * 4)}>
          {start} earlier {start === 1 ? "entry" : "entries"}
        </Button>
      )}
      <ol class="list-plain items">
        {agent.items.slice(start).map((item) => (
          <li key={item.key} class={`item item-${item.kind}`}>
            <ItemView id={id} item={item} />
          </li>
        ))}
      </ol>
      {agent.speech && (
        <div class="speech">
          <span class="muted small">writing …</span>
          <p class="prose-text">{visible(agent.speech.slice(-1_200))}</p>
        </div>
      )}
      {agent.status === "finished" && (agent.answer || agent.error) && (
        <div class="agent-answer">
          {agent.error && <p class="bad prose-text">{visible(firstLine(agent.error, 400))}</p>}
          {agent.answer && !repeated(agent) && <LongText text={agent.answer} most={600} />}
        </div>
      )}
    </article>
  );
}
