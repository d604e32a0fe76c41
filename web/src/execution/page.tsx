/** An execution: what it is about, what waits for a person, and everything that happened, as it happens. */

import { useEffect, useRef } from "preact/hooks";
import { get } from "../api";
import { serverNow } from "../clock";
import { navigate, place, setQuery } from "../router";
import type { ListExecutions } from "../types";
import { Empty, Link, Loading, Note, PageHead, ProblemBanner, Tabs, useLoad, type Tab } from "../ui";
import { visible } from "../visible";
import { AuditTab } from "./audit";
import { CandidatesTab } from "./candidates";
import { useExecution, type Following } from "./following";
import { Gate } from "./gate";
import { GraphTab, hasGraph } from "./graph-tab";
import { ExecutionHead } from "./head";
import { Outcome } from "./outcome";
import { RawTab } from "./raw";
import { Timeline } from "./timeline";
import type { ExecutionView } from "./view";

const EXECUTION_ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** An execution by its id, or the newest of a task by the task's. */
export function ExecutionPage({ id }: { id: string }) {
  return EXECUTION_ID.test(id) ? <Watched id={id} /> : <OfTask task={id} />;
}

function OfTask({ task }: { task: string }) {
  const { value, problem, reload } = useLoad((signal) => get<ListExecutions>("/api/executions", { task_id: task, page_size: 1 }, signal), task);
  const found = value?.executions[0]?.execution_id;
  useEffect(() => {
    if (found) navigate(`/executions/${found}${location.search}`, { replace: true });
  }, [found]);
  if (problem) return <ProblemBanner problem={problem} retry={reload} />;
  if (!value || found) return <Loading what="Looking for the task" />;
  return <Nothing title="Not found" words="No execution or task has this id." id={task} />;
}

function Nothing({ title, words, id }: { title: string; words: string; id: string }) {
  return (
    <>
      <PageHead title={title} />
      <Empty title={words}>
        <p>
          <code>{visible(id)}</code>
        </p>
        <Link href="/executions">To the executions</Link>
      </Empty>
    </>
  );
}

function Watched({ id }: { id: string }) {
  const opened = useRef(serverNow());
  const following = useExecution(id);
  const { view, state, detail } = following;
  // A task's id may look like an execution's.
  if (state === "missing") return <OfTask task={id} />;
  if (state === "refused") return <Nothing title="Not allowed" words={visible(detail) || "It cannot be watched."} id={id} />;
  if (!view.task && !view.beheaded)
    return (
      <>
        <PageHead title="Execution" />
        <Connection following={following} />
        {state === "ended" ? <Empty title="The log is gone." /> : <Loading what="Reading the log" />}
      </>
    );
  const tabs = tabsOf(id, view);
  // What is being watched does not change under the reader's eyes when it ends.
  const ended = view.ended && view.finishedAt < opened.current;
  const chosen = place.value.query.get("tab") ?? (view.task?.workflow ? "graph" : ended && view.candidates.size ? "candidates" : "timeline");
  return (
    <div class="stack execution">
      <ExecutionHead id={id} following={following} />
      <Connection following={following} />
      {view.beheaded && (
        <Note tone="warn">The beginning of this log is not kept any more: what is shown began before it was read.</Note>
      )}
      <Gate id={id} view={view} />
      {view.ended && <Outcome id={id} view={view} />}
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
