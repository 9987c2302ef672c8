/** Where a client connects next, and over which channel: what tests/client/test_choice.py pins. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Attempt, Choice, type Failure, type Kind, RETURN_MAX_S, RETURN_REFUSED_S, RETURN_S, STAY_S } from "../src/choice.ts";

const YOUNG_S = 60;

/** Tries what the choice says, at an hour that grows by one second with each attempt. */
class World {
  readonly choice: Choice;
  nowS = 1_000;

  constructor(urls = 1, kind: Kind | "auto" = "auto") {
    this.choice = new Choice(urls, kind, () => 0.5);
  }

  next(): Attempt {
    this.nowS += 1;
    return this.choice._attempt(this.nowS);
  }

  fail(why: Failure = "broken"): Attempt {
    const attempt = this.next();
    this.choice._failed(this.nowS, attempt, why);
    return attempt;
  }

  live(livedS: number, heard = true, cut = true): Attempt {
    const attempt = this.next();
    this.nowS += livedS;
    this.choice._ended(this.nowS, attempt, livedS, heard, cut);
    return attempt;
  }

  returnInS(): number {
    return (this.choice._returnAtS() ?? NaN) - this.nowS;
  }
}

const kinds = (...attempts: Attempt[]): string => attempts.map(({ kind }) => (kind === "websocket" ? "W" : "L")).join("");
const times = <T>(count: number, act: () => T): T[] => Array.from({ length: count }, act);

test("a WebSocket comes first, and stays as long as it works", () => {
  const world = new World();
  assert.equal(kinds(...times(5, () => world.live(YOUNG_S))), "WWWWW");
});

test("after two failures of the WebSocket, or one refusal, long polls", () => {
  const world = new World();
  assert.equal(kinds(world.fail(), world.fail(), world.live(1), world.live(1)), "WWLL");
  const refused = new World();
  assert.equal(kinds(refused.fail("refused"), refused.next()), "WL");
});

test("one that dies young again and again is left, and so is one on which nothing is heard", () => {
  const world = new World();
  const young = (): Attempt => world.live(YOUNG_S - 1);
  assert.equal(kinds(young(), world.live(YOUNG_S), young(), young(), world.next()), "WWWWL");
  const silent = new World();
  assert.equal(kinds(silent.live(1_000, false), silent.live(1_000, false), silent.next()), "WWL");
});

test("a service that is down is tried both ways in turn, and nothing is learned from it", () => {
  const world = new World();
  assert.equal(kinds(...times(7, () => world.fail())), "WWLWLWL");
  while (world.fail().kind === "websocket");
  assert.equal(world.fail("refused").kind, "websocket");
  assert.equal(world.returnInS(), RETURN_REFUSED_S);
});

test("the WebSocket is tried again beside long polls, with pauses that double", () => {
  const world = new World();
  world.fail("refused");
  const pauses = times(6, () => {
    const pauseS = world.returnInS();
    world.nowS += pauseS;
    world.choice._returnFailed(world.nowS, "refused");
    return pauseS;
  });
  assert.deepEqual(pauses, [RETURN_REFUSED_S, 600, 1_200, 2_400, RETURN_MAX_S, RETURN_MAX_S]);
  assert.equal(world.next().kind, "long-poll");
});

test("a WebSocket that came back must last", () => {
  const world = new World();
  world.fail("refused");
  world.live(YOUNG_S);
  const returned = world.choice._returned();
  assert.deepEqual(returned, { url: 0, kind: "websocket" });
  assert.equal(world.next().kind, "websocket");
  world.choice._ended(world.nowS, returned, 1, true, true); // died young: one more is enough
  assert.equal(world.next().kind, "long-poll");
  world.choice._ended(world.nowS, world.choice._returned(), YOUNG_S, true, true); // this one lasted: all is forgotten
  world.fail("refused");
  assert.equal(world.returnInS(), RETURN_REFUSED_S);
});

test("a channel that was asked for is the only one", () => {
  for (const kind of ["websocket", "long-poll"] as const) {
    const world = new World(1, kind);
    const tried = [world.fail("refused"), world.fail(), world.live(1), world.live(YOUNG_S)];
    assert.deepEqual(new Set(tried.map((attempt) => attempt.kind)), new Set([kind]));
    assert.equal(world.choice._returnAtS(), null);
  }
});

test("three failures in a row, and the next address has its turn, with both channels", () => {
  const world = new World(3);
  assert.deepEqual(times(10, () => world.fail().url), [0, 0, 0, 1, 1, 1, 2, 2, 2, 0]);
  const both = new World(2);
  assert.equal(kinds(...times(6, () => both.fail())), "WWLWWL");
});

test("it stays where it is when connections end now and then, and for minutes after a move where it was answered", () => {
  const world = new World(2);
  for (let round = 0; round < 20; round++) assert.deepEqual([world.fail().url, world.fail().url, world.live(YOUNG_S).url], [0, 0, 0]);
  const moved = new World(2, "websocket");
  times(3, () => moved.fail());
  const movedAtS = moved.nowS;
  assert.equal(moved.live(1).url, 1);
  while (moved.nowS < movedAtS + STAY_S - 1) assert.equal(moved.fail().url, 1);
  assert.deepEqual([moved.fail().url, moved.fail().url], [1, 0]);
});

test("that nobody listens says nothing about WebSockets, and a goodbye is no failure", () => {
  const world = new World();
  assert.equal(kinds(...times(5, () => world.fail("unreachable"))), "WWWWW");
  const several = new World(2);
  assert.deepEqual(times(4, () => several.fail("unreachable").url), [0, 0, 0, 1]);
  const polite = new World(2);
  assert.equal(kinds(...times(5, () => polite.live(1, true, false))), "WWWWW");
});

test("without a refusal it is tried again soon; pauses are smeared", () => {
  const world = new World();
  world.fail();
  world.fail();
  assert.equal(world.returnInS(), RETURN_S);
  const smeared = [0, 0.5, 1].map((dice) => {
    const choice = new Choice(1, "auto", () => dice);
    choice._failed(0, choice._attempt(0), "refused");
    return choice._returnAtS();
  });
  assert.deepEqual(smeared, [225, 300, 375]);
});
