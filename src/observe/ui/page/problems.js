// What is wrong now, the worst first.
import { bytes, count, grouped, h, percent, put, rate, span } from './dom.js';

/** Share of a limit from which on it is worth a word. */
const NEAR = 0.9;
const FILLING = 0.8;

/** Seconds over which a queue is watched to grow. */
const GROWING = 10;

/** Place of values in a row of an endpoint. */
export const ROW = { inFlight: 0, waiting: 1, running: 2, kv: 3, age: 4, failures: 5, prefill: 6, perToken: 7, ejection: 8 };

const queued = [];

function ofEndpoints({ endpoints: { rows }, stale_ms }) {
  const all = rows.length;
  if (all === 0) return [['bad', 'No endpoints', 'The pool has no endpoint that requests could go to.']];
  const of = (has) => rows.reduce((sum, row) => sum + (has(row) ? 1 : 0), 0);
  const found = [];
  const ejected = of((row) => row[ROW.ejection] !== null);
  if (ejected === all) {
    found.push(['bad', 'All endpoints ejected', `All ${all} fail, so requests go to endpoints that fail.`]);
  } else if (ejected > 0) {
    const isMost = ejected * 2 > all;
    const text = isMost ? 'that is more than half, so some requests go to them.' : 'they fail, and get probes only.';
    found.push([isMost ? 'bad' : 'warn', `${count(ejected, 'endpoint')} ejected`, `of ${all}: ${text}`]);
  }
  const failing = of((row) => row[ROW.failures] > 0);
  if (failing > 0) {
    const level = failing === all ? 'bad' : 'warn';
    found.push([level, `${count(failing, 'endpoint')} can't be scraped`, `of ${all}: the last scrape failed.`]);
  }
  const stale = of((row) => row[ROW.age] === null || row[ROW.age] > stale_ms);
  if (stale > 0) {
    const level = stale === all ? 'bad' : 'warn';
    const limit = span(stale_ms / 1000);
    found.push([level, `${count(stale, 'endpoint')} with stale metrics`, `of ${all}: not read for more than ${limit}; they count as the worst of the others.`]);
  }
  return found;
}

function ofQueue({ queue, now_ms }) {
  if (queue === null) return [];
  const found = [];
  if (queued.length > 0 && now_ms < queued.at(-1).at) queued.length = 0;
  queued.push({ at: now_ms, waiting: queue.waiting });
  while (queued[0].at < now_ms - GROWING * 1000) queued.shift();
  const grown = queue.waiting - queued[0].waiting;
  if (queue.waiting > 0 && grown > 0) {
    found.push(['warn', 'Queue is growing', `${count(queue.waiting, 'request')} wait, ${grown} more than ${GROWING} s ago.`]);
  } else if (queue.waiting > 0) {
    found.push(['warn', 'Requests wait', `${grouped(queue.waiting)} of them: the pool is full, or empty.`]);
  }
  for (const band of queue.bands) {
    const share = Math.max(band.waiting / Math.max(1, band.most), band.bytes / Math.max(1, band.most_bytes));
    if (share >= FILLING) {
      found.push(['bad', `Queue of priority ${band.priority} fills up`, `It is ${percent(share)} full; when it is full, its requests are refused.`]);
    }
  }
  return found;
}

function ofCapacity({ plans }) {
  const found = [];
  for (const policy of plans?.plans ?? []) {
    const conditions = [...(policy.plan?.conditions ?? []), ...(policy.held ? [policy.held.condition] : [])];
    if (conditions.length > 0) {
      found.push(['warn', `Capacity policy ${policy.policy}`, `${conditions.join(', ')}${policy.held ? `: ${policy.held.why}` : ''}`]);
    }
  }
  return found;
}

function ofPicker({ memory, config }, rates) {
  const found = [];
  if (!config.current) {
    const since = config.last_error ? ` since ${config.last_error.at}` : '';
    const doing = `The configuration of ${config.loaded_at} runs on. The file${config.file ? ` ${config.file}` : ''} can't be used${since}.`;
    found.push(['bad', 'Reload failed', doing, config.last_error?.message]);
  }
  const refused = rates.perSecond('refused');
  if (refused > 0) {
    found.push(['warn', 'Requests are refused', `${rate(refused)} per second. The list of decisions has the reasons.`]);
  }
  if (memory.limit !== null && memory.used > memory.limit * NEAR) {
    found.push(['bad', 'Memory budget nearly used', `${bytes(memory.used)} of ${bytes(memory.limit)}.`]);
  }
  return found;
}

/** Level, title, text and details of each problem. */
export function problems(state, rates) {
  const found = [...ofEndpoints(state), ...ofQueue(state), ...ofPicker(state, rates), ...ofCapacity(state)];
  return found.sort((one, other) => (one[0] === 'bad' ? 0 : 1) - (other[0] === 'bad' ? 0 : 1));
}

/** Shows them, if they are others than those shown, and lets screen readers say their titles. */
export function showProblems(list, spoken, found) {
  const shown = JSON.stringify(found);
  if (list.dataset.shown === shown) return;
  list.dataset.shown = shown;
  put(spoken, found.length > 0 ? found.map(([, title]) => title).join('; ') : 'Nothing is wrong');
  const items = found.map(([level, title, text, details]) =>
    h('li', { class: level }, h('b', {}, title), text, details ? h('pre', { class: 'name', tabindex: 0, 'aria-label': 'The error' }, details) : null));
  list.replaceChildren(...(items.length > 0 ? items : [h('li', {}, 'Nothing is wrong that this picker knows of.')]));
}
