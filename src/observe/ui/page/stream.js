// Server-sent events. Tries again where the response wasn't a stream, and asks for one event at a time where something
// on the way holds a stream back.

/** Milliseconds until another try after a response that wasn't a stream. */
const AGAIN = 2000;

/** Milliseconds without an event from which on the stream is taken to be held back. */
const SILENT = 3000;

/** Events that are asked for one at a time before another try with a stream. */
const SINGLE = 60;

/** A stream of states. `onData` gets each as text, `onRefused` is called if the server won't send any. */
export class Stream {
  #source = null;
  #again = null;
  #silence = null;
  /** Events that are still asked for one at a time. */
  #single = 0;

  constructor(onData, onRefused) {
    this.onData = onData;
    this.onRefused = onRefused;
  }

  open() {
    this.close();
    const isSingle = this.#single > 0;
    // The browser asks anew after the end of each.
    const source = new EventSource(new URL(isSingle ? '../events?once' : '../events', import.meta.url));
    this.#source = source;
    if (!isSingle) this.#listen();
    source.onmessage = (event) => {
      if (isSingle) this.#single -= 1;
      else this.#listen();
      this.onData(event.data);
      if (isSingle && this.#single === 0 && this.#source === source) this.open();
    };
    source.onerror = () => {
      if (this.#source !== source) return;
      // Closed for good: the response wasn't a stream. Otherwise the browser tries again by itself.
      if (source.readyState !== EventSource.CLOSED) {
        if (!isSingle) this.#listen();
        return;
      }
      clearTimeout(this.#silence);
      this.#source = null;
      this.#again = setTimeout(() => this.open(), AGAIN);
      this.onRefused();
    };
  }

  /** Waits for the next event of a stream. */
  #listen() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => {
      this.#single = SINGLE;
      this.open();
    }, SILENT);
  }

  close() {
    clearTimeout(this.#again);
    clearTimeout(this.#silence);
    this.#source?.close();
    this.#source = null;
  }
}

/** The endpoints after a state, from those before it; null where only changes are known. */
export function merged(before, { changed, names, rows }) {
  if (changed === undefined) return { names, rows, isNew: true };
  if (before === null) return null;
  before.isNew = false;
  for (const [place, row] of changed) before.rows[place] = row;
  return before;
}
