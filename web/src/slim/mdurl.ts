// Stands in for mdurl: the browser's own URL reads and writes addresses.

interface Parsed {
  readonly given: string;
  readonly hostname?: string;
  readonly pathname?: string;
}

export function parse(given: string): Parsed {
  return { given };
}

/** An address as browsers write it; what is none, as it was given. */
export function format({ given }: Parsed): string {
  return URL.canParse(given) ? new URL(given).href : given;
}

export function encode(text: string): string {
  return text;
}

export function decode(text: string): string {
  return text;
}

decode.defaultChars = "";
