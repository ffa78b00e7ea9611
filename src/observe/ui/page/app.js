// The page: follows the state of the pool, and explains decisions.
import { Decisions } from './decisions.js';
import { h, put, span } from './dom.js';
import { Endpoints } from './endpoints.js';
import { explanation } from './explain.js';
import { follow } from './feed.js';
import { showCapacity, showPicker, showQueue, showSpeed, showTraffic } from './panels.js';
import { problems, showProblems } from './problems.js';
import { Rates } from './rates.js';

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
  showQueue(find('queue'), state);
  showCapacity(find('capacity'), state);
  showSpeed(find('speed'), state);
  showPicker(find('picker'), state);
  endpoints.take(state);
  decisions.take(state);
}

function onConnection({ since, refused, isPaused, isLive }) {
  const ago = since === null ? '' : `, last update ${span(since)} ago`;
  let [state, text] = ['waiting', 'connecting'];
  if (isPaused) [state, text] = ['waiting', 'paused while this tab is hidden'];
  else if (isLive) [state, text] = ['live', `live${ago}`];
  else if (refused) [state, text] = ['lost', `the server refuses the stream${ago}; trying again`];
  else if (since !== null) [state, text] = ['lost', `disconnected${ago}; trying again`];
  find('connection').dataset.state = state;
  put(find('connection-text'), text);
  put(find('connection-spoken'), text.split(',')[0]);
  document.body.classList.toggle('lost', state === 'lost');
}

async function explain(query, name) {
  const box = find('explained');
  box.replaceChildren(h('p', { class: 'muted' }, 'loading'));
  if (!dialog.open) dialog.showModal();
  find('explanation-title').focus();
  try {
    const answer = await fetch(`decisions?${query}`, { cache: 'no-store' });
    if (!answer.ok) throw new Error(await answer.text());
    const page = await answer.json();
    if (!page.recording) box.replaceChildren(h('p', {}, 'Decisions are not recorded (--decision-records=0).'));
    else if (page.decisions.length === 0) box.replaceChildren(h('p', { class: 'name' }, `No decision about ${name} is kept; ${page.kept} are.`));
    else box.replaceChildren(...page.decisions.map(explanation));
  } catch (error) {
    box.replaceChildren(h('p', { class: 'bad-text' }, `The explanation can't be read: ${error.message}`));
  }
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
  if (kind === 'request') explain(`id=${encodeURIComponent(name)}`, `request ${name}`);
  else explain(`number=${encodeURIComponent(name)}`, `number ${name}`);
}

find('close').addEventListener('click', () => dialog.close());
dialog.addEventListener('click', (event) => {
  if (event.target === dialog) dialog.close();
});
dialog.addEventListener('close', () => {
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
