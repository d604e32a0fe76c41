/** One candidate: what its author says, what was found out about it, and the change itself. */

import { useMemo } from "preact/hooks";
import { between } from "../diff/between";
import { DiffView, FilesView, type DiffStyle } from "../diff/view";
import { visible } from "../visible";
import { words } from "../types";
import { count, Loading, Note, ProblemBanner, size, StatusBadge, useLoad } from "../ui";
import { artifactPath, artifactText, fileName, SHOWN_BYTES } from "./artifact";
import { ChangedTests, Checks, Critiques, VerdictReasons, Votes } from "./evidence";
import type { Blob, Candidate, CheckReport, Ranked } from "./events";
import { Fold, LongText } from "./fold";
import type { ExecutionView } from "./view";

interface Props {
  id: string;
  view: ExecutionView;
  candidate: Candidate;
  ranked: Ranked | undefined;
  dropped: string;
  sameAs: string;
  /** Whether its change is shown at once. */
  open: boolean;
}

export function CandidatePanel({ id, view, candidate, ranked, dropped, sameAs, open }: Props) {
  const name = candidate.candidate_id;
  const critiques = view.critiques.filter((one) => one.candidate_id === name);
  const votes = view.votes.filter((one) => one.order.includes(name));
  const report = view.reports.get(name);
  return (
    <article class="card candidate stack" aria-label={`Candidate ${visible(name)}`} data-candidate={name}>
      <header>
        <div class="row-spread">
          <h3>
            {ranked ? `${ranked.rank}. ` : ""}
            {visible(name)}
          </h3>
          <span class="row">
            {view.winnerId === name && <StatusBadge status="completed" text="winner" />}
            <VerdictBadge report={report} ranked={ranked} />
          </span>
        </div>
        <p class="muted small">
          {[candidate.role.toLowerCase(), candidate.model ?? "", words(candidate.stop_reason)]
            .filter(Boolean)
            .map(visible)
            .join(" · ")}
        </p>
      </header>
      {report?.verdict ? (
        <VerdictReasons report={report} />
      ) : (
        ranked?.reason && (
          <p class="reason">
            <strong>Why this rank:</strong> {visible(ranked.reason)}
          </p>
        )
      )}
      {sameAs && <Note>It behaves as {visible(sameAs)}, which stands for both.</Note>}
      {dropped && <Note tone="warn">Not ranked: {visible(dropped)}</Note>}
      {candidate.revises && (
        <p class="muted small">
          A revision of {visible(candidate.revises)}, round {candidate.round}
        </p>
      )}
      {candidate.error && <p class="bad prose-text">{visible(candidate.error.slice(0, 1_000))}</p>}
      {candidate.summary && <LongText text={candidate.summary} most={600} />}
      <section>
        <h4>Checks</h4>
        {report ? <Checks id={id} report={report} /> : <p class="muted">Not checked yet.</p>}
        <ChangedTests report={report} />
      </section>
      {critiques.length > 0 && <Critiques critiques={critiques} />}
      {votes.length > 0 && <Votes votes={votes} candidate={name} />}
      {candidate.artifacts.patch ? (
        <Fold
          key={String(open)}
          open={open}
          head={
            <strong>
              {count(candidate.artifacts.files_changed.length)}{" "}
              {candidate.artifacts.files_changed.length === 1 ? "file" : "files"} changed{" "}
              <span class="added">+{count(candidate.artifacts.insertions)}</span>{" "}
              <span class="removed">−{count(candidate.artifacts.deletions)}</span>
            </strong>
          }
          body={() =>
            candidate.artifacts.patch && (
              <div class="stack-tight">
                <a href={artifactPath(id, candidate.artifacts.patch.digest)} download={fileName(`${name}.patch`)}>
                  Download the patch
                </a>
                <PatchView id={id} patch={candidate.artifacts.patch} style="unified" title={`Changes of ${visible(name)}`} />
              </div>
            )
          }
        />
      ) : (
        <p class="muted">Nothing was changed.</p>
      )}
      {candidate.artifacts.files_changed.length > 8 && (
        <Fold
          head="All files"
          body={() => (
            <ul class="mono">
              {candidate.artifacts.files_changed.slice(0, 1_000).map((file) => (
                <li key={file}>{visible(file)}</li>
              ))}
            </ul>
          )}
        />
      )}
    </article>
  );
}

/** The verdict; of an execution from before there were verdicts, whether it was accepted. */
export function VerdictBadge({ report, ranked }: { report: CheckReport | undefined; ranked: Ranked | undefined }) {
  if (report?.verdict) return <StatusBadge status={report.verdict} />;
  if (!ranked || ranked.accepted) return null;
  return <StatusBadge status="failed" text="not accepted" />;
}

/** A patch as text; nothing while it is read. */
function usePatch(id: string, digest: string) {
  return useLoad((signal) => artifactText(id, digest, signal), `${id} ${digest}`);
}

export function PatchView({ id, patch, style, title }: { id: string; patch: Blob; style: DiffStyle; title: string }) {
  const { value, problem, reload } = usePatch(id, patch.digest);
  if (problem) return <ProblemBanner problem={problem} retry={reload} />;
  if (!value) return <Loading what="Reading the patch" />;
  return (
    <>
      {!value.whole && (
        <Note tone="warn">
          The patch has {size(patch.size)}; the first {size(SHOWN_BYTES)} are shown.
        </Note>
      )}
      <DiffView text={value.text} style={style} title={title} />
    </>
  );
}

/** How the changes of two candidates differ, in one table: both sides scroll together. */
export function BetweenView({ id, one, other }: { id: string; one: Candidate; other: Candidate }) {
  const [first, second] = [usePatch(id, one.artifacts.patch?.digest ?? ""), usePatch(id, other.artifacts.patch?.digest ?? "")];
  const files = useMemo(() => first.value && second.value && between(first.value.text, second.value.text), [first.value, second.value]);
  if (first.problem || second.problem) return <ProblemBanner problem={first.problem ?? second.problem} retry={first.problem ? first.reload : second.reload} />;
  if (!files) return <Loading what="Comparing the patches" />;
  if (!files.length) return <Note>Both change the same lines in the same way.</Note>;
  return (
    <>
      <p class="muted small">
        Left and <span class="removed">−</span>: {visible(one.candidate_id)}. Right and <span class="added">+</span>: {visible(other.candidate_id)}.
      </p>
      <FilesView files={files} style="split" title={`Differences between ${visible(one.candidate_id)} and ${visible(other.candidate_id)}`} />
    </>
  );
}
