/** Text that others wrote, made fit to be looked at. */

// Characters that would turn a line round or hide in it (CVE-2021-42574) are written out.
// So are those without a width, of which names can be made that look alike, and the tags, which no one sees at all.
const HIDDEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e0fff}]/gu;

/** A text in which nothing hides. */
export function visible(text: string): string {
  return text
    .replaceAll("\r", "␍")
    .replace(HIDDEN, (each) => `⟨U+${(each.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}
