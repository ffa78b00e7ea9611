// Replicas: how lately each was heard, and what they publish through the state store.
import { bytes, count, grouped, h, note, percent, refresh, span, table } from './dom.js';

/** Replicas that are listed, the most silent first. */
const LISTED = 20;

function store({ is_connected: isConnected, shares_prefixes: sharesPrefixes, shares_learned: sharesLearned, sent_bytes: sent, received_bytes: received }) {
  const state = isConnected ? 'The state store is connected' : 'The state store is away';
  const prefixes = sharesPrefixes ? '' : '; prefixes are not shared';
  const learned = sharesLearned ? '' : '; learned state is not handed on';
  return `${state}${prefixes}${learned}. Sent ${bytes(sent)}, received ${bytes(received)} since the start.`;
}

function prefixes({ stream_bytes: stream, dropped_blocks: dropped, matched: { own, others, restored } }) {
  const all = own + others + restored;
  const lost = dropped > 0 ? ` ${count(dropped, 'block')} waited too long to be published.` : '';
  const hits = all === 0 ? 'No prompt has been found in a cache yet.'
    : `Of ${count(all, 'block')} found in caches ${percent(others / all)} were published by others, ${percent(restored / all)} are from before.`;
  return `The stream of prefixes has ${bytes(stream)}.${lost} ${hits}`;
}

/** Shows them; hides the section where there is no state store. */
export function showReplicas(section, box, { replicas }) {
  section.hidden = replicas === null;
  if (section.hidden) return;
  const ages = Object.entries(replicas.ages).sort((one, other) => other[1] - one[1]);
  const rows = ages.slice(0, LISTED).map(([name, age]) => [[name, false], [age < 1 ? 'now' : `${span(age)} ago`, true]]);
  const text = `${store(replicas)} ${prefixes(replicas)}`;
  refresh(box, { text, rows, all: ages.length }, () => {
    const more = ages.length - rows.length;
    return [h('p', {}, text),
      rows.length > 0 ? table('Other replicas', [['Other replica', false], ['Heard', true]], rows) : note('No other replica was heard in the last five minutes.'),
      ...(more > 0 ? [note(`${grouped(more)} more were heard later.`)] : [])];
  });
}
