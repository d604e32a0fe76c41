/** Parts of the view that are drawn again only when what they show has changed, or only when somebody looks. */

import { Component, type ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { Button, count, Said, structured } from "../ui";
import { visible } from "../visible";

/** Draws again only where `revision` differs. */
export class Revised extends Component<{ revision: string | number; draw: () => ComponentChildren }> {
  override shouldComponentUpdate(next: Readonly<{ revision: string | number }>): boolean {
    return next.revision !== this.props.revision;
  }

  override render(): ComponentChildren {
    return this.props.draw();
  }
}

/** A heading that unfolds; what is in it is made when it is opened first. */
export function Fold(props: { head: ComponentChildren; body: () => ComponentChildren; open?: boolean; class?: string }) {
  const [open, setOpen] = useState(props.open ?? false);
  return (
    <details class={`fold ${props.class ?? ""}`} open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{props.head}</summary>
      {open && <div class="fold-body">{props.body()}</div>}
    </details>
  );
}

/** A text, cut at first where it is long: as Markdown or, in JSON, as names and values; `mono` and `plain` as it stands. */
export function LongText({ text, most = 1_500, mono, plain }: { text: string; most?: number; mono?: boolean; plain?: boolean }) {
  const [all, setAll] = useState(false);
  const rich = !mono && !plain;
  if (rich && text.length <= MOST_SHOWN && structured(text)) return <Said text={text} />;
  const cut = !all && text.length > most;
  const shown = text.slice(0, cut ? most : MOST_SHOWN) + (cut ? " …" : "");
  return (
    <>
      {rich ? (
        <Said text={shown} />
      ) : (
        <pre class={mono ? "mono-block" : "prose-block"} tabIndex={mono ? 0 : undefined}>
          {visible(shown.replaceAll("\r\n", "\n"))}
        </pre>
      )}
      {text.length > most && (
        <Button small kind="quiet" expanded={!cut} onClick={() => setAll(cut)}>
          {cut ? `Show all ${count(text.length)} characters` : "Show less"}
        </Button>
      )}
    </>
  );
}

const MOST_SHOWN = 400_000;

/** JSON as people read it; what is none stays as it is. */
export function pretty(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
