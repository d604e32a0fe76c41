// Runs the tests of what needs no browser, with node's own runner.
import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const outdir = await mkdtemp(join(tmpdir(), "fleet-page-test-"));
try {
  const names = (await readdir(here)).filter((name) => name.endsWith(".test.ts")).sort();
  await build({
    entryPoints: names.map((name) => join(here, name)),
    outdir,
    outExtension: { ".js": ".mjs" },
    bundle: true,
    format: "esm",
    platform: "node",
    target: "node20",
    logLevel: "warning",
    define: { GOLDEN: JSON.stringify(join(here, "../../tests/unit/golden")) },
  });
  const files = names.map((name) => join(outdir, name.replace(/\.ts$/, ".mjs")));
  process.exitCode = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" }).status ?? 1;
} finally {
  await rm(outdir, { recursive: true, force: true });
}
