import { useEffect, useState } from "preact/hooks";
import { post, Problem } from "../api";
import { visible } from "../visible";
import { lines } from "../submission/form";
import { words, type Recollection } from "../types";
import {
  age,
  Button,
  Checkbox,
  Confirm,
  Dialog,
  Empty,
  Loading,
  moment,
  PageHead,
  ProblemBanner,
  share,
  Table,
  TextArea,
  TextField,
  toast,
} from "../ui";

const KINDS = [
  ["FACT", "Facts"],
  ["INTERACTION", "Turns of chats"],
  ["OUTCOME", "Outcomes"],
] as const;

type Open = { kind: "add" } | { kind: "forget"; id: string; text: string } | { kind: "clear" };

/** What is remembered: found, added, forgotten. */
export function MemoryView() {
  const [query, setQuery] = useState("");
  const [namespaces, setNamespaces] = useState("");
  const [kinds, setKinds] = useState<readonly string[]>([]);
  const [found, setFound] = useState<readonly Recollection[]>();
  const [asked, setAsked] = useState(false);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  const [open, setOpen] = useState<Open>();
  const close = (): void => setOpen(undefined);
  const where = lines(namespaces.replaceAll(",", "\n"));
  const scope = { namespaces: where, kinds: kinds.map((kind) => `MEMORY_KIND_${kind}`) };
  const wrong = (field: string): string | undefined => (problem instanceof Problem && problem.field.startsWith(field) ? problem.message : undefined);

  // Without a question, what was remembered last.
  async function search(): Promise<void> {
    setBusy(true);
    setProblem(undefined);
    try {
      setFound((await post<{ recollections: Recollection[] }>("/api/memories/recall", { query: query.trim(), ...scope, limit: 50 })).recollections);
      setAsked(Boolean(query.trim()));
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  }

  useEffect(() => void search(), [kinds]);

  async function forget(body: Record<string, unknown>): Promise<void> {
    const { removed } = await post<{ removed: number }>("/api/memories/clear", body);
    toast(removed === 1 ? "1 memory forgotten." : `${removed} memories forgotten.`);
    await search();
  }

  return (
    <>
      <PageHead title="Memory" lead="What agents and chats remember beyond one execution. Notes that may be wrong, never instructions.">
        <Button onClick={() => setOpen({ kind: "add" })}>Add a fact</Button>
        <Button kind="quiet" onClick={() => setOpen({ kind: "clear" })}>
          Forget …
        </Button>
      </PageHead>
      <form
        class="card stack"
        role="search"
        aria-label="Memories"
        onSubmit={(event) => {
          event.preventDefault();
          void search();
        }}
      >
        <div class="fields fields-broad">
          <TextField label="Search memory" type="search" value={query} onInput={setQuery} error={wrong("query")} placeholder="How are tests run here?" />
          <TextField
            label="Namespaces"
            value={namespaces}
            onInput={setNamespaces}
            error={wrong("namespaces")}
            placeholder="Everywhere"
            hint="fleet, agent:<id>, repository:<name>; several with commas."
          />
        </div>
        <fieldset>
          <legend class="sr-only">Kinds</legend>
          <div class="checks-row">
            {KINDS.map(([kind, name]) => (
              <Checkbox
                key={kind}
                label={name}
                checked={kinds.includes(kind)}
                onChange={(checked) => setKinds(checked ? [...kinds, kind] : kinds.filter((one) => one !== kind))}
              />
            ))}
            <span class="muted small">None chosen: every kind.</span>
          </div>
        </fieldset>
        <div>
          <Button kind="primary" type="submit" busy={busy}>
            {query.trim() ? "Search" : "Show the newest"}
          </Button>
        </div>
      </form>
      <div class="stack below" role="status">
        <ProblemBanner problem={problem} />
        {busy && !found && <Loading what="Recalling" />}
        {found && found.length === 0 && <Empty title={query.trim() ? "No matches." : "No memories yet."} />}
        {found && found.length > 0 && (
          <Table
            caption="Recollections"
            rows={found.filter((one) => one.memory)}
            keyOf={(one) => one.memory?.memory_id ?? ""}
            columns={[
              { name: "Memory", heading: true, grow: true, cell: (one) => <span class="prose-text">{visible(one.memory?.text ?? "")}</span> },
              { name: "Where", cell: (one) => <span class="namespace">{visible(one.memory?.namespace ?? "")}</span> },
              { name: "Kind", cell: (one) => words(one.memory?.kind) },
              { name: "From", minor: true, cell: (one) => <span class="winner">{one.memory?.source}</span> },
              {
                name: "About",
                minor: true,
                cell: (one) => <span class="small namespace">{visible(Object.entries(one.memory?.metadata ?? {}).map(([name, value]) => `${name}: ${value}`).join(", "))}</span>,
              },
              { name: "Since", cell: (one) => <span class="nowrap" title={moment(one.memory?.created_at_ms)}>{age(one.memory?.created_at_ms)}</span> },
              ...(asked ? [{ name: "Fits", number: true, cell: (one: Recollection) => share(one.score) }] : []),
              {
                name: "",
                cell: (one) => (
                  <Button
                    small
                    kind="quiet"
                    label={`Forget: ${one.memory?.text.slice(0, 60) ?? ""}`}
                    onClick={() => one.memory && setOpen({ kind: "forget", id: one.memory.memory_id, text: one.memory.text })}
                  >
                    Forget
                  </Button>
                ),
              },
            ]}
          />
        )}
      </div>
      {open?.kind === "add" && <AddDialog onClose={close} />}
      {open?.kind === "forget" && (
        <Confirm title="Forget this?" yes="Forget it" onClose={close} onYes={() => forget({ memory_ids: [open.id], everywhere: true })}>
          <p class="prose-text">{open.text}</p>
        </Confirm>
      )}
      {open?.kind === "clear" && (
        <Confirm
          title={where.length ? "Forget all of this?" : "Forget everything?"}
          yes="Forget it all"
          onClose={close}
          onYes={() => forget({ ...scope, everywhere: where.length === 0 })}
        >
          <p>
            All {kinds.length ? kinds.map((kind) => words(kind)).join(" and ") : ""} memories in{" "}
            <strong>{where.length ? where.join(", ") : "every namespace, the whole fleet's"}</strong> are gone then.
          </p>
          <p class="muted">The namespaces and kinds of the search decide what is meant.</p>
        </Confirm>
      )}
    </>
  );
}

function AddDialog({ onClose }: { onClose: () => void }) {
  const [namespace, setNamespace] = useState("fleet");
  const [text, setText] = useState("");
  const [about, setAbout] = useState("");
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<unknown>();
  const wrong = (field: string): string | undefined => (problem instanceof Problem && problem.field === field ? problem.message : undefined);

  async function go(): Promise<void> {
    setBusy(true);
    setProblem(undefined);
    const metadata = Object.fromEntries(
      lines(about).map((line) => {
        const [name = "", ...rest] = line.split("=");
        return [name.trim(), rest.join("=").trim()];
      }),
    );
    try {
      const { already_existed } = await post<{ already_existed: boolean }>("/api/memories/facts", { namespace: namespace.trim(), text: text.trim(), metadata });
      toast(already_existed ? "Already saved." : "Saved.");
      onClose();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  }

  return (
    <Dialog
      title="Add a fact"
      onClose={onClose}
      actions={
        <>
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" busy={busy} disabled={!text.trim()} onClick={() => void go()}>
            Remember it
          </Button>
        </>
      }
    >
      <TextArea label="Fact" rows={4} value={text} onInput={setText} error={wrong("text")} required hint="At most 4,000 characters; secrets in it are masked." />
      <TextField label="Namespace" value={namespace} onInput={setNamespace} error={wrong("namespace")} list={["fleet"]} hint="fleet, agent:<id> or repository:<name>." />
      <TextArea label="About, name=value, one a line" mono rows={2} value={about} onInput={setAbout} error={wrong("metadata")} />
      <ProblemBanner problem={problem} />
    </Dialog>
  );
}
