/** One plan session: the proposal and what it stands on, the decision, the result. */

import { useState } from "preact/hooks";
import { Problem } from "../api";
import { visible } from "../visible";
import { Fold, LongText, pretty } from "../execution/fold";
import { Answer } from "../execution/gate";
import { gist } from "../execution/items";
import { MemoryFound } from "../execution/memory-found";
import { RatingCard } from "../execution/rating";
import { words } from "../types";
import { Button, cost, count, duration, Empty, firstLine, Link, Loading, Note, PageHead, ProblemBanner, StatusBadge, Tag, tokens, useLoad } from "../ui";
import { carryOut, decide, session as fetchSession, underway, type MemoryResults, type PlanSession, type Research } from "./calls";

const WORKING = ["planning", "executing"];

export function SessionView({ id }: { id: string }) {
  const mine = underway.value.get(id);
  const [quick, setQuick] = useState(true);
  const loaded = useLoad(
    async (signal) => {
      const found = await fetchSession(id, signal);
      setQuick(Boolean(found && (found.working || WORKING.includes(found.status))));
      return found;
    },
    `${id} ${mine?.busy ?? false}`,
    quick || mine?.busy ? 1_000 : 5_000,
  );
  const found = loaded.value;
  const unknown = loaded.problem instanceof Problem && loaded.problem.status === 404;
  if (!found)
    return (
      <div class="stack">
        <PageHead title="Plan" />
        <ProblemBanner problem={mine?.problem} />
        {unknown && !mine?.busy ? (
          <Empty title="Not found">
            <Link href="/plans">To the plans</Link>
          </Empty>
        ) : loaded.problem && !unknown ? (
          <ProblemBanner problem={loaded.problem} retry={loaded.reload} />
        ) : (
          <Loading what="Searching memory" />
        )}
      </div>
    );
  return <Session id={id} found={found} busy={mine?.busy ?? false} problem={mine?.problem} />;
}

function Session({ id, found, busy, problem }: { id: string; found: PlanSession; busy: boolean; problem: unknown }) {
  const asks = found.status === "awaiting_answer";
  const waits = asks || found.status === "awaiting_approval";
  return (
    <div class="stack">
      <PageHead
        title={visible(firstLine(found.goal, 120)) || id}
        lead={
          <span class="row">
            <StatusBadge status={found.status} />
            {found.proposals > 1 && <Tag>proposal {found.proposals}</Tag>}
            {found.stop_reason && found.stop_reason !== found.status && <Tag>{words(found.stop_reason)}</Tag>}
            {found.usage && <span class="muted small">{spent(found)}</span>}
          </span>
        }
      >
        <Link class="button" href="/plans">
          All plans
        </Link>
      </PageHead>
      <ProblemBanner problem={problem} />
      {found.error && (
        <Note tone="warn">
          <span class="prose-text">{visible(found.error)}</span>
        </Note>
      )}
      {(busy || found.working) && !waits && (
        <Loading what={found.status === "executing" || found.status === "approved" ? "Running it" : "Making a proposal"} />
      )}
      {!busy && !found.working && WORKING.includes(found.status) && (
        <Note tone="warn">Its process was lost. Ask for the plan again.</Note>
      )}
      {found.goal.length > 120 && <Words title="Goal" text={found.goal} />}
      {(found.approach || waits) && (
        <section class={`card stack${waits ? " gate-card" : ""}`} aria-label={asks ? "The question" : "The proposal"}>
          <h2>{asks ? "A question to you" : waits ? "The proposal waits for you" : "The proposal"}</h2>
          <LongText text={asks ? found.question : found.approach} most={6_000} />
          {found.reasoning && (
            <>
              <h3>Why</h3>
              <LongText text={found.reasoning} most={3_000} />
            </>
          )}
          {found.memory_results && <Memory found={found.memory_results} entities={found.selected_entities} />}
          {waits && (
            <Answer
              key={`${found.proposals} ${found.question}`}
              plan
              wordless
              asks={asks}
              onDecide={async (decision, text) => {
                await decide(id, found.proposals, decision, text);
                const failed = underway.value.get(id)?.problem;
                if (failed) throw failed;
              }}
            />
          )}
          {found.status === "approved" && (
            <div>
              <Button kind="primary" busy={busy} onClick={() => void carryOut(id)}>
                Carry it out
              </Button>
            </div>
          )}
        </section>
      )}
      <Words title="Result" text={found.results} />
      {found.tool_calls_made.length > 0 && <Calls found={found} />}
      {["completed", "rejected", "error"].includes(found.status) && found.results && <RatingCard subject={id} />}
    </div>
  );
}

function spent(found: PlanSession): string {
  const usage = found.usage;
  return [
    `${found.iterations} ${found.iterations === 1 ? "iteration" : "iterations"}`,
    usage ? `${tokens(usage)} tokens` : "",
    usage?.cost ? cost(usage.cost) : "",
    usage?.duration_ms ? duration(usage.duration_ms) : "",
  ]
    .filter(Boolean)
    .join(" · ");
}

function Memory({ found, entities }: { found: MemoryResults; entities: string[] }) {
  return (
    <>
      {entities.length > 0 && (
        <p class="row">
          <span class="muted small">Selected:</span>
          {entities.map((name) => (
            <Tag key={name}>{visible(name)}</Tag>
          ))}
        </p>
      )}
      <MemoryFound found={found} />
      {found.research && <Researched research={found.research} />}
    </>
  );
}

function Researched({ research }: { research: Research }) {
  if (research.error && !research.summary)
    return <p class="muted small">Research found nothing: {visible(research.error)}</p>;
  return (
    <MemoryFound
      title="Research of the gaps"
      found={{
        coverage: research.coverage,
        gaps: [],
        sources: research.sources,
        content: [research.summary, ...research.data_points.map((point) => `- ${point}`)].filter(Boolean).join("\n"),
      }}
    />
  );
}

function Calls({ found }: { found: PlanSession }) {
  return (
    <section class="stack-tight">
      <h3>{count(found.tool_calls_made.length)} tool {found.tool_calls_made.length === 1 ? "call" : "calls"}</h3>
      <ol class="list-plain">
        {found.tool_calls_made.slice(0, 300).map((call, at) => (
          <li key={at}>
            <Fold
              class="call"
              head={
                <span class="call-head">
                  <span
                    class={`call-sign call-${call.success ? "good" : "bad"}`}
                    role="img"
                    aria-label={call.success ? "succeeded" : words(call.outcome)}
                  >
                    {call.success ? "✓" : "✕"}
                  </span>
                  <code>{visible(call.tool)}</code>
                  <span class="muted call-gist">{visible(gist(call.arguments))}</span>
                </span>
              }
              body={() => (
                <div class="stack-tight">
                  <LongText text={pretty(call.arguments)} mono />
                  <LongText text={call.result} mono />
                </div>
              )}
            />
          </li>
        ))}
      </ol>
    </section>
  );
}

/** A text of the model's, as it was written. */
function Words({ title, text }: { title: string; text: string }) {
  if (!text) return null;
  return (
    <section class="stack-tight">
      <h3>{title}</h3>
      <LongText text={text} most={6_000} />
    </section>
  );
}
