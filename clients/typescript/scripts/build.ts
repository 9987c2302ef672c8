/**
 * `npm run build`: into dist/ go modules and types, each of BUNDLES, and roskva.js, one file for pages without a bundler. Prints the gzipped
 * sizes of these, and of all that a page which uses a `Client` loads; fails above a limit. `npm run page` puts roskva.js where the gateway
 * serves it from, too: that copy is kept in the repository, so that the service needs no Node.
 *
 * What a bundle shares with another is in both: an application that uses several bundles them itself, from the modules.
 */

import { execFileSync } from "node:child_process";
import { copyFileSync, readFileSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build, type BuildOptions, type Metafile } from "esbuild";

// The aim for a whole client was 12 KB. It is missed; these keep it from growing unseen.
const CORE_GZIPPED_BYTES_MAX = 12_000;
const CLIENT_GZIPPED_BYTES_MAX = { "with tabs": 20_500, "without tabs": 16_500 };
const BUNDLES: [name: string, entry: string, limit?: number][] = [
  ["roskva", "src/index.ts"],
  ["roskva-core", "src/core/index.ts", CORE_GZIPPED_BYTES_MAX],
  ["roskva-livecache", "src/livecache.ts"],
  ["roskva-react", "src/react.ts"],
  ["roskva-testing", "src/testing/index.ts"],
];
const PAGE = "dist/roskva.js";
const SERVED = "../../src/roskva/gateway/static/roskva.js";
const COMMON = {
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2022",
  legalComments: "none",
} satisfies BuildOptions;

const gzippedBytes = (data: Uint8Array): number => gzipSync(data, { level: 9 }).length;
const gzipped = (files: Iterable<string>): number => [...files].reduce((sum, file) => sum + gzippedBytes(readFileSync(file)), 0);

/** The files that the first one loads, with all that these load; `import()` waits until it is needed. */
function loadedAtOnce(outputs: Metafile["outputs"], first: string, found = new Set<string>()): Set<string> {
  found.add(first);
  for (const { path, kind, external } of outputs[first]?.imports ?? []) {
    if (kind === "import-statement" && !external && !found.has(path)) loadedAtOnce(outputs, path, found);
  }
  return found;
}

/** One bundle, beside files that are loaded only when they are needed. */
async function bundle(name: string, entry: string, limit?: number): Promise<void> {
  const { metafile } = await build({
    ...COMMON,
    entryPoints: { [`${name}.min`]: entry },
    outdir: "dist",
    chunkNames: `${name}-[hash].min`,
    splitting: true,
    metafile: true,
    external: ["react"],
  });
  const { outputs } = metafile;
  const first = `dist/${name}.min.js`;
  const atOnce = gzipped(loadedAtOnce(outputs, first));
  const all = gzipped(Object.keys(outputs));
  console.log(`${first}: ${atOnce} bytes gzipped${limit === undefined ? "" : ` (limit ${limit})`}, ${all} with what is loaded when needed`);
  if (limit !== undefined) hold(first, atOnce, limit);
}

/** The build goes on, so that all sizes are printed, and fails in the end. */
function hold(what: string, bytes: number, limit: number): void {
  if (bytes <= limit) return;
  console.error(`${what} is over the limit.`);
  process.exitCode = 1;
}

async function page(): Promise<void> {
  const banner = { js: "// Roskva for pages without a bundler (Apache-2.0). Made from clients/typescript by `npm run page`: do not edit." };
  await build({ ...COMMON, entryPoints: ["src/page.ts"], outfile: PAGE, banner });
  console.log(`${PAGE}: ${gzipped([PAGE])} bytes gzipped, with LiveCache`);
}

/** All that a page loads which uses a `Client` and nothing else, as one file. */
async function pageWithClient(what: keyof typeof CLIENT_GZIPPED_BYTES_MAX, external: string[]): Promise<void> {
  const contents = 'export { Client } from "./src/client.ts";';
  const { outputFiles } = await build({ ...COMMON, stdin: { contents, resolveDir: "." }, write: false, external });
  const bytes = outputFiles.reduce((sum, file) => sum + gzippedBytes(file.contents), 0);
  const limit = CLIENT_GZIPPED_BYTES_MAX[what];
  console.log(`all of a Client ${what}: ${bytes} bytes gzipped (limit ${limit})`);
  hold(`All of a Client ${what}`, bytes, limit);
}

process.chdir(fileURLToPath(new URL("..", import.meta.url)));
rmSync("dist", { recursive: true, force: true });
execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", "tsconfig.build.json"], { stdio: "inherit" });
for (const each of BUNDLES) await bundle(...each);
await page();
await pageWithClient("with tabs", []);
await pageWithClient("without tabs", ["./src/tabs/shared.ts"]);
if (process.argv.includes("--page")) copyFileSync(PAGE, SERVED);
