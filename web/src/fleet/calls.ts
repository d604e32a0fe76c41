// The fleet as it is measured: now, and over time.

export interface Component {
  name: string;
  state: string;
  message: string;
  version: string;
  latency_ms: number;
}

export interface Host {
  host_id: string;
  node_id: string;
  replica: string;
  running: number;
  slots: number;
  started_at_ms: number;
  alive: boolean;
  memory_bytes: number;
}

export interface Gpu {
  index: number;
  name: string;
  utilization_percent?: number;
  memory_total_bytes: number;
  memory_used_bytes: number;
}

export interface Node {
  node_id: string;
  name: string;
  alive: boolean;
  cpus: number;
  cpu_percent?: number;
  memory_total_bytes: number;
  memory_used_bytes?: number;
  gpu_count: number;
  gpus: Gpu[];
}

export interface Endpoint {
  url: string;
  state: string;
  message: string;
  model: string;
  profiles: string[];
  running?: number;
  waiting?: number;
  kv_cache_usage?: number;
  prefix_cache_hit_rate?: number;
  in_flight: number;
  latency_ms: number;
}

export interface Queue {
  waiting: number;
  oldest_wait_ms: number;
  max_waiting: number;
  driven: number;
  awaiting_approval: number;
}

export interface Replica {
  name: string;
  driven: number;
  answering: boolean;
  started_at_ms: number;
}

export interface Storage {
  name: string;
  messages: number;
  bytes: number;
  max_bytes: number;
}

export interface Status {
  status: string;
  uptime_seconds: number;
  components: Component[];
  hosts?: Host[];
  nodes?: Node[];
  model_endpoints?: Endpoint[];
  queue?: Queue | null;
  replicas?: Replica[];
  storage?: Storage[];
  measured_at_ms?: number;
}

export interface StatusCount {
  status: string;
  count: number;
}

export interface Point {
  start_time_ms: number;
  accepted: number;
  ended: StatusCount[];
  agents_running: number;
  executions_running: number;
  queue_length: number;
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens: number;
  cost_usd: number;
  model_calls: number;
  tool_calls: number;
  tool_failures: number;
  model_call_p50_ms: number;
  model_call_p95_ms: number;
}

export interface Latency {
  operation: string;
  count: number;
  p50_ms: number;
  p95_ms: number;
  p99_ms: number;
}

export interface Metrics {
  start_time_ms: number;
  end_time_ms: number;
  latencies: Latency[];
  agents?: { running: number; started: number; succeeded: number; failed: number; cancelled: number } | null;
  usage?: { prompt_tokens: number; completion_tokens: number; cached_tokens: number; model_calls: number; tool_calls: number; cost_usd: number } | null;
  cache_hit_rate: number;
  executions: StatusCount[];
  series?: Point[];
  step_seconds?: number;
  models?: { model: string; calls: number; prompt_tokens: number; completion_tokens: number; cached_tokens: number; cost_usd: number; p50_ms: number; p95_ms: number }[];
  tools?: { name: string; calls: number; failures: number; p50_ms: number; p95_ms: number }[];
  incomplete?: boolean;
}

/** How busy a machine was when it was looked at; this page's own record, for no server keeps it. */
export interface Load {
  readonly at: number;
  readonly cpu: number | null;
  readonly memory: number | null;
  readonly gpu: number | null;
}

function mean(values: readonly (number | undefined)[]): number | null {
  const there = values.filter((value): value is number => value !== undefined);
  return there.length ? there.reduce((sum, value) => sum + value, 0) / there.length : null;
}

/** A look at all machines together. */
export function loadOf(status: Status): Load {
  const nodes = (status.nodes ?? []).filter((node) => node.alive);
  const measured = nodes.filter((node) => node.memory_used_bytes !== undefined && node.memory_total_bytes > 0);
  const total = measured.reduce((sum, node) => sum + node.memory_total_bytes, 0);
  const used = measured.reduce((sum, node) => sum + (node.memory_used_bytes ?? 0), 0);
  return {
    at: status.measured_at_ms || Date.now(),
    cpu: mean(nodes.map((node) => node.cpu_percent)),
    memory: total ? (used / total) * 100 : null,
    gpu: mean(nodes.flatMap((node) => node.gpus.map((gpu) => gpu.utilization_percent))),
  };
}
