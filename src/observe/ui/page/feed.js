// The state of the pool, once a second, while the page is visible: browsers keep few connections to a server, and
// tabs in the background would take them all.

/** Seconds without a state from which on the page says that it is cut off. */
const LOST = 3.5;

/** Milliseconds until another try after an answer that wasn't a stream. */
const AGAIN = 2000;

/** Follows the states. `onState` gets each, `onConnection` whether they come. */
export function follow(onState, onConnection) {
  let source = null;
  let endpoints = null;
  let again = null;
  let last = null;
  let refused = false;

  function take(event) {
    const state = JSON.parse(event.data);
    const { changed, names, rows } = state.endpoints;
    if (changed === undefined) {
      endpoints = { names, rows, isNew: true };
    } else if (endpoints === null) {
      return;
    } else {
      endpoints.isNew = false;
      for (const [place, row] of changed) endpoints.rows[place] = row;
    }
    state.endpoints = endpoints;
    last = performance.now();
    refused = false;
    onState(state);
    tell();
  }

  function open() {
    clearTimeout(again);
    source = new EventSource('events');
    source.onmessage = take;
    source.onerror = () => {
      // Closed for good: the answer wasn't a stream. Otherwise the browser tries again by itself.
      if (source !== null && source.readyState === EventSource.CLOSED) {
        refused = true;
        source = null;
        again = setTimeout(open, AGAIN);
      }
      tell();
    };
  }

  function close() {
    clearTimeout(again);
    if (source !== null) source.close();
    source = null;
  }

  function tell() {
    const since = last === null ? null : (performance.now() - last) / 1000;
    const isPaused = document.visibilityState === 'hidden';
    onConnection({ since, refused, isPaused, isLive: since !== null && since < LOST });
  }

  document.addEventListener('visibilitychange', () => {
    close();
    if (document.visibilityState === 'visible') open();
    tell();
  });
  setInterval(tell, 500);
  if (document.visibilityState === 'visible') open();
}
