/** Text that others wrote, made fit to be looked at. */

// Characters that would turn a line round or hide in it (CVE-2021-42574) are written out.
const HIDDEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** A text in which nothing hides. */
export function visible(text: string): string {
  return text
    .replaceAll("\r", "␍")
    .replace(HIDDEN, (each) => `⟨U+${each.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
}
