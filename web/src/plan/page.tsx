/** Plans that a person decides about: the goal, the proposal at the gate, and what came of it. */

import { useState } from "preact/hooks";
import { visible } from "../visible";
import { EntityPicker, type Entity } from "../entities/picker";
import { navigate } from "../router";
import { age, Button, Empty, firstLine, Link, Loading, PageHead, ProblemBanner, StatusBadge, Table, TextArea, useLoad } from "../ui";
import { begin, sessions, type PlanSession } from "./calls";
import { SessionView } from "./session";

export function PlanPage({ session = "" }: { session?: string }) {
  return session ? <SessionView id={session} /> : <Plans />;
}

function Plans() {
  const [pages, setPages] = useState<readonly string[]>([]);
  const token = pages.at(-1) ?? "";
  const { value, problem, loading, reload } = useLoad((signal) => sessions(token, signal), token, 10_000);
  return (
    <div class="stack">
      <PageHead title="Plans" lead="Memory first, then a proposal; nothing with an effect runs before you decide." />
      <NewPlan />
      <h2>Sessions</h2>
      <ProblemBanner problem={problem} retry={reload} />
      {loading && !value && <Loading what="Reading the sessions" />}
      {value && !value.sessions.length && <Empty title="No plans yet" />}
      {value && value.sessions.length > 0 && (
        <Table
          caption="Plan sessions"
          rows={value.sessions}
          keyOf={(one) => one.session_id}
          columns={[
            {
              name: "Goal",
              heading: true,
              grow: true,
              cell: (one: PlanSession) => (
                <Link href={`/plans/${encodeURIComponent(one.session_id)}`}>
                  {visible(firstLine(one.goal, 140)) || one.session_id}
                </Link>
              ),
            },
            { name: "Status", cell: (one) => <span><StatusBadge status={one.status} /></span> },
            { name: "Proposals", number: true, minor: true, cell: (one) => one.proposals },
            { name: "Changed", cell: (one) => <span class="nowrap">{age(one.updated_at_ms)}</span> },
          ]}
        />
      )}
      <div class="row">
        {pages.length > 0 && <Button onClick={() => setPages(pages.slice(0, -1))}>Newer</Button>}
        {value?.next_page_token && <Button onClick={() => setPages([...pages, value.next_page_token])}>Older</Button>}
      </div>
    </div>
  );
}

function NewPlan() {
  const [goal, setGoal] = useState("");
  const [entities, setEntities] = useState<readonly Entity[]>([]);
  const [missing, setMissing] = useState(false);
  return (
    <form
      class="card stack"
      aria-label="A new plan"
      onSubmit={(event) => {
        event.preventDefault();
        if (!goal.trim()) {
          setMissing(true);
          return;
        }
        const names = entities.map((entity) => entity.name);
        navigate(`/plans/${begin(goal.trim(), names)}`);
      }}
    >
      <TextArea
        label="Goal"
        rows={3}
        value={goal}
        onInput={(value) => {
          setGoal(value);
          setMissing(false);
        }}
        error={missing ? "Say what is to be reached." : undefined}
      />
      <EntityPicker
        chosen={entities}
        onChange={setEntities}
        hint="What matters for it: a module, a service, a decision. What memory does not know of them is researched."
      />
      <div>
        <Button kind="primary" type="submit">
          Make a plan
        </Button>
      </div>
    </form>
  );
}
