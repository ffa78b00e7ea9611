// KV events: what is known of the engines' caches, and how right it is.
import { count, grouped, h, note, refresh, span, table } from './dom.js';
import { ROW } from './problems.js';

/** Endpoints that are listed, those of which least is known first. */
const LISTED = 20;

const STATES = ['not heard', 'partial', 'in sync'];

/** Age of the newest batch by the engine's clock, in whole seconds. */
const newest = ([, , , at], unixMs) => (at === null ? 'none' : `${span((unixMs - at) / 1000)} ago`);

/** State, gaps and restarts of an endpoint in words. */
export function described(events, unixMs) {
  const [state, gaps, restarts] = events;
  return `KV events ${state}, ${count(gaps, 'gap')}, ${count(restarts, 'restart')}, newest ${newest(events, unixMs)}`;
}

function tokens(rates) {
  const [predicted, cached] = [rates.grown('predicted'), rates.grown('cached')];
  if (predicted === null) return 'Cached tokens: measuring.';
  if (predicted === 0 && cached === 0) return 'No response named cached tokens in the last 10 s.';
  return `Prompt tokens of the last 10 s: ${grouped(predicted)} predicted to be cached, ${grouped(cached)} were.`;
}

/** Shows them; hides the section where no plugin follows any. */
export function showEvents(section, box, state, rates) {
  section.hidden = state.kv_events === null;
  if (section.hidden) return;
  const { names, rows } = state.endpoints;
  const all = names.map(([id], place) => ({ id, events: rows[place][ROW.events] }));
  const of = (wanted) => all.filter(({ events }) => events[0] === wanted);
  const listed = STATES.flatMap(of);
  const shown = listed.slice(0, LISTED).map(({ id, events }) => [
    [id, false], [events[0], false], [grouped(events[1]), true], [grouped(events[2]), true], [newest(events, state.unix_ms), true],
  ]);
  const sums = [...STATES].reverse().map((each) => `${grouped(of(each).length)} ${each}`).join(', ');
  const queued = `${count(state.kv_events.queued, 'message waits', 'messages wait')} to be applied.`;
  const text = `${count(all.length, 'endpoint')}: ${sums}. ${queued} ${tokens(rates)}`;
  refresh(box, { text, shown, all: all.length }, () => {
    const head = [['Endpoint', false], ['State', false], ['Gaps', true], ['Restarts', true], ['Newest event', true]];
    const more = listed.length - shown.length;
    return [h('p', {}, text), ...(shown.length > 0 ? [table('KV events by endpoint', head, shown)] : []),
      ...(more > 0 ? [note(`${count(more, 'endpoint')} more; choose one above to see its state.`)] : [])];
  });
}
