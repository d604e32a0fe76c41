/** What waits for a person: what is asked, what is known about it, and the answer. */

import { useRef, useState } from "preact/hooks";
import { post } from "../api";
import { DiffView } from "../diff/view";
import { visible } from "../visible";
import { Button, duration, ProblemBanner, Tag, TextArea, useNow } from "../ui";
import { artifactPath } from "./artifact";
import type { ApprovalRequest } from "./events";
import { Fold, LongText, pretty } from "./fold";
import { MemoryFound, readMemory } from "./memory-found";
import type { ExecutionView } from "./view";

export type Decision = "approved" | "rejected" | "adjusted";

const SHOWN = 20;
const ENUM: Readonly<Record<Decision, string>> = {
  approved: "APPROVAL_DECISION_APPROVED",
  rejected: "APPROVAL_DECISION_REJECTED",
  adjusted: "APPROVAL_DECISION_ADJUSTED",
};

export function Gate({ id, view }: { id: string; view: ExecutionView }) {
  const pending = view.pending;
  const said = pending.length === 1 ? "One decision waits for you" : `${pending.length} decisions wait for you`;
  return (
    <>
      {/* There before anything waits: what comes together with its words is not read out. */}
      <p class="sr-only" role="status">
        {pending.length > 0 && said}
      </p>
      {pending.length > 0 && (
        <section class="gate stack" aria-labelledby="gate-head">
          <h2 id="gate-head">{said}</h2>
          {pending.slice(0, SHOWN).map((request) => (
            <Asked key={request.approval_id} id={id} request={request} />
          ))}
          {pending.length > SHOWN && <p class="muted">{pending.length - SHOWN} more follow once these are decided.</p>}
        </section>
      )}
    </>
  );
}

function Asked({ id, request }: { id: string; request: ApprovalRequest }) {
  const plan = request.policy === "plan";
  return (
    <article class="card gate-card stack" aria-label={`${request.agent_id} asks`}>
      <div class="card-head">
        <h3>
          {visible(request.agent_id)} {plan ? "proposes an approach" : "asks before a call"}
        </h3>
        <span class="row">
          {request.reasons.map((reason) => (
            <Tag key={reason}>{visible(reason)}</Tag>
          ))}
          <Tag>step {request.step}</Tag>
          <Expiry at={request.expires_at} />
        </span>
      </div>
      <dl class="facts">
        <dt>Goal</dt>
        <dd class="prose-text">{visible(request.goal.slice(0, 2_000))}</dd>
      </dl>
      {plan ? (
        <div class="gate-proposal">
          <LongText text={request.approach} most={4_000} />
        </div>
      ) : (
        <div class="gate-proposal stack-tight">
          {!request.approach.startsWith(request.call.name) && <code class="gate-call">{visible(request.call.name)}</code>}
          {request.approach && <LongText text={request.approach} mono />}
          <Fold head="Arguments" body={() => <LongText text={pretty(request.call.arguments)} mono />} />
        </div>
      )}
      {request.memory && <MemoryFound found={readMemory(request.memory)} />}
      {request.diff && (
        <Fold
          head="What it has changed so far"
          body={() => (
            <>
              <DiffView text={request.diff} style="unified" title={`Changes of ${request.agent_id} so far`} />
              {request.diff_ref && (
                <a href={artifactPath(id, request.diff_ref.digest)} download={`${request.agent_id}.diff`}>
                  The whole diff
                </a>
              )}
            </>
          )}
        />
      )}
      <Answer
        plan={plan}
        onDecide={async (decision, text) => {
          await post(`/api/executions/${encodeURIComponent(id)}/approval`, {
            approval_id: request.approval_id,
            decision: ENUM[decision],
            ...(decision === "adjusted" ? { adjustment: text } : { comment: text }),
          });
        }}
      />
    </article>
  );
}

function Expiry({ at }: { at: string }) {
  const now = useNow(10_000);
  const left = Date.parse(at) - now;
  if (!at || Number.isNaN(left)) return null;
  return <span class="muted small">{left > 0 ? `${duration(left)} left` : "time is up"}</span>;
}

/** The three answers; a text goes with each, and `adjusted` cannot do without. */
export function Answer({ plan, onDecide }: { plan: boolean; onDecide: (decision: Decision, text: string) => Promise<void> }) {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState<Decision>();
  const [sent, setSent] = useState<Decision>();
  const [missing, setMissing] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  const box = useRef<HTMLDivElement>(null);
  async function decide(decision: Decision): Promise<void> {
    if (busy || sent) return;
    if (decision === "adjusted" && !text.trim()) {
      setMissing(true);
      box.current?.querySelector("textarea")?.focus();
      return;
    }
    setBusy(decision);
    setProblem(undefined);
    try {
      await onDecide(decision, text.trim());
      setSent(decision);
    } catch (error) {
      setProblem(error);
    }
    setBusy(undefined);
  }
  if (sent)
    return (
      <p role="status" class="muted">
        Sent: {sent}. {sent === "rejected" ? "The agent is told." : "The agent goes on."}
      </p>
    );
  return (
    <div class="stack-tight" ref={box}>
      <TextArea
        label="Comment or adjustment"
        rows={2}
        value={text}
        onInput={(value) => {
          setText(value);
          setMissing(false);
        }}
        error={missing ? "Say what to do otherwise." : undefined}
        hint={
          plan
            ? "Adjust: it proposes again, with this in mind. Reject: its run ends."
            : "Adjust: the call is not carried out, the agent is told this instead."
        }
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void decide("adjusted");
        }}
      />
      <ProblemBanner problem={problem} />
      <div class="row">
        <Button kind="primary" busy={busy === "approved"} onClick={() => void decide("approved")}>
          Approve
        </Button>
        <Button busy={busy === "adjusted"} onClick={() => void decide("adjusted")}>
          Adjust
        </Button>
        <Button kind="danger" busy={busy === "rejected"} onClick={() => void decide("rejected")}>
          Reject
        </Button>
      </div>
    </div>
  );
}
