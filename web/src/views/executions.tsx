import { useMemo, useState } from "preact/hooks";
import { get, post } from "../api";
import { visible } from "../visible";
import { place, setQuery } from "../router";
import { bare, ended, words, type Execution, type ListExecutions } from "../types";
import {
  age,
  Button,
  Confirm,
  cost,
  duration,
  Empty,
  firstLine,
  Link,
  Loading,
  moment,
  PageHead,
  plural,
  ProblemBanner,
  Select,
  shortRepository,
  StatusBadge,
  Table,
  TextField,
  toast,
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

/** Completed is not green where the evidence is not. */
const OF_VERDICT: Readonly<Record<string, { tone: "warn" | "bad" }>> = { UNVERIFIED: { tone: "warn" }, REFUTED: { tone: "bad" } };

const COLUMNS = (now: number, chosen: ReadonlySet<string>, choose: (id: string, chosen: boolean) => void): Column<Execution>[] => [
  {
    name: "",
    cell: (row) =>
      !ended(row.status) && (
        <input
          type="checkbox"
          aria-label={`Choose ${visible(row.title || row.task_id)}`}
          checked={chosen.has(row.execution_id)}
          onChange={(event) => choose(row.execution_id, event.currentTarget.checked)}
        />
      ),
  },
  { name: "Status", cell: (row) => <StatusBadge status={row.status} {...(bare(row.status) === "COMPLETED" && OF_VERDICT[bare(row.verdict)])} /> },
  {
    name: "Task",
    grow: true,
    heading: true,
    cell: (row) => (
      <span class="execution-name">
        <Link href={`/executions/${encodeURIComponent(row.execution_id)}`}>{visible(firstLine(row.title, 110)) || row.task_id}</Link>
        <span class="muted small execution-id">
          {[
            row.task_id,
            words(row.kind),
            bare(row.role) === "UNSPECIFIED" ? "" : bare(row.role),
            row.parent_execution_id ? "part of another" : "",
            row.attempt > 1 ? `attempt ${row.attempt}` : "",
          ]
            .filter(Boolean)
            .join(" · ")}
        </span>
      </span>
    ),
  },
  {
    name: "Repository",
    cell: (row) => (
      <span class="repository" title={visible(row.repository)}>
        {visible(shortRepository(row.repository)) || "–"}
      </span>
    ),
  },
  { name: "Agents", number: true, minor: true, cell: (row) => agents(row) },
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
  { name: "Winner", minor: true, cell: (row) => <span class="small winner">{row.winner_id || "–"}</span> },
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
  const text = query.get("text") ?? "";
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
  const filter = [status, role, text, task, since, from, to].join("\n");
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
          text,
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
  const filtered = Boolean(status || role || text || task || since);
  const [picked, setPicked] = useState<ReadonlySet<string>>(new Set());
  const [stopping, setStopping] = useState(false);
  const rows = found.value?.executions;
  // What has ended meanwhile, or is on another page, is not meant any more.
  const chosen = new Set((rows ?? []).filter((row) => !ended(row.status) && picked.has(row.execution_id)).map((row) => row.execution_id));
  const open = (rows ?? []).filter((row) => !ended(row.status)).map((row) => row.execution_id);
  const choose = (id: string, wanted: boolean): void => setPicked(new Set(wanted ? [...chosen, id] : [...chosen].filter((one) => one !== id)));

  const clear = (): void => setQuery({ status: undefined, role: undefined, text: undefined, task: undefined, since: undefined, from: undefined, to: undefined });

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
        <TextField label="Search" type="search" value={text} placeholder="Task, id or repository" onInput={(value) => setQuery({ text: value })} />
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
          <Button kind="quiet" onClick={clear}>
            Clear
          </Button>
        )}
      </form>
      <div class="stack">
        <ProblemBanner problem={found.problem} retry={found.reload} />
        {!rows && !found.problem && <Loading what="Looking for executions" />}
        {rows && rows.length === 0 && (
          <Empty title={filtered ? "No matches." : trail.length ? "No older executions." : "No executions yet."}>
            {filtered ? <Button onClick={clear}>Clear filters</Button> : <Link href="/submit">Submit the first task</Link>}
          </Empty>
        )}
        {open.length > 0 && (
          <div class="row" role="group" aria-label="Chosen executions">
            <Button small kind="quiet" onClick={() => setPicked(new Set(chosen.size === open.length ? [] : open))}>
              {chosen.size === open.length ? "Choose none" : `Choose all ${open.length} that run`}
            </Button>
            {chosen.size > 0 && (
              <Button small kind="danger" onClick={() => setStopping(true)}>
                Cancel {plural(chosen.size, "execution")}
              </Button>
            )}
          </div>
        )}
        {rows && rows.length > 0 && (
          <Table caption="Executions" columns={COLUMNS(now, chosen, choose)} rows={rows} keyOf={(row) => row.execution_id} />
        )}
        {stopping && <StopAll ids={[...chosen]} onClose={() => setStopping(false)} onDone={found.reload} />}
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

function StopAll({ ids, onClose, onDone }: { ids: string[]; onClose: () => void; onDone: () => void }) {
  const [meant] = useState(ids);
  return (
    <Confirm
      title={`Cancel ${plural(meant.length, "execution")}?`}
      yes="Cancel them"
      onClose={onClose}
      onYes={async () => {
        const answers = await Promise.allSettled(meant.map((id) => post(`/api/executions/${encodeURIComponent(id)}/cancel`, { reason: "cancelled together with others" })));
        const failed = answers.find((one) => one.status === "rejected");
        onDone();
        if (failed) throw failed.reason;
        toast(`${plural(meant.length, "execution")} cancelled.`);
      }}
    >
      <p>Their agents and processes are stopped. What was done stays in their logs.</p>
    </Confirm>
  );
}
