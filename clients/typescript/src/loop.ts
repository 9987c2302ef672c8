/** Loops over a client's notifications: `for await (const notification of client)`. Loaded by those who loop. */

import type { Client, Latest } from "./client.ts";
import type { Notification } from "./registrations.ts";
import type { Source } from "./source.ts";

/** What a loop needs of its client. */
export interface Looped {
  readonly _client: Client;
  readonly _source: Source | null; // null: the client was closed before it began
  readonly _untaken: Latest;
  readonly _taken: Set<Notification>; // not acknowledged
  readonly _closed: () => boolean;
  readonly _until: (happened: () => boolean) => Promise<void>;
  readonly _watch: () => void;
}

export async function* loop(looped: Looped): AsyncGenerator<Notification, void> {
  const { _client: client, _source: source, _untaken: untaken, _taken: taken, _closed: closed } = looped;
  for (;;) {
    await looped._until(() => closed() || !!source?.stopped || untaken.size > 0);
    if (closed() || !source) return;
    if (source.stopped) throw source.stopped;
    for (const [key, notification] of untaken) {
      untaken.delete(key);
      if (!source._wished.has(notification.name)) {
        source._giveBack(notification); // unregistered while it waited here
        continue;
      }
      taken.add(notification);
      try {
        yield notification;
        if (taken.has(notification)) client.acknowledge(notification);
      } finally {
        // Left: to the front, as it was taken; unless something newer came meanwhile.
        if (taken.delete(notification) && !untaken.has(key)) {
          const others = [...untaken];
          untaken.clear();
          for (const [other, waits] of [[key, notification] as const, ...others]) untaken.set(other, waits);
        }
        looped._watch();
      }
      break; // others may loop, too
    }
  }
}
