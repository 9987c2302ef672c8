/** The core is pure. tsconfig.core.json keeps out what browsers and Node add to the language; this, what the language has itself. */

import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";

const CORE = new URL("../src/core/", import.meta.url);
const IMPURE = /\bDate\b|\bMath\.random\b|\bglobalThis\b|\bimport\(|\basync\b|\bawait\b|\bPromise\b/;

for (const file of readdirSync(CORE)) {
  test(`${file} says what it is, is not too long, and has no clock, no chance, no other world`, () => {
    const text = readFileSync(new URL(file, CORE), "utf8");
    assert.match(text, /^\/\*\*\n \* \S/);
    assert.ok(text.split("\n").length <= (text.includes("It is long, since") ? 600 : 400), "split it");
    assert.deepEqual(text.split("\n").filter((line) => line.length > 140), []);
    const code = text.replace(/\/\*\*.*?\*\/|\/\/[^\n]*/gs, "");
    assert.doesNotMatch(code, IMPURE);
    for (const [, from] of code.matchAll(/\bfrom "([^"]+)"/g)) assert.match(from ?? "", /^\.\/[a-z0-9]+\.ts$/);
  });
}

test("nothing that a page may load needs Node, or another package", () => {
  const seen = new Set<string>();
  const follow = (url: URL): void => {
    if (seen.has(url.href)) return;
    seen.add(url.href);
    const imports = /^(?:import|export) (?!type )[^;]*?from "([^"]+)"|\bimport\("([^"]+)"\)/gm;
    for (const [, always, later] of readFileSync(url, "utf8").matchAll(imports)) {
      const from = always ?? later ?? "";
      assert.match(from, /^\.\.?\//, `${url.pathname} imports ${from}`);
      follow(new URL(from, url));
    }
  };
  follow(new URL("../src/index.ts", import.meta.url));
  for (const part of ["session.ts", "tabs/hub.ts"]) assert.ok(seen.has(new URL(`../src/${part}`, import.meta.url).href), part);
});

// The build gives them short names, others in each version of this package.
test("what the service, another tab, the next run or a user sees has no name of the package's own", () => {
  for (const file of ["core/actions", "core/messages", "core/state", "registrations", "tabs/messages", "stores/cache"]) {
    const code = readFileSync(new URL(`../src/${file}.ts`, import.meta.url), "utf8");
    assert.doesNotMatch(code, /(?<!\w)_[a-z]/, file);
  }
});
