/** One candidate: what its author says, what was found out about it, and the change itself. */

import { useEffect, useState } from "preact/hooks";
import { aborted } from "../api";
import { DiffView, type DiffStyle } from "../diff/view";
import { visible } from "../visible";
import { words } from "../types";
import { count, Loading, Note, ProblemBanner, size, StatusBadge } from "../ui";
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
  style: DiffStyle;
}

export function CandidatePanel({ id, view, candidate, ranked, dropped, sameAs, style }: Props) {
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
      <VerdictReasons report={report} />
      {ranked?.reason && (
        <p class="reason">
          <strong>Why this rank:</strong> {visible(ranked.reason)}
        </p>
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
      <section class="stack-tight">
        <div class="row-spread">
          <h4>
            {count(candidate.artifacts.files_changed.length)}{" "}
            {candidate.artifacts.files_changed.length === 1 ? "file" : "files"} changed{" "}
            <span class="added">+{count(candidate.artifacts.insertions)}</span>{" "}
            <span class="removed">−{count(candidate.artifacts.deletions)}</span>
          </h4>
          {candidate.artifacts.patch && (
            <a href={artifactPath(id, candidate.artifacts.patch.digest)} download={fileName(`${name}.patch`)}>
              Download
            </a>
          )}
        </div>
        {candidate.artifacts.patch ? (
          <PatchView id={id} patch={candidate.artifacts.patch} style={style} title={`Changes of ${visible(name)}`} />
        ) : (
          <p class="muted">Nothing was changed.</p>
        )}
      </section>
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

interface Loaded {
  digest: string;
  text?: string;
  whole?: boolean;
  problem?: unknown;
}

function PatchView({ id, patch, style, title }: { id: string; patch: Blob; style: DiffStyle; title: string }) {
  const [state, setState] = useState<Loaded>({ digest: patch.digest });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    setState({ digest: patch.digest });
    artifactText(id, patch.digest, stop.signal).then(
      (read) => setState({ digest: patch.digest, ...read }),
      (problem: unknown) => {
        if (!aborted(problem)) setState({ digest: patch.digest, problem });
      },
    );
    return () => stop.abort();
  }, [id, patch.digest, round]);
  if (state.problem) return <ProblemBanner problem={state.problem} retry={() => setRound(round + 1)} />;
  if (state.text === undefined || state.digest !== patch.digest) return <Loading what="Reading the patch" />;
  return (
    <>
      {!state.whole && (
        <Note tone="warn">
          The patch has {size(patch.size)}; the first {size(SHOWN_BYTES)} are shown.
        </Note>
      )}
      <DiffView text={state.text} style={style} title={title} />
    </>
  );
}
