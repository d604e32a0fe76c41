import { useState } from "preact/hooks";
import { navigate } from "../router";
import { recentStories } from "../stories/calls";
import { NewStory } from "../stories/dialogs";
import { StoryView } from "../stories/story";
import { Button, Empty, Link, PageHead, TextField } from "../ui";

/** Stories: one by its id, and those opened here before. */
export function StoriesView({ story = "" }: { story?: string }) {
  return story ? <StoryView id={story} /> : <Stories />;
}

function Stories() {
  const [id, setId] = useState("");
  const [adding, setAdding] = useState(false);
  const recent = recentStories();
  const open = (to: string): void => navigate(`/stories/${encodeURIComponent(to)}`);
  return (
    <>
      <PageHead title="Stories" lead="What somebody wants, the tasks and decisions of it, and what was done for it.">
        <Button kind="primary" onClick={() => setAdding(true)}>
          Begin a story
        </Button>
      </PageHead>
      <div class="stack">
        <form
          class="search-row story-search"
          role="search"
          aria-label="Open a story"
          onSubmit={(event) => {
            event.preventDefault();
            if (id.trim()) open(id.trim());
          }}
        >
          <TextField label="Story id" value={id} onInput={setId} />
          <Button type="submit" disabled={!id.trim()}>
            Open
          </Button>
        </form>
        {recent.length === 0 ? (
          <Empty title="No story was opened here yet.">
            <p>Open one by its id, or begin one.</p>
          </Empty>
        ) : (
          <section class="card stack-tight" aria-label="Opened before">
            <h2 class="legend">Opened before</h2>
            <ul class="list-plain stack-tight">
              {recent.map((one) => (
                <li key={one.id}>
                  <Link href={`/stories/${encodeURIComponent(one.id)}`}>{one.title || one.id}</Link> <span class="muted small">{one.id}</span>
                </li>
              ))}
            </ul>
          </section>
        )}
      </div>
      {adding && <NewStory onClose={() => setAdding(false)} onDone={open} />}
    </>
  );
}
