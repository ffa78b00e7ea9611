// One decision in words and a table, as `usher explain` prints it.
import { age, count, fixed, grouped, h, percent, seconds } from './dom.js';

const endpointOf = (decision, address) => decision.detailed.find((each) => each.address === address);
const primary = (decision) => decision.profiles.find((profile) => profile.primary);

function asked(decision) {
  const parts = [];
  if (decision.model === '') parts.push('no model that was read');
  else parts.push(decision.model === decision.target_model ? decision.model : `${decision.model}, served as ${decision.target_model}`);
  if (decision.input_tokens !== null) parts.push(`about ${grouped(decision.input_tokens)} prompt tokens`);
  else parts.push(`a body of ${grouped(decision.body_bytes)} bytes`);
  if (decision.max_output_tokens !== null) parts.push(`at most ${grouped(decision.max_output_tokens)} tokens back`);
  if (decision.stream) parts.push('streamed');
  if (decision.priority !== 0) parts.push(`priority ${decision.priority}`);
  return parts.join(', ');
}

function decided(decision) {
  const when = `${new Date(decision.decided_unix_ms).toISOString().replace('T', ' ').replace('Z', ' UTC')}`;
  const waited = decision.waited === null ? '' : `, ${seconds(decision.waited)} after its headers came`;
  const { candidates, endpoints } = decision;
  const among = candidates === endpoints ? count(endpoints, 'endpoint') : `${candidates} of ${count(endpoints, 'endpoint')}`;
  return `${when}${waited}, among ${among}`;
}

function sent(decision, profile) {
  const [pick] = profile.picks;
  if (pick === undefined) return 'nowhere';
  const id = endpointOf(decision, pick)?.id;
  const { runner_up: other, margin } = profile;
  let lead = '';
  if (other !== null && margin > 0) lead = `, ahead of ${other} by ${fixed(margin, 3)}`;
  else if (other !== null && margin < 0) lead = `, although the total of ${other} is higher by ${fixed(-margin, 3)}`;
  else if (other !== null && margin === 0) lead = `, level with ${other}`;
  else if (profile.survivors === 1) lead = ', the only one that was left';
  return `${pick}${id ? ` (${id})` : ''}${lead}`;
}

function response({ outcome, slow }) {
  if (!outcome) return 'none yet';
  const said = slow ? ', slower than nearly all' : '';
  const isToken = outcome.first_token !== null;
  const status = outcome.status === null ? 'no response' : `status ${outcome.status}`;
  const grpc = outcome.grpc_status === null ? '' : `, gRPC status ${outcome.grpc_status}`;
  const by = outcome.served_by === null ? '' : ` from ${outcome.served_by}`;
  const parts = [`${status}${grpc}${by}, ${outcome.ending} after ${seconds(outcome.total)}${isToken ? '' : said}`];
  if (isToken) parts.push(`TTFT ${seconds(outcome.first_token)}${said}`);
  if (outcome.per_token !== null) parts.push(`TPOT ${seconds(outcome.per_token)}`);
  if (outcome.output_tokens !== null) parts.push(`${grouped(outcome.output_tokens)} tokens`);
  if (outcome.cached_tokens !== null) {
    const all = outcome.prompt_tokens === null ? '' : ` of ${grouped(outcome.prompt_tokens)}`;
    parts.push(`${grouped(outcome.cached_tokens)}${all} prompt tokens cached`);
  }
  return parts.join('; ');
}

function parts(expected) {
  return `TTFT ${seconds(expected.first_token)} (slot ${seconds(expected.slot_wait)}, prompts before it ${seconds(expected.queued)}, ` +
    `${grouped(Math.max(0, expected.uncached_tokens))} uncached tokens ${seconds(expected.prefill)}), TPOT ${seconds(expected.per_token)}`;
}

function expectations(profile, outcome) {
  const of = (address) => profile.expected.find((expected) => expected.address === address);
  const facts = [];
  const [own, other] = [of(profile.picks[0]), of(profile.runner_up)];
  if (own) {
    const error = outcome?.first_token_error ?? null;
    const off = error === null ? '' : error >= 0 ? `; it took ${seconds(error)} longer` : `; it took ${seconds(-error)} less`;
    facts.push(['expected', parts(own) + off]);
  }
  if (other) facts.push(['at runner-up', `${profile.runner_up}: ${parts(other)}`]);
  return facts;
}

/** Tokens of the prompt that the engine of the pick held by its KV events, and how many were cached. */
function held(decision, profile) {
  const [pick] = profile.picks;
  const known = endpointOf(decision, pick)?.kv_events ?? null;
  if (known === null) return [];
  if (known.cached_tokens === null) {
    return [['KV events', `${pick} ${known.state}${known.state === 'not heard' ? '' : ", and the prompt's tokens were not known"}`]];
  }
  const error = decision.outcome?.cached_tokens_error ?? null;
  const many = error === 0 ? 'as many' : error > 0 ? `${grouped(error)} more` : `${grouped(-error)} fewer`;
  const off = error === null ? '' : `; ${many} were cached`;
  return [['KV events', `${pick} ${known.state}, with ${grouped(known.cached_tokens)} tokens of the prompt${off}`]];
}

function facts(decision) {
  const profile = primary(decision);
  const found = [['request', decision.request_id || 'without an id'], ['asks for', asked(decision)], ['decided', decided(decision)]];
  const { refusal } = decision;
  if (refusal) {
    found.push(['refused', `status ${refusal.status}${refusal.reason ? ` (${refusal.reason})` : ''}: ${refusal.message.trim()}`]);
  } else if (profile) {
    found.push(['sent to', sent(decision, profile)]);
  }
  for (const beside of decision.profiles.filter((each) => !each.primary && each.picks.length > 0)) {
    found.push(['beside it', `${beside.picks[0]}, picked by profile ${beside.profile}`]);
  }
  if (!refusal) found.push(['response', response(decision)]);
  if (profile) found.push(...held(decision, profile), ...expectations(profile, decision.outcome));
  return h('dl', { class: 'facts' }, ...found.flatMap(([name, text]) => [h('dt', {}, name), h('dd', { class: 'name' }, text)]));
}

function verdict(endpoint, profile) {
  if (endpoint.hidden_by === 'ejection') return 'ejected: it fails';
  if (endpoint.hidden_by) return 'set aside before';
  if (!profile) return '';
  const place = profile.picks.indexOf(endpoint.address);
  if (place === 0) return 'picked';
  if (place > 0) return `fallback ${place}`;
  const filter = profile.filters.find((each) => each.dropped.includes(endpoint.address));
  if (filter) return `dropped by ${filter.filter ?? '?'}`;
  return profile.runner_up === endpoint.address ? 'runner-up' : '';
}

/** The endpoints as one profile saw them: picks first, then by totals, those without one last. */
function table(decision, profile) {
  const scorers = profile?.scorers ?? [];
  const hasEvents = decision.detailed.some((each) => each.kv_events !== null);
  const known = ({ state, cached_tokens: tokens }) => (tokens === null ? state : `${grouped(tokens)}, ${state}`);
  const head = ['endpoint', 'result', ...(profile ? ['total', ...scorers.map((each) => each.scorer)] : []),
    'waiting', 'running', 'KV cache', 'in flight', 'cached', ...(hasEvents ? ['KV events'] : []), 'read'];
  const rows = decision.detailed.map((endpoint) => {
    const scored = profile?.scored.find((each) => each.address === endpoint.address);
    const pick = profile ? profile.picks.indexOf(endpoint.address) : -1;
    return { endpoint, scored, pick: pick < 0 ? Infinity : pick, total: scored?.total ?? -Infinity };
  });
  rows.sort((one, other) => (one.pick === other.pick ? (one.total === other.total ? 0 : other.total - one.total) : one.pick - other.pick));
  const shown = (value, text = String) => (value === null || value === undefined ? '–' : text(value));
  const cells = ({ endpoint, scored }) => [
    endpoint.address, verdict(endpoint, profile),
    ...(profile ? [shown(scored?.total, (total) => fixed(total, 3)),
      ...scorers.map((scorer, place) => shown(scored?.scores[place], (score) => `${scorer.weight} × ${fixed(score, 3)}`))] : []),
    shown(endpoint.waiting), shown(endpoint.running), shown(endpoint.kv_usage, percent), grouped(endpoint.in_flight),
    shown(endpoint.cached_tokens, grouped), ...(hasEvents ? [shown(endpoint.kv_events, known)] : []),
    endpoint.age_ms === null ? 'never' : `${age(endpoint.age_ms)} ago`,
  ];
  const row = (each) => {
    const kind = each.pick === 0 ? 'picked' : each.scored || !profile ? undefined : 'out';
    return h('tr', { class: kind }, ...cells(each).map((text, place) => h('td', { class: place > 1 ? 'number' : 'name' }, text)));
  };
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': `Endpoints of ${profile ? `profile ${profile.profile}` : 'the decision'}` },
    h('table', {},
      h('thead', {}, h('tr', {}, ...head.map((text, place) => h('th', { scope: 'col', class: place > 1 ? 'number' : undefined }, text)))),
      h('tbody', {}, ...rows.map(row))));
}

function profileParts(decision, profile) {
  let before = decision.candidates;
  const steps = profile.filters.map((filter) => {
    const text = `${filter.filter ?? '?'} left ${filter.left} of ${before}`;
    before = filter.left;
    return h('li', {}, text);
  });
  const left = profile.survivors - Math.min(profile.scored.length, profile.survivors);
  return [
    h('h3', { class: 'name' }, `Profile ${profile.profile}, with the picker ${profile.picker}`),
    steps.length > 0 ? h('ul', { class: 'steps' }, ...steps) : null,
    left > 0 ? h('p', { class: 'muted' }, `${count(left, 'candidate')} with lower totals not shown`) : null,
    table(decision, profile),
  ];
}

/** The explanation of a decision. */
export function explanation(decision) {
  const tables = decision.profiles.flatMap((profile) => profileParts(decision, profile));
  if (tables.length === 0 && decision.detailed.length > 0) tables.push(table(decision, null));
  return h('article', {}, facts(decision), ...tables.filter((each) => each !== null));
}
