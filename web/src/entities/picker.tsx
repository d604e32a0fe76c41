import { useEffect, useId, useRef, useState } from "preact/hooks";
import { aborted, get, post } from "../api";
import { visible } from "../visible";
import { words, type Recollection } from "../types";
import { Button, firstLine, ProblemBanner, share, Tag } from "../ui";

/** Something that a person chose as relevant. */
export interface Entity {
  /** A name, a node of the graph (`story:S-1`), or the beginning of a memory; at most 200 characters. */
  readonly name: string;
  /** What is remembered, whole; empty for a name alone. */
  readonly text: string;
  /** Where it is remembered; empty or absent for a name alone. */
  readonly namespace?: string;
}

const MOST = 30;
const NAME_CHARS = 200;
const NODE = /^(case|story|task|decision|execution|commit|file):\S+$/;

interface Found {
  readonly memories: readonly Recollection[];
  readonly nodes: readonly string[];
}

async function find(query: string, namespaces: readonly string[], signal: AbortSignal): Promise<Found> {
  const asked = post<{ recollections: Recollection[] }>("/api/memories/recall", { query, namespaces, limit: 8 }, { signal });
  const around = NODE.test(query)
    ? get<{ nodes: string[] }>("/api/graph", { node: query, depth: 1, page_size: 50 }, signal)
    : Promise.resolve({ nodes: [] });
  const [remembered, graph] = await Promise.all([asked, around]);
  return { memories: remembered.recollections, nodes: graph.nodes.slice(0, 20) };
}

interface PickerProps {
  chosen: readonly Entity[];
  onChange: (chosen: readonly Entity[]) => void;
  namespaces?: readonly string[];
  hint?: string;
  /** What the choice was refused for. */
  problem?: string | undefined;
}

/** Searches memory and the graph, and lets a person choose what matters. */
export function EntityPicker({ chosen, onChange, namespaces = [], hint, problem: refused }: PickerProps) {
  const id = useId();
  const [query, setQuery] = useState("");
  const [found, setFound] = useState<Found>();
  const [problem, setProblem] = useState<unknown>();
  const [busy, setBusy] = useState(false);
  const asking = useRef<AbortController>(undefined);
  useEffect(() => () => asking.current?.abort(), []);

  async function search(): Promise<void> {
    const text = query.trim();
    if (!text) return;
    asking.current?.abort();
    const mine = new AbortController();
    asking.current = mine;
    setBusy(true);
    setProblem(undefined);
    try {
      setFound(await find(text, namespaces, mine.signal));
    } catch (error) {
      if (!aborted(error)) setProblem(error);
    } finally {
      if (asking.current === mine) setBusy(false);
    }
  }

  function toggle(entity: Entity): void {
    const without = chosen.filter((one) => one.name !== entity.name);
    onChange(without.length < chosen.length ? without : [...chosen, entity].slice(0, MOST));
  }

  const names = new Set(chosen.map((one) => one.name));
  const typed = query.trim().slice(0, NAME_CHARS);
  return (
    <fieldset class="stack-tight entities">
      <legend class="legend">Entities from memory</legend>
      {chosen.length > 0 && (
        <ul class="chips" aria-label="Chosen">
          {chosen.map((one) => (
            <li key={one.name} class="chip">
              <span class="chip-text">{visible(firstLine(one.name, 80))}</span>
              <button type="button" class="chip-remove" aria-label={`Remove ${firstLine(one.name, 80)}`} onClick={() => toggle(one)}>
                <span aria-hidden="true">✕</span>
              </button>
            </li>
          ))}
        </ul>
      )}
      <div class="search-row">
        <label class="sr-only" for={id}>
          Search memory
        </label>
        <input
          id={id}
          class="input"
          type="search"
          placeholder="Words, or a node such as story:S-1"
          value={query}
          autocomplete="off"
          aria-describedby={`${id}-hint`}
          onInput={(event) => setQuery(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter") return;
            event.preventDefault();
            void search();
          }}
        />
        <Button busy={busy} onClick={() => void search()}>
          Search
        </Button>
        <Button disabled={!typed || names.has(typed)} onClick={() => toggle({ name: typed, text: "" })}>
          Add as typed
        </Button>
      </div>
      <p class="hint" id={`${id}-hint`}>
        {hint ?? `What is chosen goes to the agents with the task. At most ${MOST}.`}
      </p>
      {refused && <p class="field-error">{refused}</p>}
      <ProblemBanner problem={problem} />
      <div role="status" class="stack-tight">
        {found && !found.memories.length && !found.nodes.length && <p class="muted">No matches.</p>}
        {found && (found.memories.length > 0 || found.nodes.length > 0) && (
          <ul class="list-plain choices" aria-label="Found">
            {found.memories.map(({ memory, score }) =>
              memory ? (
                <Choice
                  key={memory.memory_id}
                  checked={names.has(memory.text.slice(0, NAME_CHARS))}
                  onChange={() => toggle({ name: memory.text.slice(0, NAME_CHARS), text: memory.text, namespace: memory.namespace })}
                  text={memory.text}
                  about={[memory.namespace, words(memory.kind), `fits ${share(score)}`]}
                />
              ) : null,
            )}
            {found.nodes.map((node) => (
              <Choice key={node} checked={names.has(node)} onChange={() => toggle({ name: node.slice(0, NAME_CHARS), text: "" })} text={node} about={["graph"]} />
            ))}
          </ul>
        )}
      </div>
    </fieldset>
  );
}

interface ChoiceProps {
  checked: boolean;
  onChange: () => void;
  text: string;
  about: readonly string[];
}

function Choice({ checked, onChange, text, about }: ChoiceProps) {
  const id = useId();
  return (
    <li class="choice">
      <input id={id} type="checkbox" checked={checked} onChange={onChange} />
      <label for={id} class="prose-text">
        {visible(firstLine(text, 240))}
      </label>
      <span class="row choice-about">
        {about.map((one) => (
          <Tag key={one}>{one}</Tag>
        ))}
      </span>
    </li>
  );
}
