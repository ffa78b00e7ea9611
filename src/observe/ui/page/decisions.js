// The list of decisions, newest first, and the search in it. Its roles are explicit, as it is no table for the eye on a
// small screen.
import { clock, grouped, h, put, seconds } from './dom.js';

/** Decisions that are listed. */
const LISTED = 200;

/** Milliseconds between two looks at the list. */
const PAUSE = 1500;

/** Milliseconds after a key until the search begins. */
const TYPING = 150;

/** Where the explanation of a decision is. */
export function link(decision) {
  const id = decision.request_id;
  return id === '' ? `#decision=${decision.number}` : `#request=${encodeURIComponent(id)}`;
}

/** What became of a request, in a few words. */
export function result({ refusal, outcome, slow }) {
  if (refusal) return `refused with ${refusal.status}${refusal.reason ? `, ${refusal.reason}` : ''}`;
  if (!outcome) return 'none yet';
  const status = outcome.status === null ? 'no response' : String(outcome.status);
  return `${status}${slow ? ', slow' : ''}${outcome.ending === 'complete' ? '' : `, ${outcome.ending}`}`;
}

function row(decision) {
  const { outcome, picked, picked_id } = decision;
  const level = decision.failed ? 'bad-text' : decision.slow ? 'warn-text' : undefined;
  const sent = h('td', { role: 'cell', class: 'name', 'data-title': 'Sent to' }, picked ?? '–');
  if (picked_id) sent.title = picked_id;
  const cell = (title, kind, text) => h('td', { role: 'cell', class: kind, 'data-title': title }, text);
  return h('tr', { role: 'row' },
    h('td', { role: 'cell' }, h('a', { href: link(decision), class: 'name' }, decision.request_id || 'without an id')),
    cell('Decided', 'time', clock(decision.decided_unix_ms)),
    cell('Model', 'name', decision.model || '–'),
    sent,
    cell('TTFT', 'number', typeof outcome?.first_token === 'number' ? seconds(outcome.first_token) : '–'),
    cell('Result', level, result(decision)));
}

/** The list. */
export class Decisions {
  #shown = new Map();
  #sequence = null;
  #query = null;
  #at = -Infinity;
  #isBusy = false;
  #typing = null;
  #records = null;

  constructor(root) {
    const find = (id) => root.getElementById(id);
    this.table = find('list');
    this.body = find('list-rows');
    this.empty = find('decisions-empty');
    this.scroll = find('decisions-scroll');
    this.count = find('decisions-count');
    [this.search, this.which] = ['search', 'decisions-show'].map(find);
    this.search.addEventListener('input', () => {
      clearTimeout(this.#typing);
      this.#typing = setTimeout(() => this.#look(), TYPING);
    });
    this.which.addEventListener('change', () => this.#look());
    this.search.addEventListener('keydown', (event) => {
      if (event.key === 'ArrowDown') this.#focus(event, 0);
      if (event.key === 'Enter' && this.#shown.size > 0) this.body.querySelector('a').click();
    });
    this.scroll.addEventListener('keydown', (event) => {
      const links = [...this.body.querySelectorAll('a')];
      const place = links.indexOf(document.activeElement);
      if (event.key === 'ArrowDown') this.#focus(event, place + 1);
      else if (event.key === 'ArrowUp' && place > 0) this.#focus(event, place - 1);
      else if (event.key === 'ArrowUp' && place === 0) this.search.focus();
      else if (event.key === 'Home') this.#focus(event, 0);
      else if (event.key === 'End') this.#focus(event, links.length - 1);
    });
  }

  /** Searches for a text. */
  find(text) {
    this.search.value = text;
    this.#look();
    this.search.focus();
  }

  /** Takes a state: looks again if there are other decisions. */
  take({ records }) {
    this.#records = records;
    if (records === null) {
      this.#say('Decisions are not recorded (--decision-records=0).');
      return;
    }
    const isNew = records.sequence !== this.#sequence;
    if (isNew && performance.now() - this.#at >= PAUSE) this.#look();
  }

  #focus(event, place) {
    const links = this.body.querySelectorAll('a');
    event.preventDefault();
    links[Math.min(place, links.length - 1)]?.focus();
  }

  #say(text) {
    put(this.empty, text);
    this.empty.hidden = false;
    this.table.hidden = true;
    this.#shown.clear();
    this.body.replaceChildren();
  }

  async #look() {
    if (this.#records === null) return;
    const search = this.search.value.trim();
    const parts = ['brief', `last=${LISTED}`];
    if (search !== '') parts.push(`search=${encodeURIComponent(search)}`);
    if (this.which.value !== '') parts.push(this.which.value);
    this.#query = parts.join('&');
    if (this.#isBusy) return;
    this.#isBusy = true;
    try {
      for (let query = null; query !== this.#query;) {
        query = this.#query;
        this.#at = performance.now();
        const response = await fetch(`decisions?${query}`, { cache: 'no-store' });
        if (response.ok) this.#show(await response.json(), search !== '' || this.which.value !== '');
        else this.#say(`The decisions can't be read: ${await response.text()}`);
      }
    } catch {
      // The server is away: the next state brings another look.
    } finally {
      this.#isBusy = false;
    }
  }

  #show(page, isChosen) {
    this.#sequence = page.sequence;
    put(this.count, `${grouped(page.matched)} of ${grouped(page.kept)} kept${page.matched > page.decisions.length ? `, the last ${page.decisions.length} listed` : ''}`);
    if (page.decisions.length === 0) {
      this.#say(isChosen ? 'No decision matches.' : 'No decision has been made yet.');
      return;
    }
    this.empty.hidden = true;
    this.table.hidden = false;
    const before = this.#shown;
    this.#shown = new Map();
    const rows = page.decisions.reverse().map((decision) => {
      const text = JSON.stringify(decision);
      const known = before.get(decision.number);
      const made = known && known.text === text ? known : { text, row: row(decision) };
      // The link that has the focus keeps it when its request ends.
      if (known && known !== made && known.row.contains(document.activeElement)) {
        known.row.replaceChildren(known.row.firstElementChild, ...[...made.row.children].slice(1));
        made.row = known.row;
      }
      this.#shown.set(decision.number, made);
      return made.row;
    });
    place(this.body, rows);
  }
}

/** Puts rows into a body in this order, and moves none that is in its place: a moved one loses the focus. */
function place(body, rows) {
  const kept = new Set(rows);
  for (const old of [...body.children]) if (!kept.has(old)) old.remove();
  let next = body.firstElementChild;
  for (const each of rows) {
    if (each === next) next = next.nextElementSibling;
    else body.insertBefore(each, next);
  }
}
