// Traffic, queues, capacity, learned speed and the picker itself.
import { bytes, count, grouped, h, note, percent, put, rate, refresh, seconds, span, table } from './dom.js';

const SVG = 'http://www.w3.org/2000/svg';

const TILES = [
  ['requests', 'Requests per second'],
  ['first', 'TTFT'],
  ['token', 'TPOT'],
  ['whole', 'E2E latency'],
  ['hits', 'Prompt tokens cached'],
  ['flight', 'Under way'],
];

const tiles = new Map();

function makeTiles(list) {
  for (const [key, title] of TILES) {
    const value = h('span');
    const note = h('small');
    const box = h('dd', { 'data-tile': key }, value, note);
    tiles.set(key, { value, note, box });
    list.append(h('div', {}, h('dt', {}, title), box));
  }
  const picture = document.createElementNS(SVG, 'svg');
  picture.setAttribute('viewBox', '0 0 120 26');
  picture.setAttribute('preserveAspectRatio', 'none');
  picture.setAttribute('aria-hidden', 'true');
  const line = document.createElementNS(SVG, 'polyline');
  picture.append(line);
  tiles.get('requests').box.append(picture);
  tiles.get('requests').line = line;
}

function tile(key, value, note) {
  put(tiles.get(key).value, value);
  put(tiles.get(key).note, note);
}

/** Shows a time. `without`: why there is none although responses ended. */
function times(rates, key, name, without) {
  const half = rates.quantile(name, 0.5);
  const most = rates.quantile(name, 0.9);
  const text = (found) => `${found.isMore ? 'over ' : ''}${seconds(found.seconds)}`;
  const why = without !== undefined && rates.quantile('duration', 0.5) ? without : 'no response ended';
  tile(key, half ? text(half) : '–', half ? `median; p90 ${text(most)}` : why);
}

/** Shows rates and times. */
export function showTraffic(list, state, rates) {
  if (tiles.size === 0) makeTiles(list);
  const { traffic } = state;
  const routed = rates.perSecond('routed');
  const refused = rates.perSecond('refused');
  tile('requests', routed === null ? '–' : rate(routed), routed === null ? 'measuring' : `${rate(refused)} refused per second`);
  const line = rates.line;
  const top = Math.max(1, ...line);
  const points = line.map((value, place) => `${place + 120 - line.length},${(25 - (value / top) * 24).toFixed(1)}`);
  tiles.get('requests').line.setAttribute('points', points.join(' '));
  const isStreamed = rates.quantile('first_token', 0.5) !== null;
  times(rates, 'first', 'first_token', 'no response was streamed');
  times(rates, 'token', 'per_token', isStreamed ? 'no server has named the tokens' : 'no response was streamed');
  times(rates, 'whole', 'duration');
  const hits = rates.hitRate;
  if (traffic.prompts === null) tile('hits', '–', 'no server has named any');
  else tile('hits', hits === null ? '–' : percent(hits), hits === null ? 'no server named any' : 'of responses that name them');
  const tokens = rates.perSecond('output_tokens');
  tile('flight', grouped(traffic.running), tokens === null ? '' : `${rate(tokens)} tokens per second come back`);
}

/** Shows the queues by priority. */
export function showQueue(box, { queue }) {
  refresh(box, queue, () => {
    if (queue === null) return [note('Flow control is off: requests never wait here.')];
    const full = queue.saturation === null ? 'not known' : percent(queue.saturation);
    const all = `${count(queue.waiting, 'request')} wait (${bytes(queue.bytes)}). The pool is ${full} full.`;
    const rows = queue.bands.map((band) => [
      [String(band.priority), true], [grouped(band.waiting), true], [grouped(band.most), true], [bytes(band.bytes), true],
    ]);
    const head = [['Priority', true], ['Waiting', true], ['At most', true], ['Bodies', true]];
    return [h('p', {}, all), rows.length > 0 ? table('Queues by priority', head, rows) : note('No priority has been used.')];
  });
}

/** What is shown of a policy. */
function policyOf({ policy, plan, held }) {
  if (plan === null) return { policy, note: held ? `No plan: ${held.why}` : 'No plan yet.' };
  const rows = plan.roles.map((role) => [
    [role.name, false], [`${role.ready} of ${role.current}`, true], [String(role.desired), true],
    [role.reasons.join(', ') || 'as it is', false],
  ]);
  const state = [plan.state, ...plan.conditions].join(', ');
  return { policy, rows, note: `State: ${state}${held ? `; held: ${held.why}` : ''}` };
}

/** Shows what policies ask for. */
export function showCapacity(box, { plans }) {
  const policies = plans?.plans.map(policyOf) ?? null;
  refresh(box, policies, () => {
    if (policies === null) return [note('There is no capacity policy.')];
    if (policies.length === 0) return [note('No policy is known yet.')];
    const head = [['Role', false], ['Ready', true], ['Wanted', true], ['Because', false]];
    return policies.flatMap(({ policy, rows, note: text }) =>
      [h('h3', { class: 'name' }, policy), ...(rows ? [table(`Roles of ${policy}`, head, rows)] : []), note(text)]);
  });
}

/** Shows what the latency model has learned of each group of endpoints. */
export function showSpeed(box, { latency }) {
  const groups = latency?.groups.map((group) => ({
    name: [group.accelerator, group.role].filter(Boolean).join(', ') || 'all endpoints',
    prefill: grouped(group.prefill_throughput),
    token: seconds(group.output_token_s),
    samples: group.samples,
  })) ?? null;
  refresh(box, groups, () => {
    if (groups === null) return [note('No plugin learns speeds (expected-latency-scorer does).')];
    if (groups.length === 0) return [note('Nothing was learned yet.')];
    const head = [['Endpoints', false], ['Prompt tokens/s', true], ['Output token', true], ['Learned from', true]];
    return [table('Learned speed by kind of endpoint', head, groups.map(({ name, prefill, token, samples }) =>
      [[name, false], [prefill, true], [token, true], [count(samples, 'request'), true]]))];
  });
}

/** Shows the picker's version, configuration, memory and uptime. */
export function showPicker(list, state) {
  const { config, memory, records } = state;
  const facts = [
    ['Version', `${state.version}${/^[0-9a-f]{7,}$/.test(state.commit) ? ` (${state.commit.slice(0, 12)})` : ''}, up for ${span(state.now_ms / 1000)}`],
    ['Configuration', `${config.file ?? config.source}, number ${config.generation}, ${config.current ? 'current' : 'older than its file'}`],
    ['Memory', memory.limit === null ? `${bytes(memory.used)} counted, no limit` : `${bytes(memory.used)} of ${bytes(memory.limit)} counted`],
    ['Refused for memory', grouped(memory.refused)],
    ['Decisions', records === null ? 'not recorded' : `${grouped(records.decided)} made, ${grouped(records.kept)} kept`],
  ];
  refresh(list, facts, () => facts.flatMap(([name, text]) => [h('dt', {}, name), h('dd', {}, text)]));
}
