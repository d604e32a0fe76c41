import { useMemo, useState } from "preact/hooks";
import { get } from "../api";
import { visible } from "../visible";
import { place, setQuery } from "../router";
import { bare, ended, words, type Execution, type ListExecutions } from "../types";
import {
  age,
  Button,
  cost,
  duration,
  Empty,
  firstLine,
  Link,
  Loading,
  moment,
  PageHead,
  ProblemBanner,
  Select,
  StatusBadge,
  Table,
  TextField,
  tokens,
  useLoad,
  useNow,
  type Column,
} from "../ui";

const PAGE_SIZE = 50;
const EVERY_MS = 3000;

const STATUSES: Record<string, readonly string[]> = {
  live: ["PENDING", "IN_PROGRESS", "AWAITING_APPROVAL"],
  awaiting: ["AWAITING_APPROVAL"],
  ended: ["COMPLETED", "NO_WINNER", "FAILED", "TIMEOUT", "CANCELLED", "REJECTED"],
  pending: ["PENDING"],
  running: ["IN_PROGRESS"],
  completed: ["COMPLETED"],
  no_winner: ["NO_WINNER"],
  failed: ["FAILED"],
  timeout: ["TIMEOUT"],
  cancelled: ["CANCELLED"],
  rejected: ["REJECTED"],
};

const STATUS_OPTIONS = [
  ["", "Any"],
  ["live", "Not ended"],
  ["awaiting", "Awaiting approval"],
  ["running", "In progress"],
  ["pending", "Pending"],
  ["ended", "Ended"],
  ["completed", "Completed"],
  ["no_winner", "No winner"],
  ["failed", "Failed"],
  ["timeout", "Timed out"],
  ["cancelled", "Cancelled"],
  ["rejected", "Rejected"],
] as const;

export const ROLE_OPTIONS = [
  ["", "Any"],
  ["DEV", "Developer"],
  ["QA", "QA"],
  ["ARCHITECT", "Architect"],
  ["DEVOPS", "DevOps"],
  ["DATA", "Data"],
] as const;

const SINCE_HOURS: Record<string, number> = { hour: 1, day: 24, week: 168, month: 720 };
const SINCE_OPTIONS = [
  ["", "Any time"],
  ["hour", "Last hour"],
  ["day", "Last 24 hours"],
  ["week", "Last 7 days"],
  ["month", "Last 30 days"],
  ["range", "Between …"],
] as const;

function fromLocal(text: string): number | undefined {
  const at = text ? new Date(text).getTime() : Number.NaN;
  return Number.isFinite(at) ? at : undefined;
}

const COLUMNS = (now: number): Column<Execution>[] => [
  { name: "Status", cell: (row) => <StatusBadge status={row.status} /> },
  {
    name: "Task",
    grow: true,
    heading: true,
    cell: (row) => (
      <span class="execution-name">
        <Link href={`/executions/${encodeURIComponent(row.execution_id)}`}>{visible(firstLine(row.task_description, 110)) || row.task_id}</Link>
        <span class="muted small execution-id">
          {row.task_id}
          {row.parent_execution_id ? " · part of another" : ""}
          {row.attempt > 1 ? ` · attempt ${row.attempt}` : ""}
        </span>
      </span>
    ),
  },
  { name: "Kind", minor: true, cell: (row) => words(row.kind) },
  { name: "Role", cell: (row) => bare(row.role).replace("UNSPECIFIED", "–") || "–" },
  { name: "Agents", number: true, cell: (row) => agents(row) },
  {
    name: "Started",
    cell: (row) => (
      <time class="nowrap" dateTime={new Date(row.created_at_ms).toISOString()} title={moment(row.created_at_ms)}>
        {age(row.created_at_ms, now)}
      </time>
    ),
  },
  {
    name: "Duration",
    number: true,
    cell: (row) => duration((row.finished_at_ms || (ended(row.status) ? row.updated_at_ms : now)) - row.created_at_ms),
  },
  { name: "Tokens", number: true, cell: (row) => tokens(row.usage) },
  { name: "Cost", number: true, minor: true, cell: (row) => cost(row.usage?.cost_usd) },
  {
    name: "Verdict",
    cell: (row) => (bare(row.verdict) && bare(row.verdict) !== "UNSPECIFIED" ? <StatusBadge status={row.verdict} /> : "–"),
  },
  { name: "Winner", cell: (row) => <span class="small winner">{row.winner_id || "–"}</span> },
];

function agents(row: Execution): string {
  const all = Math.max(row.agents.length, row.agent_count);
  if (!all) return "–";
  const done = row.agents.filter((agent) => ["FINISHED", "LOST"].includes(bare(agent.status))).length;
  return ended(row.status) || done === all ? String(all) : `${done} / ${all}`;
}

/** All executions, the newest first, kept up to date. */
export function ExecutionsView() {
  const { query } = place.value;
  const status = query.get("status") ?? "";
  const role = query.get("role") ?? "";
  const task = query.get("task") ?? "";
  const since = query.get("since") ?? "";
  const from = query.get("from") ?? "";
  const to = query.get("to") ?? "";
  // A page's token is good for the very same question, so that "the last hour" begins at one moment for all its pages.
  const created = useMemo(() => {
    if (since === "range") return { created_after_ms: fromLocal(from), created_before_ms: fromLocal(to) };
    const hours = SINCE_HOURS[since];
    return { created_after_ms: hours ? Date.now() - hours * 3_600_000 : undefined, created_before_ms: undefined };
  }, [since, from, to]);
  const filter = [status, role, task, since, from, to].join("\n");
  const [pages, setPages] = useState<{ filter: string; tokens: readonly string[] }>({ filter, tokens: [] });
  const trail = pages.filter === filter ? pages.tokens : [];
  const token = trail.at(-1) ?? "";

  const found = useLoad<ListExecutions>(
    (signal) =>
      get(
        "/api/executions",
        {
          page_size: PAGE_SIZE,
          task_id: task,
          role: role && `ROLE_${role}`,
          statuses: (STATUSES[status] ?? []).map((one) => `DELIBERATION_STATUS_${one}`),
          ...created,
          page_token: token,
        },
        signal,
      ),
    `${filter}\n${token}`,
    EVERY_MS,
  );
  const now = useNow(1000);
  const filtered = Boolean(status || role || task || since);
  const rows = found.value?.executions;

  return (
    <>
      <PageHead title="Executions">
        <Link class="button button-primary" href="/submit">
          Submit a task
        </Link>
      </PageHead>
      <form class="filters" role="search" aria-label="Filter the executions" onSubmit={(event) => event.preventDefault()}>
        <Select label="Status" value={status} options={STATUS_OPTIONS} onInput={(value) => setQuery({ status: value })} />
        <Select label="Role" value={role} options={ROLE_OPTIONS} onInput={(value) => setQuery({ role: value })} />
        <TextField label="Task id" type="search" value={task} placeholder="Any" onInput={(value) => setQuery({ task: value.trim() })} />
        <Select
          label="Started"
          value={since}
          options={SINCE_OPTIONS}
          onInput={(value) => setQuery({ since: value, from: undefined, to: undefined })}
        />
        {since === "range" && (
          <>
            <TextField label="From" type="datetime-local" value={from} onInput={(value) => setQuery({ from: value })} />
            <TextField label="To" type="datetime-local" value={to} onInput={(value) => setQuery({ to: value })} />
          </>
        )}
        {filtered && (
          <Button
            kind="quiet"
            onClick={() => setQuery({ status: undefined, role: undefined, task: undefined, since: undefined, from: undefined, to: undefined })}
          >
            Clear
          </Button>
        )}
      </form>
      <div class="stack">
        <ProblemBanner problem={found.problem} retry={found.reload} />
        {!rows && !found.problem && <Loading what="Looking for executions" />}
        {rows && rows.length === 0 && (
          <Empty title={filtered ? "No execution fits." : trail.length ? "There are no older ones." : "No execution yet."}>
            {filtered ? <p>Other values of the filter may find some.</p> : <Link href="/submit">Submit the first task</Link>}
          </Empty>
        )}
        {rows && rows.length > 0 && (
          <Table caption="Executions" columns={COLUMNS(now)} rows={rows} keyOf={(row) => row.execution_id} />
        )}
        {(trail.length > 0 || found.value?.next_page_token) && (
          <nav class="row pages" aria-label="Pages">
            <Button small disabled={!trail.length} onClick={() => setPages({ filter, tokens: trail.slice(0, -1) })}>
              Newer
            </Button>
            <span class="muted small">Page {trail.length + 1}</span>
            <Button
              small
              disabled={!found.value?.next_page_token}
              onClick={() => setPages({ filter, tokens: [...trail, found.value?.next_page_token ?? ""] })}
            >
              Older
            </Button>
          </nav>
        )}
      </div>
    </>
  );
}
