import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { path } from "./router";
import { signOut, tokenNeeded } from "./session";
import { openWaiting, Shortcuts, ShortcutsButton, useShortcuts } from "./shortcuts";
import { choose, theme, type Theme } from "./theme";
import { Link } from "./ui";
import { useWaiting, waiting } from "./waiting";

const PLACES: readonly (readonly [href: string, name: string])[] = [
  ["/executions", "Executions"],
  ["/submit", "Submit"],
  ["/chat", "Chat"],
  ["/plans", "Plans"],
  ["/workflows", "Workflows"],
  ["/memory", "Memory"],
  ["/batch", "Batches"],
  ["/stories", "Stories"],
  ["/councils", "Councils"],
  ["/fleet", "Fleet"],
  ["/webhooks", "Webhooks"],
  ["/connect", "Connect"],
];

const THEMES: readonly (readonly [Theme, string])[] = [
  ["system", "System"],
  ["light", "Light"],
  ["dark", "Dark"],
];

function ThemeSwitch() {
  return (
    <select class="theme-select" aria-label={`Theme: ${theme.value}`} value={theme.value} onChange={(event) => choose(event.currentTarget.value as Theme)}>
      {THEMES.map(([value, text]) => (
        <option key={value} value={value}>
          {text}
        </option>
      ))}
    </select>
  );
}

/** What stands around every view: the way to the others, the theme, the way out. */
export function Shell({ children }: { children: ComponentChildren }) {
  const [open, setOpen] = useState(false);
  const here = path.value === "/" ? "/executions" : path.value;
  useEffect(() => setOpen(false), [here]);
  useShortcuts();
  useWaiting();
  useEffect(() => {
    if (!open) return;
    function close(event: KeyboardEvent): void {
      if (event.key !== "Escape") return;
      setOpen(false);
      document.getElementById("menu-button")?.focus();
    }
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
  }, [open]);
  return (
    <>
      <a class="skip" href="#view" onClick={skip}>
        Skip to the content
      </a>
      <header class="top">
        <Link href="/executions" class="brand" aria-label="SWE AI Fleet, to the executions">
          <svg class="brand-mark" viewBox="0 0 32 32" aria-hidden="true">
            <path d="M8 22.5 16 7l8 15.5-8-4z" />
          </svg>
          <span>Fleet</span>
        </Link>
        <button type="button" id="menu-button" class="button button-plain button-small menu-button" aria-expanded={open} aria-controls="navigation" onClick={() => setOpen(!open)}>
          Menu
        </button>
        <nav id="navigation" class={`navigation${open ? " navigation-open" : ""}`} aria-label="Main">
          <ul>
            {PLACES.map(([href, name]) => (
              <li key={href}>
                <Link href={href} aria-current={here === href ? "page" : here.startsWith(`${href}/`) ? "true" : undefined}>
                  {name}
                </Link>
              </li>
            ))}
          </ul>
        </nav>
        <div class="top-end">
          {waiting.value.length > 0 && (
            <button type="button" class="badge badge-ask waiting" onClick={openWaiting}>
              {waiting.value.length} {waiting.value.length === 1 ? "waits" : "wait"} for you
            </button>
          )}
          <ShortcutsButton />
          <ThemeSwitch />
          {tokenNeeded.value && (
            <button type="button" class="button button-quiet button-small" onClick={() => void signOut()}>
              Sign out
            </button>
          )}
        </div>
      </header>
      <main id="view" class="view" tabIndex={-1}>
        {children}
      </main>
      <Shortcuts />
    </>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  const view = document.getElementById("view");
  view?.focus();
  view?.scrollIntoView();
}
