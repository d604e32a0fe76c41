/** An execution: what it is about, what waits for a person, and everything that happened, as it happens. */

import { place, setQuery } from "../router";
import { Empty, Link, Loading, Note, PageHead, Tabs, type Tab } from "../ui";
import { visible } from "../visible";
import { AuditTab } from "./audit";
import { CandidatesTab } from "./candidates";
import { useExecution, type Following } from "./following";
import { Gate } from "./gate";
import { GraphTab, hasGraph } from "./graph-tab";
import { ExecutionHead } from "./head";
import { RatingCard } from "./rating";
import { RawTab } from "./raw";
import { Timeline } from "./timeline";
import type { ExecutionView } from "./view";

export function ExecutionPage({ id }: { id: string }) {
  const following = useExecution(id);
  const { view, state, detail } = following;
  if (state === "missing" || state === "refused")
    return (
      <>
        <PageHead title={state === "missing" ? "No such execution" : "The fleet refuses"} />
        <Empty title={state === "missing" ? "There is no execution with this id." : visible(detail) || "It cannot be watched."}>
          <p>
            <code>{visible(id)}</code>
          </p>
          <Link href="/executions">To the executions</Link>
        </Empty>
      </>
    );
  if (!view.task && !view.beheaded)
    return (
      <>
        <PageHead title="Execution" />
        <Connection following={following} />
        {state === "ended" ? <Empty title="Nothing of its log is left." /> : <Loading what="Reading the log" />}
      </>
    );
  const tabs = tabsOf(id, view);
  const chosen = place.value.query.get("tab") ?? (view.task?.workflow ? "graph" : "timeline");
  return (
    <div class="stack execution">
      <ExecutionHead id={id} following={following} />
      <Connection following={following} />
      {view.beheaded && (
        <Note tone="warn">The beginning of this log is not kept any more: what is shown began before it was read.</Note>
      )}
      <Gate id={id} view={view} />
      {view.ended && <RatingCard subject={id} />}
      <Tabs label="What happened" tabs={tabs} chosen={chosen} onChoose={(tab) => setQuery({ tab })} />
    </div>
  );
}

function tabsOf(id: string, view: ExecutionView): Tab[] {
  const timeline: Tab = {
    id: "timeline",
    title: <Counted name="Timeline" number={view.agents.size} />,
    body: () => <Timeline id={id} view={view} />,
  };
  const candidates: Tab = {
    id: "candidates",
    title: <Counted name="Candidates" number={view.candidates.size} />,
    body: () => <CandidatesTab id={id} view={view} />,
  };
  const graph: Tab = { id: "graph", title: "Graph", body: () => <GraphTab id={id} view={view} /> };
  return [
    ...(view.task?.workflow ? [graph] : []),
    timeline,
    ...(view.task?.workflow ? [] : [candidates]),
    ...(!view.task?.workflow && hasGraph(view) ? [graph] : []),
    { id: "audit", title: "Audit", body: () => <AuditTab id={id} view={view} /> },
    { id: "events", title: "Events", body: () => <RawTab view={view} /> },
  ];
}

function Counted({ name, number }: { name: string; number: number }) {
  return (
    <>
      {name} {number > 0 && <span class="tab-count">{number}</span>}
    </>
  );
}

/** Says where the connection stands, where that is not as it should be. */
function Connection({ following: { state, detail } }: { following: Following }) {
  if (state !== "reconnecting") return <div role="status" class="sr-only">{state === "live" ? "Connected" : ""}</div>;
  return (
    <div role="status">
      <Note tone="warn">
        <span>
          <strong>Reconnecting …</strong> What is shown is as of the last message.{" "}
          {detail && <span class="muted">{visible(detail)}</span>}
        </span>
      </Note>
    </div>
  );
}
