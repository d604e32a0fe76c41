// Single keys that lead somewhere; `?` lists them. They can be turned off, for those whose speech or hand presses keys by chance.
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { navigate } from "./router";
import { Button, Checkbox, Dialog, toast } from "./ui";
import { waiting } from "./waiting";

const KEY = "fleet-shortcuts";

function stored(): boolean {
  try {
    return localStorage.getItem(KEY) !== "off";
  } catch {
    return true;
  }
}

const enabled = signal(stored());
const listed = signal(false);

function turn(on: boolean): void {
  enabled.value = on;
  try {
    if (on) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, "off");
  } catch {
    // Then it lasts until the page is left.
  }
}

/** Opens the decision that waits longest. */
export function openWaiting(): void {
  const path = waiting.value.find((one) => one !== location.pathname) ?? waiting.value[0];
  if (path) navigate(path);
  else toast("Nothing waits for you.");
}

function focus(selector: string): void {
  const found = document.querySelector<HTMLElement>(selector);
  found?.focus();
  found?.scrollIntoView({ block: "center" });
}

const SHORTCUTS: Readonly<Record<string, readonly [words: string, act: () => void]>> = {
  w: ["Open what waits for you", openWaiting],
  a: ["Go to Approve; Enter approves", () => focus(".approve")],
  e: ["Executions", () => navigate("/executions")],
  n: ["New task", () => navigate("/submit")],
  f: ["Fleet", () => navigate("/fleet")],
  "/": ["Search", () => focus("input[type=search]")],
};

/** Takes the keys of the whole page. */
export function useShortcuts(): void {
  useEffect(() => {
    function press(event: KeyboardEvent): void {
      const at = event.target;
      const writing = at instanceof HTMLElement && (at.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(at.tagName));
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (writing && !(at instanceof HTMLInputElement && at.type === "checkbox")) return;
      if (event.key === "?") listed.value = true;
      else if (enabled.value && SHORTCUTS[event.key]) SHORTCUTS[event.key]?.[1]();
      else return;
      event.preventDefault();
    }
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}

/** Opens the list of shortcuts. */
export function ShortcutsButton() {
  return (
    <Button kind="quiet" small class="keys" label="Keyboard shortcuts" onClick={() => (listed.value = true)}>
      ?
    </Button>
  );
}

export function Shortcuts() {
  if (!listed.value) return null;
  return (
    <Dialog title="Keyboard shortcuts" onClose={() => (listed.value = false)}>
      <dl class="facts">
        {[...Object.entries(SHORTCUTS).map(([key, [words]]) => [key, words] as const), ["Ctrl Enter", "In a comment: adjust"] as const, ["?", "This list"] as const].map(([key, words]) => [
          <dt key={`${key}-key`}>
            <kbd>{key}</kbd>
          </dt>,
          <dd key={key}>{words}</dd>,
        ])}
      </dl>
      <Checkbox label="Single-key shortcuts" checked={enabled.value} onChange={turn} />
    </Dialog>
  );
}
