// What the fleet stands on, part by part.
import { age, duration, share, size, StatusBadge, Table, Tag } from "../ui";
import type { Component, Endpoint, Host, Node, Replica, Storage } from "./calls";

function optional(value: number | undefined, format: (value: number) => string): string {
  return value === undefined || value === null ? "–" : format(value);
}

export function Components({ rows }: { rows: readonly Component[] }) {
  return (
    <Table
      caption="Parts"
      rows={rows}
      keyOf={(one) => one.name}
      columns={[
        { name: "Part", heading: true, cell: (one) => <span class="winner">{one.name}</span> },
        { name: "State", cell: (one) => <StatusBadge status={one.state} /> },
        { name: "Says", grow: true, cell: (one) => one.message || "–" },
        { name: "Version", minor: true, cell: (one) => one.version || "–" },
        { name: "Answered in", number: true, cell: (one) => duration(one.latency_ms) },
      ]}
    />
  );
}

export function Endpoints({ rows }: { rows: readonly Endpoint[] }) {
  return (
    <Table
      caption="Model endpoints"
      rows={rows}
      keyOf={(one) => `${one.url} ${one.model}`}
      columns={[
        { name: "Endpoint", heading: true, cell: (one) => <span class="winner">{one.url}</span> },
        { name: "State", cell: (one) => <StatusBadge status={one.state} /> },
        { name: "Model", cell: (one) => <span class="winner">{one.model || "–"}</span> },
        { name: "Profiles", minor: true, cell: (one) => one.profiles.map((profile) => <Tag key={profile}>{profile}</Tag>) },
        { name: "Ours under way", number: true, cell: (one) => one.in_flight },
        { name: "Running", number: true, cell: (one) => optional(one.running, String) },
        { name: "Waiting", number: true, cell: (one) => optional(one.waiting, String) },
        { name: "KV cache", number: true, cell: (one) => optional(one.kv_cache_usage, share) },
        { name: "Prefix hits", number: true, cell: (one) => optional(one.prefix_cache_hit_rate, share) },
        { name: "Latency", number: true, cell: (one) => duration(one.latency_ms || undefined) },
        { name: "Last fault", minor: true, cell: (one) => one.message || "–" },
      ]}
    />
  );
}

export function Hosts({ rows }: { rows: readonly Host[] }) {
  return (
    <Table
      caption="Actors"
      rows={rows}
      keyOf={(one) => `${one.replica} ${one.host_id}`}
      columns={[
        { name: "Actor", heading: true, cell: (one) => one.host_id },
        { name: "State", cell: (one) => <StatusBadge status={one.alive ? "UP" : "DOWN"} /> },
        { name: "At work", number: true, cell: (one) => `${one.running} / ${one.slots}` },
        { name: "Memory", number: true, cell: (one) => size(one.memory_bytes || undefined) },
        { name: "Since", cell: (one) => age(one.started_at_ms) },
        { name: "Orchestrator", minor: true, cell: (one) => <span class="winner">{one.replica}</span> },
        { name: "Machine", minor: true, cell: (one) => one.node_id.slice(0, 12) || "–" },
      ]}
    />
  );
}

function Meter({ name, percent, text }: { name: string; percent: number; text: string }) {
  return (
    <div class="stack-tight">
      <div class="row-spread small">
        <span>{name}</span>
        <span class="muted">{text}</span>
      </div>
      <div class="meter" role="meter" aria-label={name} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(percent)} aria-valuetext={text}>
        <div class="meter-part" style={{ width: `${Math.min(100, Math.max(0, percent))}%` }} />
      </div>
    </div>
  );
}

export function Nodes({ rows }: { rows: readonly Node[] }) {
  return (
    <div class="machines">
      {rows.map((node) => (
        <section key={node.node_id} class="card stack-tight" aria-label={`Machine ${node.name || node.node_id}`}>
          <div class="row-spread">
            <h3 class="winner">{node.name || node.node_id.slice(0, 12)}</h3>
            <StatusBadge status={node.alive ? "UP" : "DOWN"} />
          </div>
          {node.cpu_percent !== undefined ? (
            <Meter name={`CPU, ${node.cpus} processors`} percent={node.cpu_percent} text={`${Math.round(node.cpu_percent)} %`} />
          ) : (
            <p class="small muted">{node.cpus} processors, not measured</p>
          )}
          {node.memory_used_bytes !== undefined && node.memory_total_bytes > 0 && (
            <Meter
              name="Memory"
              percent={(node.memory_used_bytes / node.memory_total_bytes) * 100}
              text={`${size(node.memory_used_bytes)} of ${size(node.memory_total_bytes)}`}
            />
          )}
          {node.gpus.map((gpu) => (
            <div key={gpu.index} class="stack-tight">
              {gpu.utilization_percent !== undefined && (
                <Meter name={`GPU ${gpu.index}, ${gpu.name}`} percent={gpu.utilization_percent} text={`${Math.round(gpu.utilization_percent)} %`} />
              )}
              {gpu.memory_total_bytes > 0 && (
                <Meter
                  name={`GPU ${gpu.index} memory`}
                  percent={(gpu.memory_used_bytes / gpu.memory_total_bytes) * 100}
                  text={`${size(gpu.memory_used_bytes)} of ${size(gpu.memory_total_bytes)}`}
                />
              )}
            </div>
          ))}
          {node.gpus.length === 0 && <p class="small muted">{node.gpu_count ? `${node.gpu_count} GPUs, not measured` : "No GPU"}</p>}
        </section>
      ))}
    </div>
  );
}

export function Replicas({ rows }: { rows: readonly Replica[] }) {
  return (
    <Table
      caption="Orchestrators"
      cards={false}
      rows={rows}
      keyOf={(one) => one.name}
      columns={[
        { name: "Orchestrator", heading: true, cell: (one) => <span class="winner">{one.name}{one.answering ? " (this one)" : ""}</span> },
        { name: "Drives", number: true, cell: (one) => one.driven },
        { name: "Since", cell: (one) => age(one.started_at_ms) },
      ]}
    />
  );
}

export function Stores({ rows }: { rows: readonly Storage[] }) {
  return (
    <Table
      caption="Storage"
      cards={false}
      rows={rows}
      keyOf={(one) => one.name}
      columns={[
        { name: "Stream or bucket", heading: true, cell: (one) => <code>{one.name}</code> },
        { name: "Messages", number: true, cell: (one) => one.messages.toLocaleString("en") },
        { name: "Size", number: true, cell: (one) => size(one.bytes) },
        { name: "Limit", number: true, cell: (one) => (one.max_bytes ? size(one.max_bytes) : "–") },
      ]}
    />
  );
}
