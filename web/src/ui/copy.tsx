import { Button } from "./button";
import { toast } from "./feedback";

/** Copies a text. `what` says what it is, to those who listen. */
export function Copy({ text, what, children = "Copy" }: { text: string; what: string; children?: string }) {
  async function copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied.");
    } catch {
      toast("The browser does not let this page copy; select the text instead.", { bad: true });
    }
  }
  return (
    <Button small label={children === "Copy" ? `Copy: ${what}` : children} title={text} onClick={() => void copy()}>
      {children}
    </Button>
  );
}
