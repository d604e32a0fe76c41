/** The audit chains of an execution's agents, recomputed by the server, and their entries. */

import { useState } from "preact/hooks";
import { get } from "../api";
import { visible } from "../visible";
import { words } from "../types";
import { Button, clock, count, duration, Empty, Loading, ProblemBanner, StatusBadge, useLoad } from "../ui";
import { Fold, LongText } from "./fold";
import type { ExecutionView } from "./view";

interface Verdict {
  agent_id: string;
  run: number;
  entries: number;
  head: string;
  recorded_head: string;
  intact: boolean;
  fault: { entry: number; reason: string } | null;
  signing: "whole" | "part" | "none" | "unchecked";
  signed_entries: number;
  key_id: string;
}

interface Entry {
  run: number;
  seq: number;
  at: string;
  call_id: string;
  tool: string;
  operation: string;
  arguments: Record<string, unknown>;
  decision: string;
  reason: string;
  outcome: string;
  exit_code: number | null;
  duration_ms: number;
  bytes_out: number;
  workspace_revision: number;
  prev_hash: string;
  hash: string;
}

interface Audited {
  intact: boolean;
  chains: Verdict[];
  entries: Entry[];
  next_from: number | null;
}

const ENTRIES = 100;

export function AuditTab({ id, view }: { id: string; view: ExecutionView }) {
  const path = `/api/executions/${encodeURIComponent(id)}/audit`;
  const { value, problem, loading, reload } = useLoad((signal) => get<Audited>(path, {}, signal), `${id} ${view.ended}`);
  if (!value) return problem ? <ProblemBanner problem={problem} retry={reload} /> : <Loading what="Recomputing the chains" />;
  return (
    <div class="stack">
      <div class="row-spread">
        <p class="row">
          {/* Of nothing, nothing is proven. */}
          {(value.chains.length > 0 || !value.intact) && (
            <StatusBadge
              status={value.intact ? "passed" : "failed"}
              text={value.intact ? "every chain is intact" : "a chain does not hold"}
            />
          )}
          <span class="muted small">
            Each entry is sealed with the hash of the one before it; the server recomputes all of them, and verifies what
            the orchestrator signed.
          </span>
        </p>
        <Button small busy={loading} onClick={reload}>
          Verify again
        </Button>
      </div>
      <ProblemBanner problem={problem} />
      {!value.chains.length && <Empty title="No agent has done anything yet" />}
      {value.chains.map((verdict) => (
        <Chain key={`${verdict.agent_id}/${verdict.run}`} path={path} verdict={verdict} />
      ))}
    </div>
  );
}

/** Who signed a chain; where it does not hold, its fault says what is wrong with that. */
export function signedBy(verdict: Pick<Verdict, "intact" | "signing" | "signed_entries" | "key_id">): string {
  if (verdict.signing === "none") return "not signed";
  const key = `key ${visible(verdict.key_id)}`;
  if (verdict.signing === "unchecked") return `by ${key}, not verified: the server knows no public key`;
  if (!verdict.intact) return "–";
  return verdict.signing === "whole" ? `by ${key}` : `by ${key}, up to entry ${count(verdict.signed_entries)}`;
}

function Chain({ path, verdict }: { path: string; verdict: Verdict }) {
  return (
    <article class="card stack-tight" aria-label={`Chain of ${visible(verdict.agent_id)}`}>
      <div class="row-spread">
        <h3>
          {visible(verdict.agent_id)}
          {verdict.run > 1 && <span class="muted"> run {verdict.run}</span>}
        </h3>
        <StatusBadge status={verdict.intact ? "passed" : "failed"} text={verdict.intact ? "intact" : "does not hold"} />
      </div>
      {verdict.fault && (
        <p class="bad">
          Entry {verdict.fault.entry}: {visible(verdict.fault.reason)}
        </p>
      )}
      <dl class="facts small">
        <dt>Entries</dt>
        <dd>{count(verdict.entries)}</dd>
        <dt>Head</dt>
        <dd class="mono">{verdict.head || "–"}</dd>
        {verdict.recorded_head && verdict.recorded_head !== verdict.head && (
          <>
            <dt>Recorded head</dt>
            <dd class="mono bad">{verdict.recorded_head}</dd>
          </>
        )}
        <dt>Signed</dt>
        <dd>{signedBy(verdict)}</dd>
      </dl>
      {verdict.entries > 0 && <Fold head="Entries" body={() => <Entries path={path} verdict={verdict} />} />}
    </article>
  );
}

function Entries({ path, verdict }: { path: string; verdict: Verdict }) {
  const [pages, setPages] = useState<readonly number[]>([1]);
  return (
    <ol class="list-plain audit-entries">
      {pages.map((from, at) => (
        <EntryPage
          key={from}
          path={path}
          verdict={verdict}
          from={from}
          last={at === pages.length - 1}
          onMore={(next) => setPages([...pages, next])}
        />
      ))}
    </ol>
  );
}

interface PageProps {
  path: string;
  verdict: Verdict;
  from: number;
  last: boolean;
  onMore: (from: number) => void;
}

function EntryPage({ path, verdict, from, last, onMore }: PageProps) {
  const query = { agent_id: verdict.agent_id, run: verdict.run, from, limit: ENTRIES };
  const { value, problem, reload } = useLoad(
    (signal) => get<Audited>(path, query, signal),
    `${verdict.agent_id} ${verdict.run} ${from} ${verdict.head}`,
  );
  const next = value?.next_from;
  return (
    <>
      {problem ? <li><ProblemBanner problem={problem} retry={reload} /></li> : null}
      {!value && !problem && <li><Loading /></li>}
      {value?.entries.map((entry) => (
        <li key={entry.seq} class={verdict.fault?.entry === entry.seq ? "audit-fault" : ""}>
          <Fold
            class="call"
            head={
              <span class="call-head">
                <span class="muted">{entry.seq}</span>
                <StatusBadge status={entry.outcome === "success" ? "passed" : entry.outcome} text={words(entry.outcome)} />
                <code>
                  {visible(entry.tool)}_{visible(entry.operation)}
                </code>
                <span class="muted call-gist">{visible(entry.reason)}</span>
                <span class="muted small">{clock(Date.parse(entry.at))}</span>
              </span>
            }
            body={() => (
              <div class="stack-tight">
                <LongText text={JSON.stringify(entry.arguments, null, 2)} mono />
                <p class="muted small">
                  {[
                    `policy: ${words(entry.decision)}`,
                    entry.exit_code === null ? "" : `exit ${entry.exit_code}`,
                    duration(entry.duration_ms),
                    `${count(entry.bytes_out)} bytes of output`,
                    `workspace revision ${entry.workspace_revision}`,
                  ]
                    .filter(Boolean)
                    .join(" · ")}
                </p>
                <p class="mono small hash-line">
                  {entry.prev_hash.slice(0, 16)}… → {entry.hash}
                </p>
              </div>
            )}
          />
        </li>
      ))}
      {last && next && (
        <li>
          <Button small onClick={() => onMore(next)}>
            Further entries
          </Button>
        </li>
      )}
    </>
  );
}
