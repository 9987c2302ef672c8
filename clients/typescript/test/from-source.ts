/**
 * Preloaded by tests (`node --import`): what a program imports from `roskva` comes from src/, as package.json says of dist/. So examples
 * and the programs of the documentation run as they are written, without a build.
 */

import { readFileSync } from "node:fs";
import { registerHooks } from "node:module";

const PACKAGE = new URL("../", import.meta.url);
const { exports } = JSON.parse(readFileSync(new URL("package.json", PACKAGE), "utf8")) as { exports: Record<string, { default: string }> };

registerHooks({
  resolve(specifier, context, next) {
    const [name, ...path] = specifier.split("/");
    if (name !== "roskva") return next(specifier, context);
    const entry = exports[[".", ...path].join("/")];
    if (entry === undefined) throw new Error(`package.json exports no ${specifier}`);
    const source = entry.default.replace("./dist/", "./src/").replace(/\.js$/, ".ts");
    return next(new URL(source, PACKAGE).href, context);
  },
});
