/**
 * `npm run build`: into dist/ go modules and types, each of BUNDLES, and roskva.js, one file for pages without a bundler. Prints the
 * gzipped sizes of these, and of what a page loads that uses a `Client`; fails above a limit. `npm run page` puts roskva.js where the gateway
 * serves it from, too: that copy is kept in the repository, so that the service needs no Node.
 *
 * What a bundle shares with another is in both: an application that uses several bundles them itself, from the modules.
 */

import { execFileSync } from "node:child_process";
import { copyFileSync, readFileSync, rmSync } from "node:fs";
import { relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build, type BuildOptions, type Metafile } from "esbuild";

// The aim for what a Client loads at once was 12 KB. It is missed; these keep it from growing unseen.
const CORE_GZIPPED_BYTES_MAX = 12_000;
const AT_ONCE_GZIPPED_BYTES_MAX = 14_000;
const CLIENT_GZIPPED_BYTES_MAX = { "with tabs": 22_700, "without tabs": 18_100 };
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
  console.error(`Over the limit: ${what}.`);
  process.exitCode = 1;
}

async function page(): Promise<void> {
  const banner = { js: "// Roskva for pages without a bundler (Apache-2.0). Made from clients/typescript by `npm run page`: do not edit." };
  await build({ ...COMMON, entryPoints: ["src/page.ts"], outfile: PAGE, banner });
  console.log(`${PAGE}: ${gzipped([PAGE])} bytes gzipped, with LiveCache`);
}

/**
 * What a user's bundler makes of `import { Client } from "roskva"`, as a page loads it: at once, for a Client with a WebSocket; all of it;
 * and all but the tabs.
 */
async function usersClient(): Promise<void> {
  const contents = 'export { Client } from "./dist/index.js";';
  const stdin = { contents, resolveDir: ".", sourcefile: "page.js" };
  const { outputFiles, metafile } = await build({ ...COMMON, stdin, write: false, outdir: "page", splitting: true, metafile: true });
  const bytes = new Map(outputFiles.map(({ path, contents }) => [relative(".", path), gzippedBytes(contents)]));
  const sum = (files: Iterable<string>): number => [...files].reduce((total, file) => total + (bytes.get(file) ?? NaN), 0);
  const { outputs } = metafile;
  const holding = (input: string): string[] => Object.keys(outputs).filter((file) => input in (outputs[file]?.inputs ?? {}));
  const tabs = sum(holding("dist/tabs/shared.js"));
  const said = (what: string, size: number, limit: number): void => {
    console.log(`${what}: ${size} bytes gzipped (limit ${limit})`);
    hold(what, size, limit);
  };
  said("what a Client loads at once", sum(loadedAtOnce(outputs, "page/stdin.js")), AT_ONCE_GZIPPED_BYTES_MAX);
  said("all of a Client with tabs", sum(bytes.keys()), CLIENT_GZIPPED_BYTES_MAX["with tabs"]);
  said("all of a Client without tabs", sum(bytes.keys()) - tabs, CLIENT_GZIPPED_BYTES_MAX["without tabs"]);
}

process.chdir(fileURLToPath(new URL("..", import.meta.url)));
rmSync("dist", { recursive: true, force: true });
execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", "tsconfig.build.json"], { stdio: "inherit" });
for (const each of BUNDLES) await bundle(...each);
await page();
await usersClient();
if (process.argv.includes("--page")) copyFileSync(PAGE, SERVED);
