// What is wrong now, the worst first.
import { bytes, count, grouped, h, percent, put, rate, span } from './dom.js';

/** Share of a limit from which on it is worth a word. */
const NEAR = 0.9;
const FILLING = 0.8;

/** Seconds over which a queue is watched to grow. */
const GROWING = 10;

/** Place of values in a row of an endpoint. */
export const ROW = { inFlight: 0, waiting: 1, running: 2, kv: 3, age: 4, failures: 5, prefill: 6, perToken: 7, ejection: 8, events: 9 };

const queued = [];

/** Seconds for which an endpoint that serves may publish nothing. */
const SILENT = 10;

/** Since when endpoints have published nothing, and whether they have served since, by their ids. */
const silent = new Map();

/** Rows of each part of a request's work, which a row may be in twice; without a name where all do the same. */
function byPart({ names, rows }) {
  const [first] = names;
  if (names.every(([, , , parts]) => String(parts) === String(first[3]))) return [['', rows]];
  const groups = new Map();
  names.forEach(([, , , parts], place) => {
    for (const part of parts.length > 0 ? parts : ['other']) groups.set(part, [...(groups.get(part) ?? []), rows[place]]);
  });
  return [...groups].map(([part, own]) => [`${part} `, own]);
}

/** Endpoints that are ejected: by part, where a part is short of others. */
function ofEjections(all, groups) {
  const ejected = (rows) => rows.reduce((sum, row) => sum + (row[ROW.ejection] === null ? 0 : 1), 0);
  const total = ejected(all);
  if (total === 0) return [];
  const isShort = groups.some(([, rows]) => ejected(rows) * 2 > rows.length);
  const judged = total < all.length && isShort ? groups : [['', all]];
  return judged.filter(([, rows]) => ejected(rows) > 0).map(([part, rows]) => {
    const number = ejected(rows);
    if (number === rows.length) {
      return ['bad', `All ${part}endpoints ejected`, `All ${number} fail, so requests go to endpoints that fail.`];
    }
    const isMost = number * 2 > rows.length;
    const text = isMost ? 'that is more than half, so some requests go to them.' : 'they fail, and get probes only.';
    return [isMost ? 'bad' : 'warn', `${count(number, `${part}endpoint`)} ejected`, `of ${rows.length}: ${text}`];
  });
}

function ofEndpoints({ endpoints, stale_ms }) {
  const { rows } = endpoints;
  if (rows.length === 0) return [['bad', 'No endpoints', 'The pool has no endpoint that requests could go to.']];
  const groups = byPart(endpoints);
  const found = ofEjections(rows, groups);
  const report = (has, title, text) => {
    const number = rows.filter(has).length;
    if (number === 0) return;
    const whole = groups.filter(([, own]) => own.every(has)).map(([part]) => part.trim());
    const among = whole.length > 0 && number < rows.length ? `, among them all of ${whole.join(' and ')}` : '';
    found.push([whole.length > 0 ? 'bad' : 'warn', `${count(number, 'endpoint')} ${title}`, `of ${rows.length}${among}: ${text}`]);
  };
  report((row) => row[ROW.failures] > 0, "can't be scraped", 'the last scrape failed.');
  const limit = span(stale_ms / 1000);
  report((row) => row[ROW.age] === null || row[ROW.age] > stale_ms, 'with stale metrics', `not read for more than ${limit}; they count as the worst of the others.`);
  return found;
}

/** Endpoints that serve and whose KV events aren't heard. */
function ofEvents({ endpoints: { names, rows }, now_ms }) {
  const known = new Set();
  names.forEach(([id], place) => {
    const row = rows[place];
    if (row[ROW.events] === null || row[ROW.events][0] !== 'not heard') return;
    known.add(id);
    const entry = silent.get(id);
    const isServing = row[ROW.inFlight] > 0 || row[ROW.running] > 0;
    if (entry === undefined || now_ms < entry.since) silent.set(id, { since: now_ms, isServing });
    else entry.isServing ||= isServing;
  });
  for (const id of silent.keys()) if (!known.has(id)) silent.delete(id);
  const number = [...silent.values()].filter(({ since, isServing }) => isServing && now_ms - since >= SILENT * 1000).length;
  if (number === 0) return [];
  const text = `of ${rows.length}: requests run there, and no KV events came for ${SILENT} s or more. Their caches are estimated, or count as empty.`;
  return [[number === rows.length ? 'bad' : 'warn', `${count(number, 'endpoint')} not heard`, text]];
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
  const found = [...ofEndpoints(state), ...ofEvents(state), ...ofQueue(state), ...ofPicker(state, rates), ...ofCapacity(state)];
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
