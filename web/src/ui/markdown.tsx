// Markdown of strangers as nodes: no markup of theirs is ever read as HTML, and links lead to http and https only.
import MarkdownIt, { type Token } from "markdown-it";
import { h, type ComponentChildren, type VNode } from "preact";
import { visible } from "../visible";
import { OutLink } from "./link";

const PARSER = new MarkdownIt({ html: false, linkify: true, typographer: false, breaks: false });
// What is shown of an address is what stands there.
PARSER.normalizeLinkText = (url: string) => url;
PARSER.validateLink = (url: string) => /^https?:\/\//i.test(url);
// Pictures would be fetched from strangers; a link to one is enough.
PARSER.disable(["image"]);

const TAGS = new Set(["p", "ul", "ol", "li", "blockquote", "em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td"]);
const MOST_CHARS = 200_000;

interface Open {
  readonly tag: string;
  readonly href: string;
  readonly start: number;
  readonly children: ComponentChildren[];
}

function element(open: Open): ComponentChildren {
  if (open.tag === "a") return <OutLink href={open.href}>{open.children}</OutLink>;
  // Headings of an answer stand below those of the page.
  const heading = /^h([1-6])$/.exec(open.tag);
  if (heading) return h(`h${Math.min(6, Number(heading[1]) + 2)}`, null, open.children);
  if (open.tag === "table") {
    return (
      <div class="markdown-table" role="region" aria-label="Table" tabIndex={0}>
        <table>{open.children}</table>
      </div>
    );
  }
  if (open.tag === "ol" && open.start > 1) return <ol start={open.start}>{open.children}</ol>;
  return TAGS.has(open.tag) ? h(open.tag, null, open.children) : <>{open.children}</>;
}

function leaf(token: Token): ComponentChildren {
  switch (token.type) {
    case "code_inline":
      return <code>{token.content}</code>;
    case "fence":
    case "code_block":
      return (
        <pre class="code-box" tabIndex={0}>
          <code>{token.content}</code>
        </pre>
      );
    case "softbreak":
      return "\n";
    case "hardbreak":
      return <br />;
    case "hr":
      return <hr />;
    default:
      return token.content;
  }
}

function nodes(tokens: readonly Token[]): ComponentChildren[] {
  const root: Open = { tag: "", href: "", start: 1, children: [] };
  const stack: Open[] = [root];
  for (const token of tokens) {
    const top = stack.at(-1) ?? root;
    if (token.type === "inline") {
      top.children.push(...nodes(token.children ?? []));
    } else if (token.nesting === 1) {
      // A tight list has paragraphs that are not shown as such.
      const tag = token.hidden ? "" : token.tag;
      stack.push({ tag, href: String(token.attrGet("href") ?? ""), start: Number(token.attrGet("start") ?? 1), children: [] });
    } else if (token.nesting === -1) {
      if (stack.length > 1) {
        stack.pop();
        stack.at(-1)?.children.push(element(top));
      }
    } else {
      top.children.push(leaf(token));
    }
  }
  return root.children;
}

/** Shows Markdown; nothing hides in it. */
export function Markdown({ text }: { text: string }): VNode {
  const shown = visible((text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS)}…` : text).replaceAll("\r\n", "\n"));
  return <div class="markdown">{nodes(PARSER.parse(shown, {}))}</div>;
}

const MOST_ENTRIES = 200;
const DEEPEST = 6;

/** What a program or an agent said, for people: JSON as names and values, every other text as Markdown. */
export function Said({ text }: { text: string }): VNode {
  const value = structured(text);
  return value === undefined ? <Markdown text={text} /> : <Value value={value} depth={0} />;
}

/** The object or list that a text is as JSON, nothing where it is none. */
export function structured(text: string): object | undefined {
  if (!/^\s*[[{]/.test(text)) return undefined;
  try {
    return JSON.parse(text) as object;
  } catch {
    return undefined;
  }
}

function Value({ value, depth }: { value: unknown; depth: number }): VNode {
  if (typeof value === "string") return value.includes("\n") || /[*_`#[]/.test(value) ? <Markdown text={value} /> : <>{visible(value) || "–"}</>;
  if (value === null || value === undefined) return <>–</>;
  if (typeof value === "boolean") return <>{value ? "yes" : "no"}</>;
  if (typeof value !== "object") return <>{String(value)}</>;
  const entries = Object.entries(value);
  if (!entries.length) return <>none</>;
  if (depth >= DEEPEST) return <code>{visible(JSON.stringify(value))}</code>;
  const left = entries.length > MOST_ENTRIES && <p class="muted small">and {entries.length - MOST_ENTRIES} more</p>;
  if (Array.isArray(value))
    return (
      <>
        <ul class="values">
          {entries.slice(0, MOST_ENTRIES).map(([at, one]) => (
            <li key={at}>
              <Value value={one} depth={depth + 1} />
            </li>
          ))}
        </ul>
        {left}
      </>
    );
  return (
    <>
      <dl class="facts">
        {entries.slice(0, MOST_ENTRIES).map(([name, one]) => [
          <dt key={`${name}-name`}>{visible(name.replaceAll("_", " "))}</dt>,
          <dd key={name}>
            <Value value={one} depth={depth + 1} />
          </dd>,
        ])}
      </dl>
      {left}
    </>
  );
}
