// Names made here. `crypto.randomUUID` is there over https and on loopback only; this is everywhere.

/** A name nobody else has: a word and 16 hexadecimal digits. */
export function randomName(word: string): string {
  const bytes = crypto.getRandomValues(new Uint8Array(8));
  return `${word}-${[...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
