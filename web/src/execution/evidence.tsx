/** What is known about a candidate: checks, critiques, votes. */

import { visible } from "../visible";
import { words } from "../types";
import { count, duration, StatusBadge } from "../ui";
import type { CheckReport, CheckResult, Critique, Proof, Vote } from "./events";
import { Fold, LongText } from "./fold";
import { Whole } from "./whole";

/** The verdict with its reasons in words. */
export function VerdictReasons({ report }: { report: CheckReport | null | undefined }) {
  if (!report?.verdict) return null;
  return (
    <ul class="list-plain stack-tight reasons">
      {(report.reasons ?? []).map((reason, at) => (
        <li key={at} class="prose-text">
          {visible(reason)}
        </li>
      ))}
    </ul>
  );
}

/** Old tests that a candidate changed, before and after. */
export function ChangedTests({ report }: { report: CheckReport | undefined }) {
  const changed = report?.changed_tests ?? [];
  if (!changed.length) return null;
  return (
    <Fold
      head={`Old tests that it changed: ${changed.length}`}
      body={() => (
        <dl class="facts small">
          {changed.map((test, at) => [
            <dt key={`${at}-name`}>
              {visible(test.path)}: {visible(test.name)}
            </dt>,
            <dd key={at}>
              <pre class="mono">{visible(`${test.before}\n\n→\n\n${test.after}`)}</pre>
            </dd>,
          ])}
        </dl>
      )}
    />
  );
}

export function Checks({ id, report }: { id: string; report: CheckReport | null }) {
  if (!report?.results.length) return <p class="muted">None was run.</p>;
  return (
    <ul class="list-plain checks">
      {report.results.map((result, at) => (
        <li key={at}>
          <Fold class="call" head={<CheckHead result={result} />} body={() => <CheckBody id={id} result={result} />} />
        </li>
      ))}
    </ul>
  );
}

function CheckHead({ result }: { result: CheckResult }) {
  const status = result.skipped_reason ? "skipped" : result.passed ? "passed" : "failed";
  return (
    <span class="call-head">
      <StatusBadge status={status} />
      <span class="check-name">{visible(result.name || words(result.kind))}</span>
      {!result.required && <span class="tag">not required</span>}
      <span class="muted call-gist">{visible(result.skipped_reason || result.message)}</span>
      <span class="muted small">{duration(result.duration_ms)}</span>
    </span>
  );
}

/** Where a check's details name the whole of its output. */
const WHOLE = "output_artifact";

function CheckBody({ id, result }: { id: string; result: CheckResult }) {
  const tests = result.tests;
  const details = Object.entries(result.details ?? {}).filter(([name]) => name !== WHOLE);
  const whole = result.details?.[WHOLE];
  return (
    <div class="stack-tight">
      {result.message && <p class="prose-text">{visible(result.message)}</p>}
      {tests && (
        <p class="small">
          {count(tests.passed)} passed, {count(tests.failed)} failed, {count(tests.errors)} errors, {count(tests.skipped)}{" "}
          skipped
        </p>
      )}
      {result.problems.length > 0 && (
        <ul class="problems">
          {result.problems.slice(0, 100).map((problem, at) => (
            <li key={at} class="prose-text">
              {visible(problem)}
            </li>
          ))}
        </ul>
      )}
      {details.length > 0 && (
        <dl class="facts small">
          {details.map(([name, value]) => [
            <dt key={`${name}-name`}>{visible(name)}</dt>,
            <dd key={name} class="mono">
              {visible(value.slice(0, 1_000))}
            </dd>,
          ])}
        </dl>
      )}
      {result.output && <LongText text={result.output} most={3_000} mono />}
      {whole && <Whole id={id} digest={whole} name={`${result.name || result.kind}.txt`} />}
      <p class="muted small">
        {[
          `score ${result.score.toFixed(2)}`,
          result.exit_code === null ? "" : `exit ${result.exit_code}`,
          result.warnings ? `${result.warnings} warnings` : "",
        ]
          .filter(Boolean)
          .join(" · ")}
      </p>
    </div>
  );
}

const OUTCOMES: Record<string, string> = {
  reproduced: "reproduced",
  passes: "not reproduced: the command passes on the candidate",
  fails_everywhere: "not shown: the command fails on every version",
  own_interface: "not shown: the command asks for a name that only the reviewer's own change has",
  not_run: "not shown: the command was not run",
};

function ProofShown({ proof }: { proof: Proof }) {
  return (
    <div class="small">
      <span class={proof.outcome === "reproduced" ? "bad" : "muted"}>{OUTCOMES[proof.outcome] ?? visible(proof.outcome)}</span>{" "}
      <code>{visible(proof.command)}</code>
      {proof.seen && <LongText text={proof.seen} />}
    </div>
  );
}

export function Critiques({ critiques }: { critiques: Critique[] }) {
  return (
    <section class="stack-tight">
      <h4>Reviews</h4>
      {critiques.map((critique) => (
        <Fold
          key={`${critique.round}-${critique.reviewer_id}`}
          class="call"
          head={
            <span class="call-head">
              <StatusBadge status={critique.error ? "failed" : critique.verdict} {...(critique.error && { text: "failed" })} />
              <span class="check-name">{visible(critique.reviewer_id)}</span>
              <span class="muted small">
                round {critique.round}
                {!critique.error && ` · ${critique.score.toFixed(2)}`}
              </span>
              {critique.findings.some((one) => one.must_fix) && <span class="tag">must fix</span>}
            </span>
          }
          body={() => (
            <div class="stack-tight">
              {critique.error && <p class="bad prose-text">{visible(critique.error)}</p>}
              {critique.content && <LongText text={critique.content} />}
              {critique.findings.length > 0 && (
                <ul class="problems">
                  {critique.findings.slice(0, 100).map((finding, at) => (
                    <li key={at}>
                      {finding.must_fix && <strong class="bad">must fix: </strong>}
                      <LongText text={finding.text} />
                      {finding.file && (
                        <code>
                          {visible(finding.file)}
                          {finding.line ? `:${finding.line}` : ""}
                        </code>
                      )}
                      {finding.proof && <ProofShown proof={finding.proof} />}
                    </li>
                  ))}
                </ul>
              )}
            </div>
          )}
        />
      ))}
    </section>
  );
}

export function Votes({ votes, candidate }: { votes: Vote[]; candidate: string }) {
  const won = votes.filter((vote) => vote.choice === candidate).length;
  const valid = votes.filter((vote) => vote.choice).length;
  return (
    <section class="stack-tight">
      <h4>
        Votes: {won} of {valid}
        {valid < votes.length && ` (${votes.length - valid} could not be read)`}
      </h4>
      <Fold
        head="Each vote"
        body={() => (
          <ul class="stack-tight">
            {votes.map((vote) => (
              <li key={`${vote.judge_id}-${vote.sample}`}>
                <strong>{visible(vote.judge_id)}</strong>, sample {vote.sample}:{" "}
                {vote.choice ? <>for {visible(vote.choice)}</> : <span class="bad">{visible(vote.error)}</span>}
                {vote.reason && <LongText text={vote.reason} />}
                <p class="muted small">shown in the order {vote.order.map(visible).join(", ")}</p>
              </li>
            ))}
          </ul>
        )}
      />
    </section>
  );
}
