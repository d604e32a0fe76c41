// Stands in for punycode.js: the browser's own URL writes the names of hosts in ASCII.

export default { toASCII: (name: string): string => name, toUnicode: (name: string): string => name };
