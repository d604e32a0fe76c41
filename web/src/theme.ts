// Light or dark: the system's word, unless the reader has another.
import { signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

const KEY = "fleet-theme";

function stored(): Theme {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system";
  }
}

export const theme = signal<Theme>(stored());

const system = matchMedia("(prefers-color-scheme: dark)");

/** What is shown in the end; plots redraw themselves after it. */
export const dark = signal(false);

function apply(): void {
  const root = document.documentElement;
  if (theme.value === "system") delete root.dataset.theme;
  else root.dataset.theme = theme.value;
  dark.value = theme.value === "dark" || (theme.value === "system" && system.matches);
}

/** Puts the reader's choice into force and keeps it for the next time. */
export function choose(next: Theme): void {
  theme.value = next;
  try {
    if (next === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // A browser that keeps nothing shows the choice until it is closed.
  }
  apply();
}

system.addEventListener("change", apply);
apply();
