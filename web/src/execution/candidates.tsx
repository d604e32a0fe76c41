/** Candidates compared: how each stands and why, and two of them side by side. */

import { useState } from "preact/hooks";
import { words } from "../types";
import { visible } from "../visible";
import { Button, count, Empty, Select, StatusBadge, Table, tokens, type Column } from "../ui";
import { BetweenView, CandidatePanel, VerdictBadge } from "./candidate";
import type { Candidate, Examination, Ranked, TestSet } from "./events";
import { matrixOf, type Mark, type MatrixRow } from "./matrix";
import type { ExecutionView } from "./view";

interface Standing {
  candidate: Candidate;
  ranked: Ranked | undefined;
  /** It stands for the place that this one shares. */
  sameAs: string;
  dropped: string;
}

/** Candidates by rank; then those not ranked, as they came in. */
export function standings(view: ExecutionView): Standing[] {
  const ranked = new Map(view.ranking.map((one) => [one.candidate_id, one]));
  const same = new Map(view.ranking.flatMap((one) => (one.duplicates ?? []).map((id) => [id, one.candidate_id])));
  const revised = new Map([...view.candidates.values()].map((one) => [one.revises ?? "", one.candidate_id]));
  const all = [...view.candidates.values()].map((candidate) => ({
    candidate,
    ranked: ranked.get(candidate.candidate_id),
    sameAs: same.get(candidate.candidate_id) ?? "",
    dropped: view.dropped.get(candidate.candidate_id) ?? replaced(view, revised.get(candidate.candidate_id)),
  }));
  const last = Number.MAX_SAFE_INTEGER;
  return all.sort((one, other) => (one.ranked?.rank ?? last) - (other.ranked?.rank ?? last));
}

function replaced(view: ExecutionView, by: string | undefined): string {
  return by && !view.dropped.has(by) && view.ranking.length ? `its revision ${by} took its place` : "";
}

export function CandidatesTab({ id, view }: { id: string; view: ExecutionView }) {
  const all = standings(view);
  const [chosen, setChosen] = useState<[string, string]>(["", ""]);
  const [apart, setApart] = useState(true);
  if (!all.length) return <Empty title={view.ended ? "No candidate." : "No candidate yet."} />;
  const ids = all.map((one) => one.candidate.candidate_id);
  const first = ids.includes(chosen[0]) ? chosen[0] : (ids[0] ?? "");
  const second = chosen[1] === "none" ? "" : ids.includes(chosen[1]) ? chosen[1] : (ids.find((one) => one !== first) ?? "");
  const options = all.map((one) => [one.candidate.candidate_id, label(one)] as const);
  const shown = [first, second].flatMap((name) => all.find((one) => one.candidate.candidate_id === name) ?? []);
  const patches = shown.flatMap(({ candidate }) => (candidate.artifacts.patch ? [candidate] : []));
  const [one, other] = patches;
  return (
    <div class="stack">
      <Table caption="Candidates" columns={columns(view)} rows={all} keyOf={(row) => row.candidate.candidate_id} />
      <Tests view={view} ids={ids} />
      <Matrix examination={view.examination} />
      <div class="compare-controls">
        <Select label="Compare" value={first} options={options} onInput={(value) => setChosen([value, second || "none"])} />
        <Select
          label="with"
          value={second}
          options={[["", "nothing"], ...options.filter(([value]) => value !== first)]}
          onInput={(value) => setChosen([first, value || "none"])}
        />
        {one && other && (
          <div class="row" role="group" aria-label="What is compared">
            <Button small pressed={apart} onClick={() => setApart(true)}>
              Their differences
            </Button>
            <Button small pressed={!apart} onClick={() => setApart(false)}>
              Each change
            </Button>
          </div>
        )}
      </div>
      {one && other && apart && <BetweenView id={id} one={one} other={other} />}
      <div class={`compare${second ? " compare-two" : ""}`}>
        {shown.map(({ candidate, ranked, dropped, sameAs }) => (
          <CandidatePanel
            key={candidate.candidate_id}
            id={id}
            view={view}
            candidate={candidate}
            ranked={ranked}
            dropped={dropped}
            sameAs={sameAs}
            open={!(one && other && apart)}
          />
        ))}
      </div>
    </div>
  );
}

const MARKS: Readonly<Record<Mark, readonly [sign: string, tone: string]>> = {
  passed: ["✓", "good"],
  failed: ["✕", "bad"],
  skipped: ["○", "calm"],
  unknown: ["–", "calm"],
};

/** What failed where: checks and failing tests down, candidates across. */
function Tests({ view, ids }: { view: ExecutionView; ids: string[] }) {
  const reported = ids.filter((id) => view.reports.has(id));
  const rows = matrixOf(view, reported);
  if (!rows.length) return null;
  const cell = (mark: Mark) => (
    <span class={`call-sign call-${MARKS[mark][1]}`} role="img" aria-label={mark}>
      {MARKS[mark][0]}
    </span>
  );
  return (
    <Table
      caption="Checks and tests by candidate"
      cards={false}
      rows={rows}
      keyOf={(row) => `${row.test} ${row.name}`}
      columns={[
        { name: "Check or failing test", heading: true, grow: true, cell: (row) => (row.test ? <code>{visible(row.name)}</code> : visible(words(row.name))) },
        { name: "Before", cell: (row) => cell(row.before) },
        ...reported.map((id) => ({ name: visible(id), cell: (row: MatrixRow) => cell(row.on.get(id) ?? "unknown") })),
      ]}
    />
  );
}

/** The new tests of candidates on each other's sources: sources down, authors of tests across. */
function Matrix({ examination }: { examination: Examination | null }) {
  if (!examination?.sets.length) return null;
  const authors = examination.sets.map((tests): Column<string> => ({
    name: `${tests.candidates.map(visible).join(", ")} (${tests.tests.length})`,
    number: true,
    cell: (id) => <Cell tests={tests} id={id} />,
  }));
  return (
    <section class="stack" aria-label="New tests on the others' changes">
      <h3>New tests on the others' changes</h3>
      <Table
        caption="How many of the new tests of each author pass on whose change"
        columns={[{ name: "Change of", heading: true, cell: visible }, ...authors]}
        rows={examination.candidates}
        keyOf={(id) => id}
      />
      {examination.conflicts.map((one) => (
        <p class="small" key={`${one.candidate_id}/${one.other_id}`}>
          At odds: {visible(one.candidate_id)} fails {visible(one.test)} of {visible(one.other_id)}, which fails its{" "}
          {visible(one.other_test)}
        </p>
      ))}
      {examination.notes.map((note) => (
        <p class="small muted" key={note}>
          {visible(note)}
        </p>
      ))}
    </section>
  );
}

function Cell({ tests, id }: { tests: TestSet; id: string }) {
  if (tests.candidates.includes(id)) return <span class="muted">own</span>;
  const crossing = tests.crossings.find((one) => one.candidate_id === id);
  const said = crossing ? crossing.passed.length + crossing.failed.length : 0;
  if (!crossing || !said) return <span class="muted" title={visible(crossing?.note ?? "")}>no result</span>;
  const failed = crossing.failed.map((one) => `${one.test}: ${one.message}`).join("\n");
  return (
    <span title={visible(failed)}>
      <StatusBadge status={failed ? "failed" : "passed"} text={`${crossing.passed.length} of ${said}`} />
    </span>
  );
}

function label(one: Standing): string {
  return `${one.ranked ? `${one.ranked.rank}. ` : ""}${visible(one.candidate.candidate_id)}`;
}

function columns(view: ExecutionView): Column<Standing>[] {
  const part = (value: number | null | undefined) => (value === null || value === undefined ? "–" : value.toFixed(2));
  return [
    { name: "Rank", cell: (one) => one.ranked?.rank ?? "–", number: true },
    {
      name: "Candidate",
      heading: true,
      cell: (one) => (
        <span class="row">
          {visible(one.candidate.candidate_id)}
          {view.winnerId === one.candidate.candidate_id && <StatusBadge status="completed" text="winner" />}
          <VerdictBadge report={view.reports.get(one.candidate.candidate_id)} ranked={one.ranked} />
          {one.sameAs && <span class="tag">same as {visible(one.sameAs)}</span>}
          {one.dropped && <span class="tag">superseded</span>}
        </span>
      ),
    },
    { name: "Score", cell: (one) => part(one.ranked?.score), number: true },
    { name: "Evidence", cell: (one) => part(one.ranked?.evidence), number: true, minor: true },
    { name: "New tests", cell: (one) => part(one.ranked?.tests), number: true, minor: true },
    { name: "Reviews", cell: (one) => part(one.ranked?.review), number: true, minor: true },
    { name: "Votes", cell: (one) => part(one.ranked?.votes), number: true, minor: true },
    { name: "Checks", cell: (one) => <CheckCount view={view} id={one.candidate.candidate_id} /> },
    { name: "Files", cell: (one) => one.candidate.artifacts.files_changed.length, number: true, minor: true },
    {
      name: "Lines",
      number: true,
      cell: (one) => (
        <span class="nowrap">
          <span class="added">+{count(one.candidate.artifacts.insertions)}</span>{" "}
          <span class="removed">−{count(one.candidate.artifacts.deletions)}</span>
        </span>
      ),
    },
    {
      name: "Tokens",
      number: true,
      minor: true,
      cell: (one) =>
        tokens({
          prompt_tokens: one.candidate.usage?.prompt_tokens ?? 0,
          completion_tokens: one.candidate.usage?.completion_tokens ?? 0,
        }),
    },
  ];
}

function CheckCount({ view, id }: { view: ExecutionView; id: string }) {
  const report = view.reports.get(id);
  if (!report) return <span class="muted">not yet</span>;
  const ran = report.results.filter((one) => !one.skipped_reason);
  const passed = ran.filter((one) => one.passed).length;
  return (
    <span>
      <StatusBadge
        status={passed === ran.length ? "passed" : "failed"}
        text={`${passed} of ${ran.length}`}
        {...(!ran.length && { tone: "calm" as const })}
      />
    </span>
  );
}
