// Builds the page. The same sources and versions give the same bytes, wherever it runs.
import { build } from "esbuild";
import { copyFile, mkdir, readFile, readdir, writeFile } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const here = dirname(fileURLToPath(import.meta.url));
const { values } = parseArgs({ options: { outdir: { type: "string" } } });
const outdir = resolve(values.outdir ?? join(here, "../services/gateway/page"));

await mkdir(outdir, { recursive: true });
const { metafile, outputFiles } = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir,
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  jsx: "automatic",
  jsxImportSource: "preact",
  // What these bring along, browsers have: their tables would be a tenth of the page.
  alias: {
    entities: "./src/slim/entities.ts",
    "linkify-it": "./src/slim/linkify.ts",
    mdurl: "./src/slim/mdurl.ts",
    "punycode.js": "./src/slim/punycode.ts",
    "uc.micro": "./src/slim/uc-micro.ts",
  },
  define: { "process.env.NODE_ENV": '"production"' },
  logLevel: "warning",
  metafile: true,
  write: false,
});
for (const file of outputFiles) await writeFile(file.path, file.contents);
await copyFile(join(here, "src/index.html"), join(outdir, "index.html"));
await copyFile(join(here, "src/favicon.svg"), join(outdir, "favicon.svg"));
await writeFile(join(outdir, "licenses.txt"), await licenses(metafile));

/** The licences of everything that is in the bundle, as they ask for. */
async function licenses({ inputs }) {
  const packages = new Set();
  for (const path of Object.keys(inputs)) {
    const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path);
    if (found) packages.add(found[1]);
  }
  const parts = [];
  for (const name of [...packages].sort()) {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    const file = (await readdir(folder)).sort().find((entry) => /^licen[sc]e/i.test(entry));
    const text = file ? (await readFile(join(folder, file), "utf8")).replace(/\r\n/g, "\n").trim() : "";
    parts.push(`${name} ${version} (${license})\n\n${text}\n`);
  }
  return parts.join(`\n${"-".repeat(80)}\n\n`);
}
