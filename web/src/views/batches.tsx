import { useState } from "preact/hooks";
import { get } from "../api";
import { readStudy, type Arm, type Rate, type Study } from "../batch/study";
import { summaryOf } from "../batch/summary";
import { place, setQuery } from "../router";
import { bare, ended, type Execution, type ListExecutions } from "../types";
import { count, duration, Empty, firstLine, Link, Loading, Note, PageHead, ProblemBanner, share, StatusBadge, Table, TextField, tokens, useLoad, useNow } from "../ui";
import { visible } from "../visible";

const PAGE_SIZE = 500;
const MOST = 2_000;
const EVERY_MS = 10_000;
const MOST_BYTES = 4 * 1024 * 1024;

async function all(text: string, signal: AbortSignal): Promise<{ rows: Execution[]; more: boolean }> {
  const rows: Execution[] = [];
  let token = "";
  do {
    const found = await get<ListExecutions>("/api/executions", { text, page_size: PAGE_SIZE, page_token: token }, signal);
    rows.push(...found.executions);
    token = found.next_page_token;
  } while (token && rows.length < MOST);
  return { rows, more: Boolean(token) };
}

/** Many tasks in one table, and what a study of them found. */
export function BatchesView() {
  const name = place.value.query.get("name") ?? "";
  const found = useLoad((signal) => all(`batch-${name}`, signal), name, EVERY_MS);
  const now = useNow(5_000);
  const rows = found.value?.rows.filter((row) => row.task_id.startsWith(`batch-${name}`));
  return (
    <>
      <PageHead title="Batches" lead="The tasks of fleet batch and fleet study." />
      <div class="stack">
        <form class="filters" role="search" aria-label="Filter the batches" onSubmit={(event) => event.preventDefault()}>
          <TextField label="Batch" type="search" value={name} placeholder="Any; a name or its beginning" onInput={(value) => setQuery({ name: value.trim() })} />
        </form>
        <ProblemBanner problem={found.problem} retry={found.reload} />
        {!rows && !found.problem && <Loading what="Looking for tasks" />}
        {rows?.length === 0 && (
          <Empty title={name ? "No matches." : "No batches yet."}>
            <code>fleet batch tasks.jsonl --repo-root clones --parallel 8</code>
          </Empty>
        )}
        {rows && rows.length > 0 && (
          <>
            <p role="status">{summaryOf(rows)}</p>
            {found.value?.more && <Note tone="warn">The newest {count(MOST)} tasks are shown.</Note>}
            <Table
              caption="Tasks"
              rows={rows}
              keyOf={(row) => row.execution_id}
              columns={[
                {
                  name: "Task",
                  heading: true,
                  grow: true,
                  cell: (row) => (
                    <span class="execution-name">
                      <Link href={`/executions/${encodeURIComponent(row.execution_id)}`}>{visible(row.task_id.slice("batch-".length))}</Link>
                      <span class="muted small">{visible(firstLine(row.title, 90))}</span>
                    </span>
                  ),
                },
                { name: "Status", cell: (row) => <StatusBadge status={row.status} /> },
                { name: "Verdict", cell: (row) => (bare(row.verdict) && bare(row.verdict) !== "UNSPECIFIED" ? <StatusBadge status={row.verdict} /> : "–") },
                { name: "Tokens", number: true, cell: (row) => tokens(row.usage) },
                { name: "Time", number: true, cell: (row) => duration((ended(row.status) ? row.finished_at_ms : now) - row.created_at_ms) },
              ]}
            />
          </>
        )}
        <StudyPart />
      </div>
    </>
  );
}

function StudyPart() {
  const [study, setStudy] = useState<Study>();
  const [wrong, setWrong] = useState("");
  async function read(file: File | undefined): Promise<void> {
    if (!file) return;
    const found = file.size <= MOST_BYTES ? readStudy(await file.text()) : undefined;
    setStudy(found);
    setWrong(found ? "" : "This is not a study's report.json.");
  }
  return (
    <section class="card stack" aria-label="A study">
      <h2>A study</h2>
      <div class={`field${wrong ? " field-wrong" : ""}`}>
        <label for="study">Its report.json</label>
        <input id="study" class="input" type="file" accept="application/json,.json" onChange={(event) => void read(event.currentTarget.files?.[0])} />
        <p class="hint">From the folder that fleet study writes, such as tasks.study. The file stays in this browser.</p>
        {wrong && <p class="field-error">{wrong}</p>}
      </div>
      {study && (
        <>
          <h3>
            {visible(study.name)}
            {study.missing > 0 && <span class="muted small"> {count(study.missing)} trials are missing</span>}
          </h3>
          <div class="plots">
            <Dots title="Passed" arms={study.arms} rate={(arm) => arm.passed} />
            <Dots title="Verified" arms={study.arms} rate={(arm) => arm.verified} />
            {study.arms.some((arm) => arm.resolved) && <Dots title="Resolved" arms={study.arms} rate={(arm) => arm.resolved} />}
            <Dots title="Tokens of a trial" arms={study.arms} value={(arm) => arm.tokens} format={count} />
            <Dots title="Time of a trial, median" arms={study.arms} value={(arm) => arm.seconds} format={(value) => duration(value * 1000)} />
          </div>
        </>
      )}
    </section>
  );
}

const [WIDTH, LEFT, ROW] = [420, 150, 26];

interface DotsProps {
  title: string;
  arms: readonly Arm[];
  rate?: (arm: Arm) => Rate | null;
  value?: (arm: Arm) => number;
  format?: (value: number) => string;
}

/** A dot for each number of candidates, with its interval of 95 % where there is one; said in words beside it. */
function Dots({ title, arms, rate, value, format = share }: DotsProps) {
  const rows = arms.flatMap((arm) => {
    const found = rate?.(arm);
    if (rate && !found?.of) return [];
    return [{ name: arm.name, at: found ? found.passed / found.of : (value?.(arm) ?? 0), low: found?.low, high: found?.high, of: found?.of }];
  });
  const most = rate ? 1 : Math.max(...rows.map((row) => row.at), 1e-9);
  const x = (at: number) => LEFT + (at / most) * (WIDTH - LEFT - 70);
  const told = (row: (typeof rows)[number]) => format(row.at) + (row.of ? ` of ${row.of}` : "");
  return (
    <figure class="card stack-tight">
      <figcaption>
        <h4>{title}</h4>
      </figcaption>
      <svg class="dots" viewBox={`0 0 ${WIDTH} ${rows.length * ROW}`} role="img" aria-label={`${title}: ${rows.map((row) => `${row.name} ${told(row)}`).join(", ")}`}>
        {rows.map((row, index) => {
          const y = index * ROW + ROW / 2;
          return (
            <g key={row.name}>
              <text x={0} y={y + 4}>
                {visible(row.name)}
              </text>
              <line class="dots-track" x1={x(0)} x2={x(most)} y1={y} y2={y} />
              {row.low !== undefined && row.high !== undefined && <line class="dots-interval" x1={x(row.low)} x2={x(row.high)} y1={y} y2={y} />}
              <circle cx={x(row.at)} cy={y} r={5} />
              <text x={WIDTH} y={y + 4} text-anchor="end">
                {told(row)}
              </text>
            </g>
          );
        })}
      </svg>
    </figure>
  );
}
