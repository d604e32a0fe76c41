import { useState } from "preact/hooks";
import { get } from "../api";
import { navigate, place, setQuery } from "../router";
import { PHASES, type ListStories, type StoryCard } from "../stories/calls";
import { NewStory } from "../stories/dialogs";
import { StoryView } from "../stories/story";
import { words } from "../types";
import {
  age,
  Button,
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
  useLoad,
  useNow,
  type Column,
} from "../ui";
import { visible } from "../visible";

const PAGE_SIZE = 50;
const EVERY_MS = 5000;
const PHASE_OPTIONS = [["", "Any"], ["open", "Not done"], ...PHASES.map((phase) => [phase, words(phase)] as const)] as const;

const COLUMNS = (now: number): Column<StoryCard>[] => [
  {
    name: "Story",
    grow: true,
    heading: true,
    cell: (row) => (
      <span class="execution-name">
        <Link href={`/stories/${encodeURIComponent(row.story_id)}`}>{visible(firstLine(row.title, 110)) || row.story_id}</Link>
        <span class="muted small execution-id">{row.story_id}</span>
      </span>
    ),
  },
  { name: "Phase", cell: (row) => <StatusBadge status="" tone={words(row.phase) === "done" ? "good" : "live"} text={words(row.phase)} /> },
  { name: "Case", minor: true, cell: (row) => row.case_id || "–" },
  { name: "Tasks", number: true, cell: (row) => (row.task_count ? `${row.open_task_count} of ${row.task_count} open` : "–") },
  { name: "Decisions", number: true, cell: (row) => row.decision_count || "–" },
  {
    name: "Changed",
    cell: (row) => (
      <time class="nowrap" dateTime={new Date(row.changed_at_ms).toISOString()} title={moment(row.changed_at_ms)}>
        {age(row.changed_at_ms, now)}
      </time>
    ),
  },
];

/** Stories: all of them, or one by its id. */
export function StoriesView({ story = "" }: { story?: string }) {
  return story ? <StoryView id={story} /> : <Stories />;
}

function Stories() {
  const { query } = place.value;
  const phase = query.get("phase") ?? "";
  const inCase = query.get("case") ?? "";
  const [adding, setAdding] = useState(false);
  const filter = `${phase}\n${inCase}`;
  const [pages, setPages] = useState<{ filter: string; tokens: readonly string[] }>({ filter, tokens: [] });
  const trail = pages.filter === filter ? pages.tokens : [];
  const token = trail.at(-1) ?? "";
  const phases = phase === "open" ? PHASES.filter((one) => one !== "DONE") : PHASES.filter((one) => one === phase);
  const found = useLoad<ListStories>(
    (signal) =>
      get("/api/stories", { page_size: PAGE_SIZE, case_id: inCase, phases: phases.map((one) => `PHASE_${one}`), page_token: token }, signal),
    `${filter}\n${token}`,
    EVERY_MS,
  );
  const now = useNow(10_000);
  const rows = found.value?.stories;
  const filtered = Boolean(phase || inCase);
  return (
    <>
      <PageHead title="Stories" lead="What somebody wants, the tasks and decisions of it, and what was done for it.">
        <Button kind="primary" onClick={() => setAdding(true)}>
          Begin a story
        </Button>
      </PageHead>
      <form class="filters" role="search" aria-label="Filter the stories" onSubmit={(event) => event.preventDefault()}>
        <Select label="Phase" value={phase} options={PHASE_OPTIONS} onInput={(value) => setQuery({ phase: value })} />
        <TextField label="Case" type="search" value={inCase} placeholder="Any" onInput={(value) => setQuery({ case: value.trim() })} />
        {filtered && (
          <Button kind="quiet" onClick={() => setQuery({ phase: undefined, case: undefined })}>
            Clear
          </Button>
        )}
      </form>
      <div class="stack">
        <ProblemBanner problem={found.problem} retry={found.reload} />
        {!rows && !found.problem && <Loading what="Looking for stories" />}
        {rows && rows.length === 0 && (
          <Empty title={filtered ? "No matches." : "No stories yet."}>
            <p>{filtered ? "Clear the filters to see all." : "A story holds what executions did for it, and tells the next ones."}</p>
          </Empty>
        )}
        {rows && rows.length > 0 && <Table caption="Stories" columns={COLUMNS(now)} rows={rows} keyOf={(row) => row.story_id} />}
        {(trail.length > 0 || found.value?.next_page_token) && (
          <nav class="row pages" aria-label="Pages">
            <Button small disabled={!trail.length} onClick={() => setPages({ filter, tokens: trail.slice(0, -1) })}>
              Newer
            </Button>
            <span class="muted small">Page {trail.length + 1}</span>
            <Button small disabled={!found.value?.next_page_token} onClick={() => setPages({ filter, tokens: [...trail, found.value?.next_page_token ?? ""] })}>
              Older
            </Button>
          </nav>
        )}
      </div>
      {adding && <NewStory onClose={() => setAdding(false)} onDone={(id: string) => navigate(`/stories/${encodeURIComponent(id)}`)} />}
    </>
  );
}
