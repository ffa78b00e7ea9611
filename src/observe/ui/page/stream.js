// Server-sent events, and tries again where the response wasn't a stream.

/** Milliseconds until another try after a response that wasn't a stream. */
const AGAIN = 2000;

/** A stream of states. `onData` gets each as text, `onRefused` is told that the server won't send any. */
export class Stream {
  #source = null;
  #again = null;

  constructor(onData, onRefused) {
    this.onData = onData;
    this.onRefused = onRefused;
  }

  open() {
    this.close();
    const source = new EventSource(new URL('../events', import.meta.url));
    this.#source = source;
    source.onmessage = (event) => this.onData(event.data);
    source.onerror = () => {
      // Closed for good: the response wasn't a stream. Otherwise the browser tries again by itself.
      if (this.#source !== source || source.readyState !== EventSource.CLOSED) return;
      this.#source = null;
      this.#again = setTimeout(() => this.open(), AGAIN);
      this.onRefused();
    };
  }

  close() {
    clearTimeout(this.#again);
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
