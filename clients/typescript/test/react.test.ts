/** `useLive` in real React: rendered again when the service tells of a change, and only when there is something else to show. */

import assert from "node:assert/strict";
import { afterEach, before, test } from "node:test";
import { act, createElement, type FunctionComponent, StrictMode } from "react";
import { create, type ReactTestRenderer } from "react-test-renderer";
import { type LiveCache } from "../src/livecache.ts";
import { useLive } from "../src/react.ts";
import { Scene } from "./scene.ts";

const complaints: unknown[] = []; // of React, which says on the console what it finds wrong

before(() => {
  console.error = (...words: unknown[]) => {
    if (!String(words[0]).includes("react-test-renderer is deprecated")) complaints.push(words);
  };
  Object.assign(globalThis, { IS_REACT_ACT_ENVIRONMENT: true });
});

afterEach(() => assert.deepEqual(complaints.splice(0), []));

interface Props {
  readonly cache: LiveCache<unknown>;
  readonly id: string;
}

async function shown(element: ReturnType<typeof createElement>): Promise<ReactTestRenderer> {
  let page: ReactTestRenderer | undefined;
  await act(async () => void (page = create(element)));
  return page as ReactTestRenderer;
}

test("a component shows what is fetched, and again what changed", async () => {
  const scene = new Scene({ versioned: true });
  scene.write("doc");
  scene.write("other");
  let renders = 0;
  const Title: FunctionComponent<Props> = ({ cache, id }) => {
    renders += 1;
    const { value, state, error } = useLive(cache, id);
    return `${value ?? "..."} ${state} ${error === null ? "" : "!"}`;
  };
  const page = await shown(createElement(Title, { cache: scene.cache, id: "doc" }));
  const text = (): string => String(page.toJSON()).trim();
  assert.equal(text(), "... unknown");
  await act(() => scene.wait(10));
  assert.equal(text(), "doc@1 fresh");
  const before = renders;
  await act(() => scene.wait(100));
  assert.equal(renders, before, "nothing changed, nothing is rendered");
  scene.write("doc");
  await act(() => scene.wait(10));
  assert.equal(text(), "doc@2 fresh");
  scene.service.disconnect(scene.client);
  scene.broken = true;
  await act(() => scene.wait(60));
  assert.equal(text(), "doc@2 unknown !");
  scene.broken = false;
  scene.service.reconnect(scene.client);
  await act(() => scene.service.until(() => scene.cache.state("doc").state === "fresh"));
  await act(() => scene.wait(40));
  assert.equal(text(), "doc@2 fresh");
  await act(async () => page.update(createElement(Title, { cache: scene.cache, id: "other" })));
  await act(() => scene.wait(10));
  assert.equal(text(), "other@1 fresh");
  await act(async () => page.unmount());
  const after = renders;
  const fetches = scene.fetches.length;
  scene.service.disconnect(scene.client);
  await scene.wait(100);
  assert.deepEqual([renders, scene.fetches.length], [after, fetches], "nobody shows it: nobody asks");
  await scene.end();
});

test("two components, and React's strict mode, cost one fetch", async () => {
  const scene = new Scene({ versioned: true });
  scene.write("doc");
  const Title: FunctionComponent<Props> = ({ cache, id }) => String(useLive(cache, id).value);
  const title = (key: string): ReturnType<typeof createElement> => createElement(Title, { cache: scene.cache, id: "doc", key });
  const page = await shown(createElement(StrictMode, null, [title("one"), title("other")]));
  await act(() => scene.wait(10));
  assert.deepEqual(page.toJSON(), ["doc@1", "doc@1"]);
  assert.deepEqual(scene.fetches, ["doc"]);
  await act(async () => page.unmount());
  await scene.end();
});
