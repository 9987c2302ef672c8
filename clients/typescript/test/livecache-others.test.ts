/** A LiveCache beside others who register the same objects with the same client: the application, another cache, one that was before it. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type Client } from "../src/client.ts";
import { LiveCache, type LiveCacheOptions, MemoryStore } from "../src/livecache.ts";
import { Service } from "../src/testing/index.ts";

class Stage {
  readonly service = new Service();
  readonly client: Client = this.service.client("shop");
  readonly warnings: string[] = [];
  version = 1;
  takesS = 0;

  constructor() {
    this.service.publish("shop", "doc:42", 1);
  }

  cache(options: LiveCacheOptions = {}): LiveCache<string> {
    const fetch = async (): Promise<string> => {
      const value = `v${this.version}`;
      if (this.takesS > 0) await new Promise<void>((done) => void this.service.clock.after(this.takesS, done));
      return value;
    };
    return new LiveCache(this.client, fetch, { warn: (message) => void this.warnings.push(message), ...options });
  }

  get(cache: LiveCache<string>): Promise<string> {
    return this.service.run(cache.get("doc:42"));
  }

  write(): void {
    this.version += 1;
    this.service.publish("shop", "doc:42", this.version);
  }
}

for (const handler of [null, () => {}]) {
  test(`what the application registered ${handler ? "with" : "without"} a handler is cached by time, and stays its own`, async () => {
    const stage = new Stage();
    const { service, client } = stage;
    await client.register("doc:42", handler);
    await service.advance(5);
    const cache = stage.cache();
    assert.equal(await stage.get(cache), "v1");
    await service.advance(2);
    assert.equal(cache.state("doc:42").state, "unknown");
    stage.write();
    await service.advance(11);
    assert.equal(await stage.get(cache), "v2");
    stage.write();
    await service.advance(11);
    assert.equal(await stage.get(cache), "v3");
    assert.deepEqual(stage.warnings, ["doc:42 is cached without being registered"], "once is enough");
    await cache.discard("doc:42");
    await stage.get(cache);
    await service.run(cache.close());
    assert.deepEqual(client.registrations(), ["doc:42"]);
    await service.close();
  });
}

test("of two caches the second one is by time until the first one is closed", async () => {
  const stage = new Stage();
  const [first, second] = [stage.cache(), stage.cache()];
  for (const cache of [first, second]) await stage.get(cache);
  await stage.service.advance(5);
  stage.write();
  await stage.service.advance(11);
  assert.deepEqual([await stage.get(first), await stage.get(second)], ["v2", "v2"]);
  assert.deepEqual([first.state("doc:42").state, second.state("doc:42").state], ["fresh", "unknown"]);
  await stage.service.run(first.close());
  await stage.service.advance(11);
  await stage.get(second);
  await stage.service.until(() => second.state("doc:42").state === "fresh");
  await stage.service.run(second.close());
  await stage.service.close();
});

test("a durable cache that is closed leaves its registrations to the next one of the same client", async () => {
  const stage = new Stage();
  const { service, client } = stage;
  const store = new MemoryStore({ durable: true });
  const first = stage.cache({ store });
  await stage.get(first);
  await service.until(() => first.state("doc:42").state === "fresh");
  stage.takesS = 5;
  stage.write();
  await service.advance(1); // told, and not yet fetched
  await service.run(first.close());
  assert.deepEqual(client.registrations(), ["doc:42"]);
  stage.takesS = 0;
  const second = stage.cache({ store });
  await service.run(second.start());
  assert.notEqual(second.state("doc:42").state === "fresh" && second.peek("doc:42") === "v1", true);
  assert.equal(await stage.get(second), "v2");
  stage.write();
  await service.advance(5);
  assert.deepEqual([second.peek("doc:42"), second.state("doc:42").state], ["v3", "fresh"]);
  assert.deepEqual([stage.warnings, service.unacknowledged("shop")], [[], 0]);
  await service.run(second.close());
  await service.close();
});

test("an entry that goes while it is being registered leaves no registration", async () => {
  const stage = new Stage();
  const { service, client } = stage;
  let begin = (): void => {};
  const begun = new Promise<void>((done) => (begin = done));
  const register = client.register.bind(client);
  client.register = async (...given) => {
    await begun;
    await register(...given);
  };
  const cache = stage.cache();
  await stage.get(cache);
  const gone = cache.discard("doc:42");
  await stage.get(cache); // and comes again
  await service.run(cache.get("other"));
  const other = cache.discard("other"); // and does not
  begin();
  await Promise.all([gone, other]);
  assert.deepEqual(client.registrations(), ["doc:42"]);
  await service.until(() => cache.state("doc:42").state === "fresh");
  await service.run(cache.close());
  assert.deepEqual(client.registrations(), []);
  await service.close();
});
