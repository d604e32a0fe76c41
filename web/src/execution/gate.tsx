/** What waits for a person: what is asked, what is known about it, and the answer. */

import { useEffect, useRef, useState } from "preact/hooks";
import { post, Problem } from "../api";
import { serverNow } from "../clock";
import { DiffView } from "../diff/view";
import { visible } from "../visible";
import { Button, duration, Note, ProblemBanner, Tag, TextArea, useNow } from "../ui";
import { artifactPath, fileName } from "./artifact";
import type { ApprovalRequest } from "./events";
import { Fold, LongText, pretty } from "./fold";
import { memoryOf } from "./memory";
import { MemoryFound } from "./memory-found";
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
  const head = useRef<HTMLHeadingElement>(null);
  const within = useRef(false);
  const asked = pending.map((one) => one.approval_id).join(" ");
  // What is decided goes away, and the button that was pressed with it: whoever pressed it goes on from what is next.
  useEffect(() => {
    if (!within.current || (document.activeElement && document.activeElement !== document.body)) return;
    within.current = pending.length > 0;
    (head.current ?? document.querySelector<HTMLElement>(".execution [role=tab][aria-selected=true]"))?.focus();
  }, [asked]);
  const said = pending.length === 1 ? "One decision waits for you" : `${pending.length} decisions wait for you`;
  return (
    <>
      {/* There before anything waits: what comes together with its words is not read out. */}
      <p class="sr-only" role="status">
        {pending.length > 0 && said}
      </p>
      {pending.length > 0 && (
        <section
          class="gate stack"
          aria-labelledby="gate-head"
          onFocusIn={() => (within.current = true)}
          onFocusOut={(event) => {
            const to = event.relatedTarget;
            if (to instanceof Node && !event.currentTarget.contains(to)) within.current = false;
          }}
        >
          <h2 id="gate-head" ref={head} tabIndex={-1}>
            {said}
          </h2>
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
  const memory = memoryOf(request);
  return (
    <article class="card gate-card stack" aria-label={`${visible(request.agent_id)} asks`}>
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
      {memory && <MemoryFound found={memory} />}
      {request.diff && (
        <Fold
          head="What it has changed so far"
          body={() => (
            <>
              <DiffView text={request.diff} style="unified" title={`Changes of ${visible(request.agent_id)} so far`} />
              {request.diff_ref && (
                <a href={artifactPath(id, request.diff_ref.digest)} download={fileName(`${request.agent_id}.diff`)}>
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
  useNow(10_000);
  const left = Date.parse(at) - serverNow();
  if (!at || Number.isNaN(left)) return null;
  return <span class="muted small">{left > 0 ? `expires in ${duration(left)}` : "expired"}</span>;
}

interface AnswerProps {
  plan: boolean;
  /** Whether words can go with an approval. */
  wordless?: boolean;
  /** Whether a question waits in place of a proposal: it is answered, and cannot be approved. */
  asks?: boolean;
  onDecide: (decision: Decision, text: string) => Promise<void>;
}

/** The three answers; a text goes with each, and `adjusted` cannot do without. */
export function Answer({ plan, wordless = false, asks = false, onDecide }: AnswerProps) {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState<Decision>();
  const [sent, setSent] = useState<Decision>();
  const [wrong, setWrong] = useState("");
  const [late, setLate] = useState("");
  const [problem, setProblem] = useState<unknown>();
  const box = useRef<HTMLDivElement>(null);
  const said = useRef<HTMLDivElement>(null);
  // The buttons are gone; what took their place takes the focus, for those who go by keyboard or by ear.
  useEffect(() => {
    if (sent || late) said.current?.focus();
  }, [sent, late]);
  async function decide(decision: Decision): Promise<void> {
    if (busy || sent || late) return;
    const fault = asks && decision === "adjusted" && !text.trim() ? "Write your answer." : faultOf(decision, text.trim(), wordless);
    setWrong(fault);
    if (fault) {
      box.current?.querySelector("textarea")?.focus();
      return;
    }
    setBusy(decision);
    setProblem(undefined);
    try {
      await onDecide(decision, text.trim());
      setSent(decision);
    } catch (error) {
      // Somebody else was first, or it ended: nothing went wrong, and what holds comes with the log.
      if (error instanceof Problem && error.status === 409) setLate(error.detail || error.title);
      else setProblem(error);
    }
    setBusy(undefined);
  }
  if (late)
    return (
      <div ref={said} tabIndex={-1}>
        <Note>
          <span>
            <strong>This is decided already.</strong> {visible(late)}
          </span>
        </Note>
      </div>
    );
  if (sent)
    return (
      <div ref={said} tabIndex={-1} class="muted">
        Sent: {sent}. {sent === "rejected" ? "The agent is told." : "The agent continues."}
      </div>
    );
  return (
    <div class="stack-tight" ref={box}>
      <TextArea
        label={asks ? "Your answer" : "Comment or adjustment"}
        rows={2}
        value={text}
        onInput={(value) => {
          setText(value);
          setWrong("");
        }}
        error={wrong || undefined}
        hint={
          asks
            ? "It goes on with your answer. Reject: its run ends."
            : plan
            ? "Adjust: it proposes again, with this in mind. Reject: its run ends."
            : "Adjust: the call is not carried out, the agent is told this instead."
        }
        onKeyDown={(event) => {
          if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void decide("adjusted");
        }}
      />
      <ProblemBanner problem={problem} />
      <div class="row">
        {!asks && (
          <Button kind="primary" class="approve" busy={busy === "approved"} onClick={() => void decide("approved")}>
            Approve
          </Button>
        )}
        <Button {...(asks && { kind: "primary" as const })} busy={busy === "adjusted"} onClick={() => void decide("adjusted")}>
          {asks ? "Answer" : "Adjust"}
        </Button>
        <Button kind="danger" busy={busy === "rejected"} onClick={() => void decide("rejected")}>
          Reject
        </Button>
      </div>
    </div>
  );
}

function faultOf(decision: Decision, text: string, wordless: boolean): string {
  if (decision === "adjusted" && !text) return "Say what to do otherwise.";
  // Words that somebody wrote must not be lost without a word.
  if (decision === "approved" && text && wordless) return "An approval takes no words: adjust, or clear them.";
  return "";
}
