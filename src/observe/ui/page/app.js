// The page: follows the state of the pool, and explains decisions.
import { Decisions } from './decisions.js';
import { h, put, renew, span } from './dom.js';
import { Endpoints } from './endpoints.js';
import { showEvents } from './events.js';
import { explanation } from './explain.js';
import { follow } from './feed.js';
import { showCapacity, showPicker, showQueue, showSpeed, showTraffic } from './panels.js';
import { problems, showProblems } from './problems.js';
import { Rates } from './rates.js';
import { showReplicas } from './replicas.js';

const find = (id) => document.getElementById(id);

const rates = new Rates();
const decisions = new Decisions(document);
const endpoints = new Endpoints(document, (address) => decisions.find(address));
const dialog = find('explanation');

/** Build of the server that the page is of. */
let build = null;

function onState(state) {
  // Another version has another page.
  build ??= `${state.version} ${state.commit}`;
  if (build !== `${state.version} ${state.commit}`) location.reload();
  rates.add(state);
  put(find('pool'), state.pool);
  document.title = `Usher ${state.pool}`;
  showProblems(find('problems'), find('spoken'), problems(state, rates));
  showTraffic(find('traffic'), state, rates);
  showEvents(find('events-section'), find('events'), state, rates);
  showReplicas(find('replicas-section'), find('replicas'), state);
  showQueue(find('queue'), state);
  showCapacity(find('capacity'), state);
  showSpeed(find('speed'), state);
  showPicker(find('picker'), state);
  endpoints.take(state);
  decisions.take(state);
  if (dialog.open && unfinished !== null && !isLoading) load(unfinished.query, unfinished.name);
}

function onConnection({ since, refused, isPaused, isLive, isAwaited }) {
  const ago = since === null ? '' : `, last update ${span(since)} ago`;
  let [state, text] = ['waiting', 'connecting'];
  if (isPaused) [state, text] = ['waiting', 'paused while this tab is hidden'];
  else if (isLive) [state, text] = ['live', `live${ago}`];
  else if (refused) [state, text] = ['lost', `the server refuses the stream${ago}; trying again`];
  else if (since !== null && isAwaited) [state, text] = ['waiting', `updating${ago}`];
  else if (since !== null) [state, text] = ['lost', `disconnected${ago}; trying again`];
  find('connection').dataset.state = state;
  put(find('connection-text'), text);
  put(find('connection-spoken'), text.split(',')[0]);
  document.body.classList.toggle('lost', state === 'lost');
}

/** What the dialog shows, while a response of it has not ended. */
let unfinished = null;

/** Number of what the dialog shows: a late response to an earlier question is not shown. */
let asked = 0;
let isLoading = false;

async function load(query, name) {
  const [box, number] = [find('explained'), asked];
  let shown;
  isLoading = true;
  try {
    const response = await fetch(`decisions?${query}`, { cache: 'no-store' });
    if (!response.ok) throw new Error(await response.text());
    const page = await response.json();
    if (number !== asked) return;
    const isOver = page.decisions.every((decision) => decision.refusal || decision.outcome);
    unfinished = isOver ? null : { query, name };
    if (!page.recording) shown = [h('p', {}, 'Decisions are not recorded (--decision-records=0).')];
    else if (page.decisions.length === 0) shown = [h('p', { class: 'name' }, `No decision about ${name} is kept; ${page.kept} are.`)];
    else shown = page.decisions.map(explanation);
  } catch (error) {
    // What is there stays there.
    if (unfinished !== null || number !== asked) return;
    shown = [h('p', { class: 'bad-text' }, `The explanation can't be read: ${error.message}`)];
  } finally {
    if (number === asked) isLoading = false;
  }
  renew(box, shown);
}

function explain(query, name) {
  asked += 1;
  unfinished = null;
  find('explained').replaceChildren(h('p', { class: 'muted' }, 'loading'));
  if (!dialog.open) dialog.showModal();
  find('explanation-title').focus();
  load(query, name);
}

/** Opens what the address names: `#request=ID` or `#decision=NUMBER`. */
function onAddress() {
  const [, kind, value] = /^#(request|decision)=(.+)$/s.exec(location.hash) ?? [];
  if (value === undefined) {
    if (dialog.open) dialog.close();
    return;
  }
  let name = value;
  try {
    name = decodeURIComponent(value);
  } catch {
    // Not encoded: it is what it says.
  }
  if (kind === 'request') explain(`id=${encodeURIComponent(name)}&last=20`, `request ${name}`);
  else explain(`number=${encodeURIComponent(name)}`, `number ${name}`);
}

find('close').addEventListener('click', () => dialog.close());
dialog.addEventListener('click', (event) => {
  if (event.target === dialog) dialog.close();
});
dialog.addEventListener('close', () => {
  asked += 1;
  unfinished = null;
  if (location.hash.includes('=')) history.replaceState(null, '', location.pathname + location.search);
});
// The same link again is no change of the address.
document.addEventListener('click', (event) => {
  if (event.target.closest?.('a')?.hash === location.hash && location.hash.includes('=')) onAddress();
});
window.addEventListener('hashchange', onAddress);
document.addEventListener('keydown', (event) => {
  const isTyping = event.target.closest?.('input, select, textarea');
  if (event.key === '/' && !isTyping && !dialog.open && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    find('search').focus();
  } else if (event.key === 'Escape' && event.target === find('search')) {
    event.target.blur();
  }
});

follow(onState, onConnection);
onAddress();
