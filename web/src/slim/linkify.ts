// Stands in for linkify-it, which knows all top-level domains: here only what begins with http:// or https:// is a link.

interface Link {
  readonly schema: string;
  readonly index: number;
  readonly lastIndex: number;
  readonly raw: string;
  readonly text: string;
  readonly url: string;
}

const ADDRESS = /https?:\/\/[^\s<>"'`|\\^{}]{1,2000}/gi;
const CLOSING: Readonly<Record<string, string>> = { ")": "(", "]": "[" };

/** An address without the sentence's marks behind it; a bracket belongs to it where it was opened in it. */
function trimmed(text: string): string {
  const left: Record<string, number> = {};
  for (const [closing, opening] of Object.entries(CLOSING)) left[closing] = text.split(closing).length - text.split(opening).length;
  let end = text.length;
  for (; end > 0; end--) {
    const last = text[end - 1] ?? "";
    if (last in CLOSING) {
      if ((left[last] ?? 0) <= 0) break;
      left[last] = (left[last] ?? 0) - 1;
    } else if (!".,;:!?*_~…".includes(last)) break;
  }
  return text.slice(0, end);
}

function link(found: RegExpMatchArray): Link | undefined {
  const url = trimmed(found[0]);
  const schema = url.slice(0, url.indexOf("://") + 1).toLowerCase();
  if (url.length < schema.length + 3) return undefined;
  const index = found.index ?? 0;
  return { schema, index, lastIndex: index + url.length, raw: url, text: url, url };
}

export class LinkifyIt {
  test(text: string): boolean {
    return text.search(ADDRESS) >= 0;
  }

  match(text: string): Link[] {
    return [...text.matchAll(ADDRESS)].map(link).filter((one) => one !== undefined);
  }

  matchAtStart(text: string): Link | null {
    const found = /^https?:\/\/[^\s<>"'`|\\^{}]{1,2000}/i.exec(text);
    return (found && link(found)) ?? null;
  }
}
