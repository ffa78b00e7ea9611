// One stream for all tabs of a browser, in a shared worker: a browser keeps six connections to a server, and a stream
// takes one of them.
import { Stream, merged } from './stream.js';

/** Milliseconds without a word after which a tab is taken to be gone: it says one each half second. */
const GONE = 4000;

/** Milliseconds for which a state is fit for a tab that has just come. */
const FRESH = 2000;

/** Tabs that listen, with the time of their last word. */
const tabs = new Map();

let state = null;
let at = -Infinity;

const stream = new Stream(
  (data) => {
    const next = JSON.parse(data);
    const endpoints = merged(state?.endpoints ?? null, next.endpoints);
    state = endpoints && { ...next, endpoints };
    at = performance.now();
    for (const tab of tabs.keys()) tab.postMessage({ data });
  },
  () => {
    for (const tab of tabs.keys()) tab.postMessage({ refused: true });
  },
);

function leave(tab) {
  if (!tabs.delete(tab) || tabs.size > 0) return;
  stream.close();
  state = null;
}

function hear(tab, isListening) {
  if (!isListening) {
    leave(tab);
    return;
  }
  const isNew = !tabs.has(tab);
  tabs.set(tab, performance.now());
  if (tabs.size === 1 && isNew) stream.open();
  else if (isNew && state !== null && performance.now() - at < FRESH) tab.postMessage({ data: JSON.stringify(state) });
  else if (isNew) stream.open();
}

self.onconnect = ({ ports: [tab] }) => {
  tab.onmessage = ({ data }) => hear(tab, data);
};

setInterval(() => {
  for (const [tab, heard] of tabs) if (performance.now() - heard > GONE) leave(tab);
}, 1000);
