import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get } from "../api";
import { busyOf, faultsOf, slowOf } from "../fleet/answers";
import { loadOf, type Load, type Metrics, type Status } from "../fleet/calls";
import { Components, Endpoints, Hosts, Nodes, Replicas, Stores } from "../fleet/machines";
import { Plot } from "../fleet/plot";
import { place, setQuery } from "../router";
import { words } from "../types";
import { visible } from "../visible";
import { age, Button, cost, count, duration, Loading, Note, PageHead, ProblemBanner, Select, share, StatusBadge, Table, tokens, useLoad, useNow } from "../ui";

const HOURS: Record<string, number> = { hour: 1, shift: 6, day: 24, week: 168 };
const RANGES = [
  ["hour", "Last hour"],
  ["shift", "Last 6 hours"],
  ["day", "Last 24 hours"],
  ["week", "Last 7 days"],
  ["all", "All that is kept"],
] as const;
const MOST_LOOKS = 720;

// As long as the page is open: nothing keeps the load of machines on the server.
let looks: readonly Load[] = [];

/** The fleet: how it is, and how it has been. */
export function FleetView() {
  const range = place.value.query.get("range") ?? "hour";
  const status = useLoad<Status>((signal) => get("/api/status", { include_stats: true, include_fleet: true }, signal), "status", 5000);
  const metrics = useLoad<Metrics>(
    (signal) => get("/api/metrics", { start_time_ms: HOURS[range] ? Date.now() - HOURS[range] * 3_600_000 : undefined }, signal),
    range,
    10_000,
  );
  const [load, setLoad] = useState(looks);
  useEffect(() => {
    if (!status.value) return;
    const look = loadOf(status.value);
    if (looks.at(-1)?.at === look.at) return;
    looks = [...looks, look].slice(-MOST_LOOKS);
    setLoad(looks);
  }, [status.value]);
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const now = useNow(5000);
  const told = status.value;
  return (
    <>
      <PageHead title="Fleet" lead={told?.measured_at_ms ? `Measured ${age(told.measured_at_ms, now)}.` : undefined}>
        <Select label="Range" value={range} options={RANGES} onInput={(value) => setQuery({ range: value })} />
      </PageHead>
      <div class="stack fleet">
        <ProblemBanner problem={status.problem} retry={status.reload} />
        {!told && !status.problem && <Loading what="Measuring" />}
        {told && <Answers status={told} metrics={metrics.value} />}
        <ProblemBanner problem={metrics.problem} retry={metrics.reload} />
        {metrics.value?.incomplete && <Note tone="warn">The log is still being read: there is more than this.</Note>}
        {!metrics.value && !metrics.problem && <Loading what="Reading the measurements" />}
        {metrics.value && <Series metrics={metrics.value} load={load} />}
        {metrics.value && (
          <Folded title="Latencies, models, tools" open={open} onOpen={setOpen}>
            <Tables metrics={metrics.value} />
          </Folded>
        )}
        {told && (
          <Folded title="Parts, model servers, machines, storage" open={open} onOpen={setOpen}>
            <Part title="Parts" there={told.components.length}>
              <Components rows={told.components} />
            </Part>
            <Part title="Model servers" there={told.model_endpoints?.length}>
              <Endpoints rows={told.model_endpoints ?? []} />
            </Part>
            <Part title="Actors" there={told.hosts?.length}>
              <Hosts rows={told.hosts ?? []} />
            </Part>
            <Part title="Machines" there={told.nodes?.length}>
              <Nodes rows={told.nodes ?? []} />
            </Part>
            <Part title="Orchestrators" there={told.replicas?.length}>
              <Replicas rows={told.replicas ?? []} />
            </Part>
            <Part title="Storage" there={told.storage?.length}>
              <Stores rows={told.storage ?? []} />
            </Part>
          </Folded>
        )}
      </div>
    </>
  );
}

function Folded(props: { title: string; open: ReadonlySet<string>; onOpen: (open: ReadonlySet<string>) => void; children: ComponentChildren }) {
  const { title, open, onOpen, children } = props;
  return (
    <details
      class="more"
      open={open.has(title)}
      onToggle={(event) => {
        if (event.currentTarget.open !== open.has(title)) onOpen(new Set(event.currentTarget.open ? [...open, title] : [...open].filter((one) => one !== title)));
      }}
    >
      <summary>{title}</summary>
      {open.has(title) && <div class="stack details-body">{children}</div>}
    </details>
  );
}

function Part({ title, there, children }: { title: string; there: number | undefined; children: ComponentChildren }) {
  if (!there) return null;
  return (
    <div class="stack-tight">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

/** The three questions that somebody opens this view with. */
function Answers({ status, metrics }: { status: Status; metrics: Metrics | undefined }) {
  const faults = faultsOf(status);
  const usage = metrics?.usage;
  return (
    <dl class="answers">
      <div class="card">
        <dt>
          Is it healthy? <StatusBadge status={status.status.toUpperCase()} />
        </dt>
        <dd>
          {faults.length ? faults.map((fault) => <p key={fault}>{visible(fault)}.</p>) : <p>Everything answers.</p>}
          <p class="muted small">Up for {duration(status.uptime_seconds * 1000)}</p>
        </dd>
      </div>
      <div class="card">
        <dt>Is it busy?</dt>
        <dd>
          <p>{busyOf(status)}.</p>
          {usage && (
            <p class="muted small">
              {tokens(usage)} tokens, {metrics ? share(metrics.cache_hit_rate) : "–"} of prompts cached{usage.cost_usd ? `, ${cost(usage.cost_usd)}` : ""}
            </p>
          )}
        </dd>
      </div>
      <div class="card">
        <dt>What is slow?</dt>
        <dd>
          <p>{metrics ? slowOf(metrics) : "…"}</p>
          <p class="muted small">The median, and what 5 of 100 exceed</p>
        </dd>
      </div>
    </dl>
  );
}

const percent = (value: number): string => `${Math.round(value)} %`;

/** Three plots answer the three questions; the others are there for those who look further. */
function Series({ metrics, load }: { metrics: Metrics; load: readonly Load[] }) {
  const [more, setMore] = useState(false);
  const series = metrics.series ?? [];
  const drawn = useMemo(() => {
    const called = (point: (typeof series)[number], value: number): number | null => (point.model_calls ? value : null);
    return {
      times: series.map((point) => point.start_time_ms / 1000),
      executions: [
        { name: "Submitted", colour: 1, values: series.map((point) => point.accepted) },
        { name: "Ended", colour: 3, dashed: true, values: series.map((point) => point.ended.reduce((sum, one) => sum + one.count, 0)) },
        { name: "Running", colour: 2, values: series.map((point) => point.executions_running) },
      ],
      agents: [
        { name: "Agents running", colour: 1, values: series.map((point) => point.agents_running) },
        { name: "Executions waiting", colour: 2, dashed: true, values: series.map((point) => point.queue_length) },
      ],
      tokens: [
        { name: "Read", colour: 1, values: series.map((point) => point.prompt_tokens) },
        { name: "Written", colour: 2, dashed: true, values: series.map((point) => point.completion_tokens) },
      ],
      latency: [
        { name: "p50", colour: 1, values: series.map((point) => called(point, point.model_call_p50_ms)) },
        { name: "p95", colour: 2, dashed: true, values: series.map((point) => called(point, point.model_call_p95_ms)) },
      ],
      cache: [{ name: "Cache hits", colour: 3, values: series.map((point) => (point.prompt_tokens ? (point.cached_tokens / point.prompt_tokens) * 100 : null)) }],
      tools: [
        { name: "Tool calls", colour: 1, values: series.map((point) => point.tool_calls) },
        { name: "Failed", colour: 4, dashed: true, values: series.map((point) => point.tool_failures) },
      ],
    } as const;
  }, [metrics]);
  return (
    <>
      <div class="plots">
        <Plot title="Executions" times={drawn.times} lines={drawn.executions} format={count} whole />
        <Plot title="Latency of model calls" times={drawn.times} lines={drawn.latency} format={duration} />
        <Machines load={load} />
        {more && (
          <>
            <Plot title="Agents and queue" times={drawn.times} lines={drawn.agents} format={count} whole />
            <Plot title="Tokens" times={drawn.times} lines={drawn.tokens} format={count} whole />
            <Plot title="Prompt cache" times={drawn.times} lines={drawn.cache} format={percent} most={100} />
            <Plot title="Tool calls" times={drawn.times} lines={drawn.tools} format={count} whole />
          </>
        )}
      </div>
      <div>
        <Button small expanded={more} onClick={() => setMore(!more)}>
          {more ? "Fewer plots" : "More plots: agents, tokens, cache, tool calls"}
        </Button>
      </div>
    </>
  );
}

function Machines({ load }: { load: readonly Load[] }) {
  const drawn = useMemo(
    () => ({
      times: load.map((look) => look.at / 1000),
      lines: [
        { name: "CPU", colour: 1, values: load.map((look) => look.cpu) },
        { name: "Memory", colour: 3, dashed: true, values: load.map((look) => look.memory) },
        ...(load.some((look) => look.gpu !== null) ? ([{ name: "GPU", colour: 2, values: load.map((look) => look.gpu) }] as const) : []),
      ] as const,
    }),
    [load],
  );
  return <Plot title="Machines, since this page is open" times={drawn.times} lines={drawn.lines} format={percent} most={100} />;
}

function Tables({ metrics }: { metrics: Metrics }) {
  const ended = metrics.executions.filter((one) => one.count > 0);
  return (
    <>
      <Part title="How executions ended" there={ended.length}>
        <ul class="list-plain row">
          {ended.map((one) => (
            <li key={one.status}>
              <StatusBadge status={one.status} text={`${words(one.status)}: ${one.count}`} />
            </li>
          ))}
        </ul>
      </Part>
      <Part title="Latencies" there={metrics.latencies.length}>
        <Table
          caption="Latencies"
          cards={false}
          rows={metrics.latencies}
          keyOf={(one) => one.operation}
          columns={[
            { name: "Operation", heading: true, cell: (one) => words(one.operation) },
            { name: "Count", number: true, cell: (one) => count(one.count) },
            { name: "p50", number: true, cell: (one) => duration(one.count ? one.p50_ms : undefined) },
            { name: "p95", number: true, cell: (one) => duration(one.count ? one.p95_ms : undefined) },
            { name: "p99", number: true, cell: (one) => duration(one.count ? one.p99_ms : undefined) },
          ]}
        />
      </Part>
      <Part title="Models" there={metrics.models?.length}>
        <Table
          caption="Models"
          cards={false}
          rows={metrics.models ?? []}
          keyOf={(one) => one.model}
          columns={[
            { name: "Model", heading: true, cell: (one) => <span class="winner">{one.model}</span> },
            { name: "Calls", number: true, cell: (one) => count(one.calls) },
            { name: "Tokens", number: true, cell: (one) => tokens(one) },
            { name: "Cache hits", number: true, cell: (one) => share(one.prompt_tokens ? one.cached_tokens / one.prompt_tokens : undefined) },
            { name: "p50", number: true, cell: (one) => duration(one.p50_ms) },
            { name: "p95", number: true, cell: (one) => duration(one.p95_ms) },
            { name: "Cost", number: true, cell: (one) => cost(one.cost_usd) },
          ]}
        />
      </Part>
      <Part title="Tools" there={metrics.tools?.length}>
        <Table
          caption="Tools"
          cards={false}
          rows={(metrics.tools ?? []).slice(0, 30)}
          keyOf={(one) => one.name}
          columns={[
            { name: "Operation", heading: true, cell: (one) => <code>{one.name}</code> },
            { name: "Calls", number: true, cell: (one) => count(one.calls) },
            { name: "Failed", number: true, cell: (one) => count(one.failures) },
            { name: "p50", number: true, cell: (one) => duration(one.p50_ms) },
            { name: "p95", number: true, cell: (one) => duration(one.p95_ms) },
          ]}
        />
      </Part>
    </>
  );
}
