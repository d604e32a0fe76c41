/** Workflows: those there are, one of them, and one that is being written. */

import { useEffect, useState } from "preact/hooks";
import { visible } from "../visible";
import { drawn } from "../graph/model";
import { GraphPicture } from "../graph/picture";
import { place } from "../router";
import { Button, Empty, firstLine, Link, Loading, Note, PageHead, ProblemBanner, Table, Tag, toast, useLoad } from "../ui";
import { Fold, LongText } from "../execution/fold";
import { list, named, type Summary, type Validation } from "./calls";
import { Editor, SKETCH } from "./editor";
import { RunForm } from "./run-form";

/** The name under which one is written; no workflow of the fleet is shown under it. */
const NEW = "new";

export function WorkflowsPage({ name = "" }: { name?: string }) {
  if (!name) return <Workflows />;
  return name === NEW ? <NewWorkflow /> : <OneWorkflow name={name} />;
}

function Workflows() {
  const { value, problem, loading, reload } = useLoad(list, "workflows");
  return (
    <div class="stack">
      <PageHead title="Workflows" lead="Nodes, and what comes after what. A run is an execution like any other.">
        <Link class="button button-primary" href="/workflows/new">
          Write one
        </Link>
      </PageHead>
      <ProblemBanner problem={problem} retry={reload} />
      {loading && !value && <Loading what="Reading the workflows" />}
      {value?.broken.map((fault) => (
        <Note key={fault} tone="warn">
          <span class="prose-text">{visible(fault)}</span>
        </Note>
      ))}
      {value && !value.workflows.length && <Empty title="The fleet knows no workflow" />}
      {value && value.workflows.length > 0 && (
        <Table
          caption="Workflows"
          rows={value.workflows}
          keyOf={(one) => one.name}
          columns={[
            {
              name: "Name",
              heading: true,
              cell: (one: Summary) => (
                <Link href={`/workflows/${encodeURIComponent(one.name)}`}>{visible(one.name)}</Link>
              ),
            },
            { name: "What it does", grow: true, cell: (one) => visible(firstLine(one.description, 200)) },
            { name: "Inputs", minor: true, cell: (one) => one.inputs.map((input) => visible(input.name)).join(", ") || "–" },
            { name: "Nodes", number: true, cell: (one) => one.nodes },
            { name: "", minor: true, cell: (one) => one.built_in && <Tag>comes with the fleet</Tag> },
          ]}
        />
      )}
    </div>
  );
}

function OneWorkflow({ name }: { name: string }) {
  const { value, problem, reload } = useLoad((signal) => named(name, signal), name);
  if (!value)
    return (
      <div class="stack">
        <PageHead title={visible(name)} />
        {problem ? <ProblemBanner problem={problem} retry={reload} /> : <Loading what="Reading the workflow" />}
      </div>
    );
  return (
    <div class="stack">
      <PageHead title={visible(name)} lead={visible(value.summary?.description ?? "")}>
        <Link class="button" href={`/workflows/new?from=${encodeURIComponent(name)}`}>
          Edit a copy
        </Link>
      </PageHead>
      <div class="workflow-columns">
        <div class="stack">
          {value.graph && <GraphPicture graph={drawn(name, value.graph)} />}
          <Fold head="The file" body={() => <LongText text={value.definition} most={20_000} mono />} />
          <Fold head="As Mermaid" body={() => <LongText text={value.mermaid} most={20_000} mono />} />
        </div>
        <RunForm key={name} name={name} inputs={value.summary?.inputs ?? []} />
      </div>
    </div>
  );
}

const DRAFT = "fleet-workflow-draft";

function stored(): string {
  try {
    return sessionStorage.getItem(DRAFT) ?? "";
  } catch {
    return "";
  }
}

function NewWorkflow() {
  const from = place.value.query.get("from") ?? "";
  const template = useLoad(async (signal) => (from ? (await named(from, signal)).definition : ""), from);
  const [text, setText] = useState(from ? "" : stored() || SKETCH);
  const [checked, setChecked] = useState<Validation>();
  useEffect(() => {
    if (template.value) setText(template.value);
  }, [template.value]);
  useEffect(() => {
    if (!text) return;
    try {
      sessionStorage.setItem(DRAFT, text);
    } catch {
      // A browser that keeps nothing loses the draft on a reload; all else works.
    }
  }, [text]);
  const sound = checked && !checked.faults.length;
  return (
    <div class="stack">
      <PageHead title="A workflow of your own" lead="It is checked while you write, and can be run without being stored.">
        <Button
          onClick={() =>
            void navigator.clipboard.writeText(text).then(
              () => toast("Copied."),
              () => toast("The browser does not let the page copy.", { bad: true }),
            )
          }
        >
          Copy the text
        </Button>
      </PageHead>
      <ProblemBanner problem={template.problem} retry={template.reload} />
      <div class="workflow-columns">
        <Editor text={text} onText={setText} onChecked={setChecked} />
        <div class="stack">
          {checked?.graph && sound && <GraphPicture graph={drawn(checked.summary?.name ?? "workflow", checked.graph)} />}
          {sound && checked.summary ? (
            <RunForm key={JSON.stringify(checked.summary.inputs)} definition={text} inputs={checked.summary.inputs} />
          ) : (
            <p class="muted">Its picture and its inputs appear here once nothing is wrong with it.</p>
          )}
        </div>
      </div>
    </div>
  );
}
