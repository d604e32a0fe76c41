import { useState } from "preact/hooks";
import { post } from "../api";
import { bare, words } from "../types";
import { age, Button, Empty, Link, Loading, PageHead, ProblemBanner, StatusBadge, Table, Tabs, Tag, useLoad } from "../ui";
import { openStory, PHASES, placeOf, type Opened, type StoryContext } from "./calls";
import { NewDecision, NewTask, Transition } from "./dialogs";

type Open = "task" | "decision" | "phase" | undefined;

/** One story: where it stands, what is to be done, what was decided, what it hangs together with. */
export function StoryView({ id }: { id: string }) {
  const found = useLoad<Opened>((signal) => openStory(id, signal), id);
  const [open, setOpen] = useState<Open>();
  const [tab, setTab] = useState("tasks");
  const session = found.value?.session;
  const story = session?.story;
  if (!session || !story) {
    return (
      <>
        <PageHead title={`Story ${id}`} />
        {found.problem ? <ProblemBanner problem={found.problem} retry={found.reload} /> : <Loading what="Opening the story" />}
      </>
    );
  }
  const phase = bare(story.phase);
  const part = { story: story.story_id, version: session.version, onClose: () => setOpen(undefined), onDone: found.reload };
  return (
    <>
      <PageHead title={story.title || story.story_id} lead={`${story.story_id}${story.case_id ? ` of case ${story.case_id}` : ""}, changed ${age(story.updated_at_ms)}, version ${session.version}`}>
        <Button onClick={() => setOpen("phase")}>Move to a phase</Button>
        <Button onClick={() => setOpen("task")}>Add a task</Button>
        <Button onClick={() => setOpen("decision")}>Add a decision</Button>
      </PageHead>
      <div class="stack">
        <ol class="phases" aria-label="Phases">
          {PHASES.map((one) => (
            <li key={one} class={one === phase ? "phase phase-here" : "phase"} aria-current={one === phase ? "step" : undefined}>
              {words(one)}
            </li>
          ))}
        </ol>
        {(story.description || story.acceptance_criteria.length > 0) && (
          <section class="card stack-tight" aria-label="Description">
            {story.description && <p class="prose-text">{story.description}</p>}
            {story.acceptance_criteria.length > 0 && (
              <>
                <h2 class="legend">Done when</h2>
                <ul>
                  {story.acceptance_criteria.map((one, index) => (
                    <li key={index}>{one}</li>
                  ))}
                </ul>
              </>
            )}
          </section>
        )}
        <Tabs
          label="Of this story"
          chosen={tab}
          onChoose={setTab}
          tabs={[
            { id: "tasks", title: `Tasks (${session.open_tasks.length})`, body: () => <Tasks opened={found.value as Opened} /> },
            { id: "decisions", title: `Decisions (${session.decisions.length})`, body: () => <Decisions opened={found.value as Opened} /> },
            { id: "work", title: `Work (${session.work.length})`, body: () => <Work opened={found.value as Opened} /> },
            { id: "relations", title: "Relations", body: () => <Relations opened={found.value as Opened} /> },
            { id: "context", title: "Context", body: () => <ContextBlocks story={story.story_id} /> },
          ]}
        />
      </div>
      {open === "task" && <NewTask {...part} />}
      {open === "decision" && <NewDecision {...part} />}
      {open === "phase" && <Transition {...part} phase={phase} />}
    </>
  );
}

function Tasks({ opened: { session } }: { opened: Opened }) {
  if (!session.open_tasks.length) return <Empty title="No open tasks." />;
  return (
    <div class="stack">
      <Table
        caption="Open tasks"
        rows={session.open_tasks}
        keyOf={(task) => task.task_id}
        columns={[
          { name: "Task", heading: true, grow: true, cell: (task) => task.title || task.task_id },
          { name: "Id", cell: (task) => <code>{task.task_id}</code> },
          { name: "Role", cell: (task) => bare(task.role).replace("UNSPECIFIED", "–") },
          { name: "State", cell: (task) => <StatusBadge status={task.state} tone={bare(task.state) === "IN_PROGRESS" ? "live" : "calm"} /> },
          { name: "After", cell: (task) => task.depends_on.join(", ") || "–" },
          { name: "Can begin", cell: (task) => (session.ready.includes(task.task_id) ? "yes" : "not yet") },
        ]}
      />
      {session.next_steps.length > 0 && (
        <section class="stack-tight" aria-label="What comes next">
          <h2 class="legend">What comes next</h2>
          <ul>
            {session.next_steps.map((one, index) => (
              <li key={index}>{one}</li>
            ))}
          </ul>
        </section>
      )}
    </div>
  );
}

function Decisions({ opened: { session } }: { opened: Opened }) {
  if (!session.decisions.length) return <Empty title="No decisions yet." />;
  return (
    <ul class="list-plain stack">
      {session.decisions.map((one) => (
        <li key={one.decision_id} class="card stack-tight">
          <div class="row">
            <h2>{one.title}</h2>
            <StatusBadge status={one.state} />
            <Tag>{one.decision_id}</Tag>
          </div>
          {one.rationale && <p class="prose-text">{one.rationale}</p>}
          {one.alternatives.length > 0 && <p class="muted">Not chosen: {one.alternatives.join("; ")}</p>}
          <p class="muted small">
            {one.decided_by || "somebody"}, {age(one.created_at_ms)}
            {one.supersedes ? `, in place of ${one.supersedes}` : ""}
          </p>
        </li>
      ))}
    </ul>
  );
}

function Work({ opened: { session } }: { opened: Opened }) {
  if (!session.work.length) return <Empty title="No executions yet." />;
  return (
    <Table
      caption="Executions"
      rows={session.work}
      keyOf={(one) => one.execution_id}
      columns={[
        { name: "Execution", heading: true, cell: (one) => <Link href={`/executions/${encodeURIComponent(one.execution_id)}`}>{one.execution_id.slice(0, 8)}</Link> },
        { name: "Task", cell: (one) => one.task_id },
        { name: "Status", cell: (one) => <StatusBadge status={one.status.toUpperCase()} /> },
        { name: "What was done", grow: true, cell: (one) => <span class="prose-text">{one.summary}</span> },
        { name: "Ended", cell: (one) => age(one.ended_at_ms) },
      ]}
    />
  );
}

function Node({ name }: { name: string }) {
  const to = placeOf(name);
  return to ? <Link href={to}>{name}</Link> : <>{name}</>;
}

function Relations({ opened: { graph } }: { opened: Opened }) {
  if (!graph.relations.length) return <Empty title="No relations." />;
  return (
    <div class="stack">
      {graph.truncated && <p class="muted">There is more than is shown here.</p>}
      <Table
        caption="Relations"
        rows={graph.relations}
        keyOf={(one) => `${one.source} ${one.kind} ${one.target}`}
        columns={[
          { name: "From", heading: true, cell: (one) => <Node name={one.source} /> },
          { name: "Says", cell: (one) => words(one.kind) },
          { name: "To", cell: (one) => <Node name={one.target} /> },
        ]}
      />
    </div>
  );
}

function ContextBlocks({ story }: { story: string }) {
  const found = useLoad<StoryContext>((signal) => post("/api/context", { story_id: story }, { signal }), story);
  if (found.problem) return <ProblemBanner problem={found.problem} retry={found.reload} />;
  if (!found.value) return <Loading what="Gathering the context" />;
  const { blocks, token_count, version_hash, omitted } = found.value;
  if (!blocks.length) return <Empty title="The context is empty." />;
  return (
    <div class="stack">
      <p class="muted">
        What an agent would be told: about {token_count} tokens, version <code>{version_hash.slice(0, 12)}</code>.
        {omitted.length > 0 && ` Left out: ${omitted.join(", ")}.`}
      </p>
      {blocks.map((block, index) => (
        <section key={index} class="card stack-tight" aria-label={block.title}>
          <div class="row">
            <h2>{block.title}</h2>
            <Tag>{block.kind}</Tag>
            <span class="muted small">{block.tokens} tokens</span>
          </div>
          <p class="prose-text">{block.text}</p>
        </section>
      ))}
    </div>
  );
}
