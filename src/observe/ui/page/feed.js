// The state of the pool, once a second, while the page is visible: through the stream that all tabs share, or through
// one of its own where the browser has no shared workers.
import { Stream, merged } from './stream.js';

/** Seconds without a state from which on the page says that it is cut off. */
const LOST = 3.5;

/** Milliseconds between two looks at the connection. */
const POLL_MS = 500;

/** The shared stream; null where there can be none. `onFailed` is called if there turns out to be none. */
function shared(onData, onRefused, onFailed) {
  if (typeof SharedWorker === 'undefined') return null;
  let worker;
  try {
    worker = new SharedWorker('ui/shared.js', { type: 'module', name: 'usher' });
  } catch {
    return null;
  }
  worker.onerror = onFailed;
  worker.port.onmessage = ({ data: { data, refused } }) => (refused ? onRefused() : onData(data));
  return {
    open: () => worker.port.postMessage(true),
    close: () => worker.port.postMessage(false),
    stay: () => worker.port.postMessage(true),
  };
}

/** Follows the states. `onState` gets each, `onConnection` whether they come. */
export function follow(onState, onConnection) {
  let endpoints = null;
  let last = null;
  let refused = false;
  // Time from which on a state is missed, and of the last look.
  let [since, looked] = [performance.now(), performance.now()];

  const isVisible = () => document.visibilityState === 'visible';

  function take(data) {
    // What was under way when the tab was hidden.
    if (!isVisible()) return;
    const state = JSON.parse(data);
    endpoints = merged(endpoints, state.endpoints);
    if (endpoints === null) return;
    state.endpoints = endpoints;
    last = performance.now();
    refused = false;
    onState(state);
    notify();
  }

  function refuse() {
    refused = true;
    notify();
  }

  function alone() {
    link.close();
    link = new Stream(take, refuse);
    if (isVisible()) open();
  }

  let link = shared(take, refuse, alone) ?? new Stream(take, refuse);

  function open() {
    since = performance.now();
    link.open();
  }

  function close() {
    link.close();
    // Changes since then are missed.
    endpoints = null;
  }

  function notify() {
    const now = performance.now();
    // The machine slept.
    if (now - looked > LOST * 1000) since = now;
    looked = now;
    const seconds = (time) => (now - time) / 1000;
    const isAwaited = seconds(Math.max(since, last ?? 0)) < LOST;
    const isLive = last !== null && seconds(last) < LOST;
    onConnection({ since: last === null ? null : seconds(last), refused, isPaused: !isVisible(), isLive, isAwaited });
  }

  document.addEventListener('visibilitychange', () => {
    close();
    if (isVisible()) open();
    notify();
  });
  addEventListener('pagehide', close);
  addEventListener('pageshow', ({ persisted }) => {
    if (persisted && isVisible()) open();
  });
  setInterval(() => {
    if (isVisible()) link.stay?.();
    notify();
  }, POLL_MS);
  if (isVisible()) open();
}
