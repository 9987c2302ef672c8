/**
 * For React: `useLive`. Needs React 18 or later, which is no dependency of this package.
 */

import { useCallback, useRef, useSyncExternalStore } from "react";
import type { LiveCache } from "./livecache.ts";
import { type Live, same } from "./watching.ts";

export type { Live } from "./watching.ts";

/**
 * An object of a LiveCache, shown: fetched when the component mounts, and rendered again when its value, its state or the error changes.
 *
 *     const { value, state, error } = useLive(cache, `doc:${number}`);
 *
 * Make the cache once, outside of components. On a server it renders what the cache holds.
 */
export function useLive<V>(cache: LiveCache<V>, id: string): Live<V> {
  const last = useRef<Live<V> | null>(null);
  const subscribe = useCallback((changed: () => void) => cache.subscribe(id, changed), [cache, id]);
  const read = useCallback(() => {
    const live = cache.live(id);
    if (last.current === null || !same(last.current, live)) last.current = live;
    return last.current; // the same as long as it says the same: React renders again whenever it is another
  }, [cache, id]);
  return useSyncExternalStore(subscribe, read, read);
}
