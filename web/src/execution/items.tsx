/** The entries of an agent's run. */

import { visible } from "../visible";
import { words } from "../types";
import { clock, cost, count, duration, firstLine, StatusBadge, tokens } from "../ui";
import type { CallView, Item } from "./item";
import { Fold, LongText, pretty } from "./fold";
import { Whole } from "./whole";

export function ItemView({ id, item }: { id: string; item: Item }) {
  switch (item.kind) {
    case "reply":
      return (
        <>
          <p class="item-head">
            <strong>Step {item.step}</strong> <span>{clock(item.at)}</span>
            <span>{tokens(item.usage)} tokens</span>
            <span>{duration(item.durationMs)}</span>
            {item.usage.cost > 0 && <span>{cost(item.usage.cost)}</span>}
          </p>
          {item.content && <LongText text={item.content} most={500} />}
          {item.repairs.length > 0 && <Repairs repairs={item.repairs} />}
          <Calls id={id} calls={item.calls} />
        </>
      );
    case "calls":
      return <Calls id={id} calls={item.calls} />;
    case "note":
      return (
        <Fold
          head={<span class="muted">The fleet said: {visible(firstLine(item.text, 80))}</span>}
          body={() => <LongText text={item.text} />}
        />
      );
    case "condensed":
      return (
        <p class="item-line">
          History {words(item.method)}: {count(item.before)} → {count(item.after)} tokens
        </p>
      );
    case "loop":
      return (
        <p class="item-line item-warn">
          Loop ({visible(words(item.pattern))}); {visible(words(item.advice))}
        </p>
      );
    case "plan":
      return (
        <Fold
          head={
            <>
              Plan {item.number}: {item.plan.steps.length} {item.plan.steps.length === 1 ? "step" : "steps"}
              {item.reason && <span class="muted"> because {visible(firstLine(item.reason, 80))}</span>}
            </>
          }
          body={() => (
            <div class="stack-tight">
              {item.plan.reasoning && <LongText text={item.plan.reasoning} />}
              <ol>
                {item.plan.steps.slice(0, 100).map((step, at) => (
                  <li key={at}>
                    <code>
                      {visible(step.tool)}_{visible(step.operation)}
                    </code>{" "}
                    {visible(step.why)} <span class="muted">(else {words(step.on_failure)})</span>
                  </li>
                ))}
              </ol>
            </div>
          )}
        />
      );
    case "checkpoint":
      return (
        <p class="item-line">
          Checkpoint <code>{visible(item.commit.slice(0, 10))}</code>, revision {item.revision}
        </p>
      );
    case "approval":
      return (
        <p class={`item-line ${item.resolution ? "" : "item-warn"}`}>
          {item.resolution ? (
            <>
              <StatusBadge
                status={item.resolution.decision}
                tone={item.resolution.decision === "approved" ? "good" : item.resolution.decision === "rejected" ? "bad" : "warn"}
              />{" "}
              by {visible(item.resolution.approver || item.resolution.caller || "somebody")}
              {item.resolution.text && `: ${visible(firstLine(item.resolution.text, 200))}`}
            </>
          ) : (
            <>Asked for approval of {item.request.policy === "plan" ? "its approach" : visible(item.request.call.name)}</>
          )}
        </p>
      );
    case "lost":
      return <p class="item-line item-warn">Its process was lost: {visible(firstLine(item.reason, 200))}</p>;
    case "stopped":
      return <p class="item-line">Stopped: {visible(firstLine(item.reason, 200))}</p>;
    case "reassigned":
      return (
        <p class="item-line item-warn">
          Continued in another process, attempt {item.attempt}: {visible(firstLine(item.reason, 200))}
        </p>
      );
  }
}

function Repairs({ repairs }: { repairs: string[] }) {
  return <p class="muted small">fixed: {repairs.map(visible).join(", ")}</p>;
}

function Calls({ id, calls }: { id: string; calls: CallView[] }) {
  return (
    <>
      {calls.map((call) => (
        <Fold key={call.callId} class="call" head={<CallHead call={call} />} body={() => <CallBody id={id} call={call} />} />
      ))}
    </>
  );
}

const SIGNS: Readonly<Record<string, readonly [sign: string, tone: string, word: string]>> = {
  waiting: ["○", "calm", "waits"],
  started: ["●", "live", "runs"],
  success: ["✓", "good", "succeeded"],
};

function CallHead({ call }: { call: CallView }) {
  const answer = call.name === "final_answer";
  const [sign, tone, word] = answer && call.outcome === "success" ? ["→", "calm", "answered"] : (SIGNS[call.outcome] ?? ["✕", "bad", words(call.outcome)]);
  return (
    <span class="call-head">
      <span class={`call-sign call-${tone}`} role="img" aria-label={word}>
        {sign}
      </span>
      <code>{visible(call.name)}</code>
      {/* The answer itself stands below. */}
      <span class="muted call-gist">{answer ? "" : visible(gist(call.arguments))}</span>
      {call.seconds >= 0.1 && <span class="muted small">{duration(call.seconds * 1000)}</span>}
    </span>
  );
}

function CallBody({ id, call }: { id: string; call: CallView }) {
  return (
    <div class="stack-tight">
      <LongText text={pretty(call.arguments)} mono />
      {call.repairs.length > 0 && <Repairs repairs={call.repairs} />}
      {call.error && <p class="bad prose-text">{visible(call.error.slice(0, 2_000))}</p>}
      {call.content && <LongText text={call.content} mono />}
      <p class="muted small">
        {[
          words(call.outcome),
          call.exitCode === null ? "" : `exit ${call.exitCode}`,
          call.cached ? "from the cache" : "",
          call.truncated ? "cut" : "",
        ]
          .filter(Boolean)
          .join(" · ")}
      </p>
      {call.truncated && call.artifact && <Whole id={id} digest={call.artifact} name={`${call.callId}.txt`} />}
    </div>
  );
}

/** The first of a call's arguments that says something. */
export function gist(text: string): string {
  try {
    const values = Object.values(JSON.parse(text) as Record<string, unknown>);
    const said = values.find((value) => typeof value === "string" && value) ?? values[0];
    return said === undefined ? "" : firstLine(typeof said === "string" ? said : JSON.stringify(said), 60);
  } catch {
    return firstLine(text, 60);
  }
}
