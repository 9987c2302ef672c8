/**
 * What Python has and JavaScript lacks: a queue whose first element costs nothing to take, and a heap. Pure.
 */

const SLACK = 1_024;

/** First in, first out. Taken elements are cut off when they are many, so that taking costs the same however long the queue is. */
export class Queue<T> {
  #elements: T[] = [];
  #taken = 0;

  push(element: T): void {
    this.#elements.push(element);
  }

  first(): T | undefined {
    return this.#elements[this.#taken];
  }

  shift(): T | undefined {
    if (this.#taken === this.#elements.length) return undefined;
    const element = this.#elements[this.#taken];
    this.#taken += 1;
    if (this.#taken > SLACK && this.#taken * 2 > this.#elements.length) {
      this.#elements = this.#elements.slice(this.#taken);
      this.#taken = 0;
    }
    return element;
  }

  clear(): void {
    this.#elements = [];
    this.#taken = 0;
  }
}

/** The element that comes before all others is first. `before` is a total order: no two elements are equal. */
export class Heap<T> {
  readonly #before: (one: T, other: T) => boolean;
  #elements: T[] = [];

  constructor(before: (one: T, other: T) => boolean) {
    this.#before = before;
  }

  first(): T | undefined {
    return this.#elements[0];
  }

  push(element: T): void {
    const elements = this.#elements;
    let place = elements.push(element) - 1;
    while (place > 0) {
      const above = (place - 1) >> 1;
      const parent = elements[above] as T;
      if (!this.#before(element, parent)) break;
      elements[place] = parent;
      place = above;
    }
    elements[place] = element;
  }

  pop(): T | undefined {
    const elements = this.#elements;
    const first = elements[0];
    const moved = elements.pop() as T;
    if (elements.length > 0) this.#sink(moved);
    return first;
  }

  clear(): void {
    this.#elements = [];
  }

  /** From the top down, to where all below come later. */
  #sink(element: T): void {
    const elements = this.#elements;
    let place = 0;
    for (let below = 1; below < elements.length; below = 2 * place + 1) {
      if (below + 1 < elements.length && this.#before(elements[below + 1] as T, elements[below] as T)) below += 1;
      if (!this.#before(elements[below] as T, element)) break;
      elements[place] = elements[below] as T;
      place = below;
    }
    elements[place] = element;
  }
}
