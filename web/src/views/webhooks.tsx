import { useState } from "preact/hooks";
import { get, post, Problem, remove } from "../api";
import { words } from "../types";
import {
  age,
  Button,
  Checkbox,
  Confirm,
  Dialog,
  duration,
  Empty,
  Link,
  Loading,
  moment,
  Note,
  PageHead,
  ProblemBanner,
  Select,
  StatusBadge,
  Table,
  Tag,
  TextField,
  toast,
  useLoad,
} from "../ui";

interface Webhook {
  webhook_id: string;
  url: string;
  events: string[];
  format: string;
  filter?: { task_id_prefix: string; roles: string[]; statuses: string[]; include_parts: boolean } | null;
  created_at_ms: number;
  active: boolean;
  disabled_reason: string;
  dead_letters: number;
  last_error: string;
  consumer: string;
}

interface Delivery {
  event_id: string;
  type: string;
  execution_id: string;
  attempt: number;
  status: string;
  http_status: number;
  error: string;
  at_ms: number;
  duration_ms: number;
  next_at_ms: number;
}

const EVENTS = ["execution.finished", "approval.requested", "approval.resolved", "execution.started"] as const;
const FORMATS = [
  ["JSON", "JSON, for programs"],
  ["SLACK", "Slack, Mattermost"],
  ["DISCORD", "Discord"],
  ["TELEGRAM", "Telegram"],
] as const;

const format = (name: string): string => words(name.replace("WEBHOOK_FORMAT_", ""));
const outcome = (name: string): string => name.replace("DELIVERY_STATUS_", "");

/** Webhooks: who is told of what happens. */
export function WebhooksView() {
  const found = useLoad<{ webhooks: Webhook[] }>((signal) => get("/api/webhooks", {}, signal), "webhooks", 10_000);
  const [adding, setAdding] = useState(false);
  const [leaving, setLeaving] = useState<Webhook>();
  const [secret, setSecret] = useState("");
  const webhooks = found.value?.webhooks;
  return (
    <>
      <PageHead title="Webhooks" lead="Servers and chat channels that are told when an execution ends or waits for somebody.">
        <Button kind="primary" onClick={() => setAdding(true)}>
          Add a webhook
        </Button>
      </PageHead>
      <div class="stack">
        <ProblemBanner problem={found.problem} retry={found.reload} />
        {!webhooks && !found.problem && <Loading what="Looking for webhooks" />}
        {webhooks && webhooks.length === 0 && <Empty title="No webhooks yet." />}
        {webhooks?.map((one) => (
          <WebhookCard key={one.webhook_id} webhook={one} onChange={found.reload} onRemove={() => setLeaving(one)} />
        ))}
      </div>
      {adding && (
        <AddDialog
          onClose={() => setAdding(false)}
          onDone={(made) => {
            found.reload();
            if (made) setSecret(made);
            else toast("This webhook was there already.");
          }}
        />
      )}
      {secret && (
        <Dialog title="The webhook's secret" onClose={() => setSecret("")} actions={<Button onClick={() => setSecret("")}>I have it</Button>}>
          <p>Messages are signed with it. It is told here once, and nowhere else.</p>
          <pre class="code-box" tabIndex={0}>
            <code>{secret}</code>
          </pre>
        </Dialog>
      )}
      {leaving && (
        <Confirm
          title="Remove this webhook?"
          yes="Remove it"
          onClose={() => setLeaving(undefined)}
          onYes={async () => {
            await remove(`/api/webhooks/${encodeURIComponent(leaving.webhook_id)}`);
            found.reload();
          }}
        >
          <p class="prose-text">{leaving.url}</p>
          <p class="muted">Pending deliveries are dropped.</p>
        </Confirm>
      )}
    </>
  );
}

function WebhookCard({ webhook, onChange, onRemove }: { webhook: Webhook; onChange: () => void; onRemove: () => void }) {
  const [open, setOpen] = useState(false);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  const [tested, setTested] = useState<Delivery>();

  async function test(): Promise<void> {
    setBusy(true);
    setProblem(undefined);
    try {
      const answer = await post<{ delivery?: Delivery; enabled: boolean }>(`/api/webhooks/${encodeURIComponent(webhook.webhook_id)}/test`);
      setTested(answer.delivery);
      if (answer.enabled) toast("It had been disabled and is told of events again.");
      onChange();
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  }

  return (
    <section class="card stack" aria-label={`Webhook ${webhook.webhook_id}`}>
      <div class="row-spread">
        <h2 class="prose-text">{webhook.url}</h2>
        <div class="row">
          <Button small busy={busy} onClick={() => void test()}>
            Send a test
          </Button>
          <Button small expanded={open} onClick={() => setOpen(!open)}>
            Deliveries
          </Button>
          <Button small kind="quiet" label={`Remove the webhook ${webhook.webhook_id}`} onClick={onRemove}>
            Remove
          </Button>
        </div>
      </div>
      <div class="row">
        <StatusBadge status="" tone={webhook.active ? "good" : "bad"} text={webhook.active ? "active" : "disabled"} />
        <Tag>{format(webhook.format)}</Tag>
        {webhook.events.map((event) => (
          <Tag key={event}>{event}</Tag>
        ))}
        {webhook.filter?.task_id_prefix && <Tag>tasks {webhook.filter.task_id_prefix}…</Tag>}
        {webhook.filter?.roles.map((role) => <Tag key={role}>{role}</Tag>)}
        <span class="muted small">
          {webhook.webhook_id}, since {age(webhook.created_at_ms)}
        </span>
      </div>
      {!webhook.active && webhook.disabled_reason && <Note tone="warn">{webhook.disabled_reason}</Note>}
      {webhook.dead_letters > 0 && (
        <Note tone="warn">
          {webhook.dead_letters} given up; the last one: {webhook.last_error || "no reason was kept"}
        </Note>
      )}
      <ProblemBanner problem={problem} />
      <div role="status">
        {tested && (
          <p>
            <StatusBadge status={outcome(tested.status)} tone={outcome(tested.status) === "DELIVERED" ? "good" : "bad"} /> The test took {duration(tested.duration_ms)}
            {tested.http_status ? `, HTTP ${tested.http_status}` : ""}
            {tested.error ? `: ${tested.error}` : "."}
          </p>
        )}
      </div>
      {open && <Deliveries id={webhook.webhook_id} />}
    </section>
  );
}

function Deliveries({ id }: { id: string }) {
  const found = useLoad<{ deliveries: Delivery[] }>((signal) => get(`/api/webhooks/${encodeURIComponent(id)}/deliveries`, {}, signal), id, 5000);
  const rows = found.value?.deliveries;
  return (
    <div class="stack">
      <ProblemBanner problem={found.problem} retry={found.reload} />
      {!rows && !found.problem && <Loading />}
      {rows && rows.length === 0 && <p class="muted">Nothing was sent yet.</p>}
      {rows && rows.length > 0 && (
        <Table
          caption="Deliveries"
          rows={rows}
          keyOf={(one) => `${one.event_id} ${one.attempt}`}
          columns={[
            { name: "When", cell: (one) => moment(one.at_ms) },
            { name: "Event", heading: true, cell: (one) => one.type },
            {
              name: "Status",
              cell: (one) => <StatusBadge status={outcome(one.status)} tone={{ DELIVERED: "good", RETRYING: "warn", DEAD: "bad" }[outcome(one.status)] as "good"} />,
            },
            { name: "HTTP", number: true, cell: (one) => one.http_status || "–" },
            { name: "Attempt", number: true, cell: (one) => one.attempt },
            { name: "Took", number: true, minor: true, cell: (one) => duration(one.duration_ms) },
            {
              name: "Execution",
              cell: (one) => (one.execution_id ? <Link href={`/executions/${encodeURIComponent(one.execution_id)}`}>{one.execution_id.slice(0, 8)}</Link> : "–"),
            },
            { name: "Error", cell: (one) => one.error || "–" },
          ]}
        />
      )}
    </div>
  );
}

function AddDialog({ onClose, onDone }: { onClose: () => void; onDone: (secret: string) => void }) {
  const [url, setUrl] = useState("");
  const [events, setEvents] = useState<readonly string[]>(EVENTS.slice(0, 3));
  const [kind, setKind] = useState("JSON");
  const [prefix, setPrefix] = useState("");
  const [parts, setParts] = useState(false);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  const wrong = (field: string): string | undefined =>
    problem instanceof Problem && problem.field === field ? problem.message + (problem.hint ? ` (${problem.hint})` : "") : undefined;

  async function go(): Promise<void> {
    setBusy(true);
    setProblem(undefined);
    try {
      const made = await post<{ secret: string }>("/api/webhooks", {
        url: url.trim(),
        events,
        format: `WEBHOOK_FORMAT_${kind}`,
        filter: { task_id_prefix: prefix.trim(), include_parts: parts },
      });
      onClose();
      onDone(made.secret);
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  }

  return (
    <Dialog
      title="Add a webhook"
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" busy={busy} disabled={!url.trim()} onClick={() => void go()}>
            Add
          </Button>
        </>
      }
    >
      <TextField label="URL" type="url" value={url} placeholder="https://…" onInput={setUrl} error={wrong("url")} required />
      <Select label="Format" value={kind} options={FORMATS} onInput={setKind} error={wrong("format")} />
      <fieldset class="stack-tight">
        <legend class="legend">Events</legend>
        {EVENTS.map((event) => (
          <Checkbox
            key={event}
            label={event}
            checked={events.includes(event)}
            onChange={(checked) => setEvents(checked ? [...events, event] : events.filter((one) => one !== event))}
          />
        ))}
      </fieldset>
      <TextField label="Tasks whose id begins with" value={prefix} placeholder="All" onInput={setPrefix} error={wrong("filter.task_id_prefix")} />
      <Checkbox label="Also parts of others: subtasks, nodes of workflows" checked={parts} onChange={setParts} />
      <ProblemBanner problem={problem} />
    </Dialog>
  );
}
