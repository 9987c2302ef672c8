/** What counts as a wake: with a clock and a time of day that the test moves, and a page that it hides. */

import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { HandClock } from "../src/testing/index.ts";
import { onWake } from "../src/wake.ts";

class FakePage extends EventTarget {
  visibilityState = "visible";

  show(visibilityState: string): void {
    this.visibilityState = visibilityState;
    this.dispatchEvent(new Event("visibilitychange"));
  }
}

async function watching(use: (clock: HandClock, page: FakePage, count: () => number) => Promise<void>): Promise<void> {
  mock.timers.enable({ apis: ["Date"], now: 1_000_000 });
  const page = new FakePage();
  Object.assign(globalThis, { document: page });
  const clock = new HandClock();
  let wakes = 0;
  const stop = onWake(clock, () => (wakes += 1), () => {});
  try {
    await use(clock, page, () => wakes);
  } finally {
    stop();
    Reflect.deleteProperty(globalThis, "document");
    mock.timers.reset();
  }
  const before = wakes;
  page.show("hidden");
  await clock.advance(1_000);
  assert.equal(wakes, before); // it has stopped listening
}

/** Both go together, as long as nobody sleeps. */
async function pass(clock: HandClock, seconds: number): Promise<void> {
  for (let passed = 0; passed < seconds; passed++) {
    mock.timers.tick(1_000);
    await clock.advance(1);
  }
}

test("the machine slept: the time of day went further than the clock", () =>
  watching(async (clock, _, count) => {
    await pass(clock, 60);
    assert.equal(count(), 0);
    mock.timers.tick(30_000);
    await pass(clock, 10);
    assert.equal(count(), 1);
    await pass(clock, 60);
    assert.equal(count(), 1);
  }));

test("the page was frozen: nobody looked for minutes", () =>
  watching(async (clock, _, count) => {
    await pass(clock, 5);
    mock.timers.tick(200_000);
    await clock.advance(200);
    assert.ok(count() >= 1);
  }));

test("a page that was hidden for a while is shown; a glance elsewhere does not count", () =>
  watching(async (_, page, count) => {
    page.show("hidden");
    mock.timers.tick(3_000);
    page.show("visible");
    assert.equal(count(), 0);
    page.show("hidden");
    mock.timers.tick(11_000);
    assert.equal(count(), 0);
    page.show("visible");
    assert.equal(count(), 1);
  }));
