/** The log itself: every event as it is stored. */

import { useMemo, useState } from "preact/hooks";
import { clock, count, Button, Empty, Select, toast } from "../ui";
import { visible } from "../visible";
import type { StoredEvent } from "./events";
import { Fold, LongText } from "./fold";
import type { ExecutionView } from "./view";

const AT_ONCE = 100;

export function RawTab({ view }: { view: ExecutionView }) {
  const [kind, setKind] = useState("");
  const [agent, setAgent] = useState("");
  const [shown, setShown] = useState(AT_ONCE);
  const kinds = useMemo(() => [...new Set(view.events.map((event) => event.type))].sort(), [view.revision]);
  const agents = useMemo(() => [...new Set(view.events.map((event) => event.agent_id))].sort(), [view.revision]);
  const found = useMemo(
    () => view.events.filter((one) => (!kind || one.type === kind) && (!agent || one.agent_id === agent)).reverse(),
    [view.revision, kind, agent],
  );
  return (
    <div class="stack">
      <div class="fields">
        <Select
          label="Kind"
          value={kind}
          onInput={setKind}
          options={[["", "every kind"], ...kinds.map((one) => [one, one.replaceAll("_", " ")] as const)]}
        />
        <Select
          label="Agent"
          value={agent}
          onInput={setAgent}
          options={[["", "everybody"], ...agents.map((one) => [one, visible(speaker(one))] as const)]}
        />
      </div>
      <p class="muted small">
        {count(found.length)} events, the newest first.
        {view.forgotten > 0 && ` The first ${count(view.forgotten)} are no longer kept here; the log has them.`}
      </p>
      {!found.length && <Empty title="No such event" />}
      <ol class="list-plain raw-list">
        {found.slice(0, shown).map((event) => (
          <li key={event.sequence}>
            <Fold
              head={
                <span class="raw-head">
                  <span class="muted">{event.sequence}</span>
                  <span class="muted">{clock(event.at_ms)}</span>
                  <strong>{visible(event.type)}</strong>
                  <span>{visible(speaker(event.agent_id))}</span>
                </span>
              }
              body={() => <Payload event={event} />}
            />
          </li>
        ))}
      </ol>
      {found.length > shown && (
        <Button onClick={() => setShown(shown + AT_ONCE * 5)}>Show more of {count(found.length)}</Button>
      )}
    </div>
  );
}

function speaker(agentId: string): string {
  return agentId === "_" ? "the execution" : agentId === "~" ? "callers" : agentId;
}

function Payload({ event }: { event: StoredEvent }) {
  const text = JSON.stringify(event, null, 2);
  return (
    <>
      <Button
        small
        onClick={() =>
          void navigator.clipboard.writeText(text).then(
            () => toast("Copied."),
            () => toast("The browser does not let the page copy.", { bad: true }),
          )
        }
      >
        Copy
      </Button>
      <LongText text={text} most={6_000} mono />
    </>
  );
}
