// Where the page stands, in the address bar's own terms.
import { computed, signal } from "@preact/signals";

export interface Place {
  readonly path: string;
  readonly query: URLSearchParams;
}

function here(): Place {
  return { path: location.pathname, query: new URLSearchParams(location.search) };
}

export const place = signal<Place>(here());

/** The path alone, for what does not look at the query. */
export const path = computed(() => place.value.path);

addEventListener("popstate", () => {
  place.value = here();
});

/** Goes to a path of this page; `replace` leaves no step back. Moves the focus to the view, as a loaded page would. */
export function navigate(to: string, { replace = false, keepFocus = false } = {}): void {
  const target = new URL(to, location.origin);
  if (target.origin !== location.origin) return;
  const same = target.pathname === location.pathname;
  history[replace ? "replaceState" : "pushState"](null, "", target.pathname + target.search);
  place.value = here();
  if (same || keepFocus) return;
  scrollTo(0, 0);
  requestAnimationFrame(() => document.getElementById("view")?.focus({ preventScroll: true }));
}

/** Changes values of the query where it stands; an empty one is removed. */
export function setQuery(changes: Record<string, string | undefined>): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  navigate(location.pathname + (text ? `?${text}` : ""), { replace: true, keepFocus: true });
}

/** The named parts of a path that fits a pattern such as `/executions/:id`; undefined where it does not fit. */
export function match(pattern: string, of: string): Record<string, string> | undefined {
  const wanted = pattern.split("/").filter(Boolean);
  const given = of.split("/").filter(Boolean);
  if (wanted.length !== given.length) return undefined;
  const found: Record<string, string> = {};
  for (const [index, part] of wanted.entries()) {
    const value = given[index] ?? "";
    if (part.startsWith(":")) {
      try {
        found[part.slice(1)] = decodeURIComponent(value);
      } catch {
        return undefined;
      }
    } else if (part !== value) return undefined;
  }
  return found;
}
