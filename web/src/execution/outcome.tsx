/** What came of an execution, first of all: the verdict, why, where the change is, what was tested, what can be done now. */

import { useState } from "preact/hooks";
import { post } from "../api";
import { navigate } from "../router";
import { words } from "../types";
import { Button, Checkbox, Confirm, Copy, count, duration, Select, StatusBadge, TextField, toast } from "../ui";
import { visible } from "../visible";
import { artifactPath, fileName } from "./artifact";
import { baselineLine } from "./baseline";
import { PatchView } from "./candidate";
import { Checks } from "./evidence";
import type { CheckReport } from "./events";
import { Fold, LongText } from "./fold";
import { RatingCard } from "./rating";
import { headline, opening, toneOf, whyOf } from "./verdict";
import type { ExecutionView } from "./view";

/** A patch of more bytes is shown when somebody unfolds it. */
const OPEN_BYTES = 20_000;

export function Outcome({ id, view }: { id: string; view: ExecutionView }) {
  const [delivering, setDelivering] = useState(false);
  const [also, setAlso] = useState("");
  const best = view.winnerId || (view.ranking[0]?.candidate_id ?? "");
  const candidate = view.candidates.get(best);
  const patch = candidate?.artifacts.patch;
  const delivered = view.delivered ?? view.refusedKept?.delivered;
  const verdict = view.winnerId ? view.bestReport?.verdict : undefined;
  const why = whyOf(view);
  return (
    <section class={`card outcome outcome-${toneOf(view)}`} aria-label="Outcome" data-verdict={verdict ?? ""}>
      <div class="row-spread">
        <h2 class="row">
          {headline(view)} {verdict && <StatusBadge status={verdict} />}
        </h2>
        <div class="row">
          {delivered && (
            <Copy what="the command that opens the branch" text={opening(view, delivered.branch)}>
              Copy the git command
            </Copy>
          )}
          {patch && (
            <a class="button button-plain button-small" href={artifactPath(id, patch.digest)} download={fileName(`${best}.patch`)}>
              Download the patch
            </a>
          )}
          {view.candidates.size > 0 && (
            <Button small onClick={() => setDelivering(true)}>
              {delivered && view.winnerId ? "Deliver another candidate" : "Deliver a candidate"}
            </Button>
          )}
          {!view.task?.workflow && view.task?.kind !== "judge" && (
            <Button small onClick={() => navigate(`/submit?again=${encodeURIComponent(id)}`)}>
              Run again
            </Button>
          )}
        </div>
      </div>
      {candidate?.summary && view.winnerId && <LongText text={candidate.summary} most={600} />}
      {view.output && (
        <div aria-label="Output" role="group">
          <LongText text={view.output} />
        </div>
      )}
      <dl class="facts">
        {why.length > 0 && (
          <>
            <dt>Why</dt>
            <dd>
              <ul class="list-plain reasons">
                {why.map((reason, at) => (
                  <li key={at}>{visible(reason)}</li>
                ))}
              </ul>
            </dd>
          </>
        )}
        {delivered && (
          <>
            <dt>{view.delivered ? "Branch" : "Kept as"}</dt>
            <dd>
              <code>{visible(delivered.branch)}</code>, commit <code>{visible(delivered.commit_sha.slice(0, 12))}</code>
              {delivered.pushed ? ", pushed" : ""}
            </dd>
          </>
        )}
        {!delivered && view.winnerId && (
          <>
            <dt>Branch</dt>
            <dd class="muted">None: proposals were ranked, nothing was applied.</dd>
          </>
        )}
        {[...view.handDeliveries.map((one) => [one.delivered.branch, `${one.candidate_id}, by ${one.by}${one.reason ? `: ${one.reason}` : ""}`] as const), ...(also ? [[also, "by you, just now"] as const] : [])].map(
          ([branch, who]) => [
            <dt key={`${branch}-name`}>Delivered</dt>,
            <dd key={branch}>
              <code>{visible(branch)}</code> ({visible(who)})
            </dd>,
          ],
        )}
        <Tested id={id} view={view} report={view.bestReport} />
      </dl>
      {patch && view.winnerId && (
        <Fold
          open={patch.size <= OPEN_BYTES}
          head={
            <>
              Change: {count(candidate.artifacts.files_changed.length)} {candidate.artifacts.files_changed.length === 1 ? "file" : "files"}{" "}
              <span class="added">+{count(candidate.artifacts.insertions)}</span>{" "}
              <span class="removed">−{count(candidate.artifacts.deletions)}</span>
            </>
          }
          body={() => <PatchView id={id} patch={view.delivered?.patch ?? patch} style="unified" title="The change" />}
        />
      )}
      <RatingCard subject={id} />
      {delivering && <Deliver id={id} view={view} onClose={() => setDelivering(false)} onDelivered={setAlso} />}
    </section>
  );
}

function Tested({ id, view, report }: { id: string; view: ExecutionView; report: CheckReport | null }) {
  const baseline = baselineLine(view.baseline, view.baselineError);
  if (!report && !baseline) return null;
  return (
    <>
      <dt>Tested</dt>
      <dd class="stack-tight">
        {report && (
          <Fold
            head={
              <span class="row">
                {report.results.map((one, at) => (
                  <StatusBadge key={at} status={one.skipped_reason ? "skipped" : one.passed ? "passed" : "failed"} text={visible(one.name || words(one.kind))} />
                ))}
                <span class="muted small">{duration(report.results.reduce((sum, one) => sum + one.duration_ms, 0))}</span>
              </span>
            }
            body={() => <Checks id={id} report={report} />}
          />
        )}
        {baseline && <p class="small muted baseline">Before the change: {visible(baseline)}</p>}
      </dd>
    </>
  );
}

function Deliver(props: { id: string; view: ExecutionView; onClose: () => void; onDelivered: (branch: string) => void }) {
  const { id, view, onClose, onDelivered } = props;
  const order = new Map(view.ranking.map((one) => [one.candidate_id, one.rank]));
  const ids = [...view.candidates.keys()]
    .filter((one) => view.candidates.get(one)?.artifacts.patch)
    .sort((one, other) => (order.get(one) ?? 1e9) - (order.get(other) ?? 1e9));
  const [candidate, setCandidate] = useState(ids.find((one) => one !== view.winnerId || !view.delivered) ?? ids[0] ?? "");
  const [branch, setBranch] = useState("");
  const [reason, setReason] = useState("");
  const [push, setPush] = useState(false);
  return (
    <Confirm
      title="Deliver a candidate"
      yes="Deliver it"
      no="Cancel"
      danger={false}
      onClose={onClose}
      onYes={async () => {
        const body = { candidate_id: candidate, branch: branch.trim(), reason: reason.trim(), push };
        const made = await post<{ branch: string }>(`/api/executions/${encodeURIComponent(id)}/deliveries`, body);
        onDelivered(made.branch);
        toast(`It is on the branch ${made.branch}.`);
      }}
    >
      <p>The candidate is put on a branch of its own, whatever its verdict; the log keeps who decided it.</p>
      <Select
        label="Candidate"
        value={candidate}
        options={ids.map((one) => [one, [visible(one), view.reports.get(one)?.verdict, one === view.winnerId ? "winner" : ""].filter(Boolean).join(" · ")] as const)}
        onInput={setCandidate}
      />
      <TextField label="Branch" value={branch} onInput={setBranch} placeholder={`fleet/${view.task?.task_id ?? ""}-${candidate}`} />
      <TextField label="Reason (optional)" value={reason} onInput={setReason} />
      <Checkbox label="Push it to where the repository came from" checked={push} onChange={setPush} />
    </Confirm>
  );
}
