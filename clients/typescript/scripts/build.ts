/**
 * `npm run build`: modules and types into dist/, and each of BUNDLES in one file. Prints their gzipped sizes, and fails above the limit.
 */

import { execFileSync } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const GZIPPED_BYTES_MAX = 12 * 1024;
const BUNDLES = { "dist/roskva-core.min.js": "src/core/index.ts" };

process.chdir(fileURLToPath(new URL("..", import.meta.url)));
rmSync("dist", { recursive: true, force: true });
execFileSync(process.execPath, ["node_modules/typescript/bin/tsc", "-p", "tsconfig.build.json"], { stdio: "inherit" });
for (const [outfile, entry] of Object.entries(BUNDLES)) {
  await build({ entryPoints: [entry], outfile, bundle: true, format: "esm", minify: true, target: "es2022", legalComments: "none" });
  const bytes = readFileSync(outfile);
  const gzipped = gzipSync(bytes, { level: 9 }).length;
  console.log(`${outfile}: ${bytes.length} bytes, ${gzipped} gzipped (limit ${GZIPPED_BYTES_MAX})`);
  if (gzipped > GZIPPED_BYTES_MAX) {
    console.error(`${outfile} is over the limit.`);
    process.exitCode = 1;
  }
}
