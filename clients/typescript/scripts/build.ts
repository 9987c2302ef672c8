/**
 * `npm run build`: into dist/ go modules and types, each of BUNDLES, and roskva.js, one file for pages without a bundler. Prints the
 * gzipped sizes of these, and of what a page loads that uses a `Client`; fails above a limit. `npm run page` puts roskva.js where the gateway
 * serves it from, too: that copy is kept in the repository, so that the service needs no Node.
 *
 * What a bundle shares with another is in both: an application that uses several bundles them itself, from the modules.
 */

import { execFileSync } from "node:child_process";
import { copyFileSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build, type BuildOptions, type Metafile } from "esbuild";

// What a Client loads at once is to be less than 12 KB; the others keep from growing unseen.
const CORE_GZIPPED_BYTES_MAX = 12_000;
const AT_ONCE_GZIPPED_BYTES_MAX = 11_999;
const CLIENT_GZIPPED_BYTES_MAX = { "with tabs": 22_700, "without tabs": 17_900 };
const WITH_CACHE_GZIPPED_BYTES_MAX = 17_400;
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
// Properties for the package's own parts only. Whatever a user, the service or another tab may see has no underscore before it.
const OWN = /^_[a-z]/;

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

/**
 * The modules, with short names for OWN: a user's bundler keeps every property as it is. Source maps lead from them to the sources.
 *
 * Modules are made one by one, but must agree: so the names are found before, for all of them together.
 */
async function modules(): Promise<void> {
  execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", "tsconfig.build.json"], { stdio: "inherit" });
  const entryPoints = readdirSync("dist", { recursive: true, encoding: "utf8" }).filter((file) => file.endsWith(".js")).map((file) => `dist/${file}`);
  const naming = { ...COMMON, write: false, outdir: "dist", mangleProps: OWN, external: ["react"], platform: "node" } satisfies BuildOptions;
  // The shortest for those that a page loads at once.
  const first = await build({ ...naming, entryPoints: ["dist/index.js"], splitting: true, mangleCache: {} });
  const { mangleCache } = await build({ ...naming, entryPoints, mangleCache: first.mangleCache });
  await build({
    entryPoints,
    outdir: "dist",
    allowOverwrite: true,
    target: "es2022",
    mangleProps: OWN,
    mangleCache,
    sourcemap: true,
  });
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
    mangleProps: OWN,
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
  await build({ ...COMMON, entryPoints: ["src/page.ts"], outfile: PAGE, banner, mangleProps: OWN });
  console.log(`${PAGE}: ${gzipped([PAGE])} bytes gzipped, with LiveCache`);
}

/** What a user's bundler makes of a page that uses this: the files by their gzipped sizes, and which of them are loaded at once. */
async function usersPage(contents: string): Promise<{ bytes: Map<string, number>; outputs: Metafile["outputs"]; atOnce: number }> {
  const stdin = { contents, resolveDir: ".", sourcefile: "page.js" };
  const { outputFiles, metafile } = await build({
    ...COMMON,
    stdin,
    write: false,
    outdir: "page",
    splitting: true,
    metafile: true,
    external: ["react"],
  });
  const bytes = new Map(outputFiles.map(({ path, contents }) => [relative(".", path), gzippedBytes(contents)]));
  const { outputs } = metafile;
  return { bytes, outputs, atOnce: sum(bytes, loadedAtOnce(outputs, "page/stdin.js")) };
}

const sum = (bytes: Map<string, number>, files: Iterable<string>): number =>
  [...files].reduce((total, file) => total + (bytes.get(file) ?? NaN), 0);

function said(what: string, size: number, limit: number): void {
  console.log(`${what}: ${size} bytes gzipped (limit ${limit})`);
  hold(what, size, limit);
}

/** `import { Client } from "roskva"`: at once, for a Client with a WebSocket; all of it; and all but the tabs. With a LiveCache: at once. */
async function usersClient(): Promise<void> {
  const client = 'export { Client } from "./dist/index.js";';
  const cache = `${client} export { LiveCache } from "./dist/livecache.js";`;
  const { bytes, outputs, atOnce } = await usersPage(client);
  const all = sum(bytes, bytes.keys());
  const tabs = sum(bytes, Object.keys(outputs).filter((file) => "dist/tabs/shared.js" in (outputs[file]?.inputs ?? {})));
  said("what a Client loads at once", atOnce, AT_ONCE_GZIPPED_BYTES_MAX);
  said("all of a Client with tabs", all, CLIENT_GZIPPED_BYTES_MAX["with tabs"]);
  said("all of a Client without tabs", all - tabs, CLIENT_GZIPPED_BYTES_MAX["without tabs"]);
  const withCache = (await usersPage(cache)).atOnce;
  const withHook = (await usersPage(`${cache} export { useLive } from "./dist/react.js";`)).atOnce;
  said("what a Client with a LiveCache loads at once", withCache, WITH_CACHE_GZIPPED_BYTES_MAX);
  console.log(`useLive beside them: ${withHook - withCache} bytes gzipped`);
}

process.chdir(fileURLToPath(new URL("..", import.meta.url)));
rmSync("dist", { recursive: true, force: true });
await modules();
for (const each of BUNDLES) await bundle(...each);
await page();
await usersClient();
if (process.argv.includes("--page")) copyFileSync(PAGE, SERVED);
