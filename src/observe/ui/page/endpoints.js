// The list of endpoints: only the rows that can be seen are in the document, and only those that changed are touched.
import { grouped, h, percent, put, seconds, span } from './dom.js';
import { described as eventsOf } from './events.js';
import { ROW } from './problems.js';

/** Rows beyond each edge of what is visible. */
const BEYOND = 4;

const TROUBLE = { bad: 0, warn: 1, good: 2 };

/** Level and words for the state of an endpoint. */
function condition(row, nowMs, staleMs) {
  const ejection = row[ROW.ejection];
  if (ejection !== null) {
    const [cause, since, successes, isProbing] = ejection;
    const progress = isProbing ? ', probing' : successes > 0 ? `, ${successes} good` : '';
    return ['bad', `ejected: ${cause}, ${span((nowMs - since) / 1000)}${progress}`];
  }
  if (row[ROW.age] === null) return ['warn', row[ROW.failures] > 0 ? "can't be scraped" : 'never read'];
  if (row[ROW.age] > staleMs) return ['warn', row[ROW.failures] > 0 ? "stale: can't be scraped" : 'stale'];
  return row[ROW.failures] > 0 ? ['warn', 'last scrape failed'] : ['good', 'ok'];
}

/** Order of names: "pod-2" is before "pod-10". */
const names = new Intl.Collator('en', { numeric: true });

const load = (row) => (row[ROW.waiting] ?? 0) + (row[ROW.running] ?? 0);

const ORDERS = {
  state: (list, at) => list.sort((a, b) => TROUBLE[at(a).level] - TROUBLE[at(b).level] || a - b),
  name: (list, at) => list.sort((a, b) => at(a).rank - at(b).rank),
  load: (list, at) => list.sort((a, b) => load(at(b).row) - load(at(a).row) || a - b),
  kv: (list, at) => list.sort((a, b) => (at(b).row[ROW.kv] ?? -1) - (at(a).row[ROW.kv] ?? -1) || a - b),
  speed: (list, at) => list.sort((a, b) => (at(a).row[ROW.prefill] ?? Infinity) - (at(b).row[ROW.prefill] ?? Infinity) || a - b),
};

/** Id, address and role. */
const described = (item) => `${item.id} at ${item.address}${item.role ? `, ${item.role}` : ''}`;

function meter() {
  const text = h('b');
  const all = h('i', { class: 'all' });
  const part = h('i');
  return { box: h('span', { class: 'meter', role: 'gridcell' }, h('span', { class: 'track', 'aria-hidden': 'true' }, all, part), text), text, all, part };
}

/** A row of the document, used for one endpoint after another. */
class Line {
  constructor() {
    this.name = h('span', { role: 'gridcell', class: 'name' });
    this.state = h('span', { role: 'gridcell' });
    [this.load, this.kv] = [meter(), meter()];
    this.flight = h('span', { role: 'gridcell', class: 'number' });
    this.read = h('span', { role: 'gridcell', class: 'number' });
    this.speed = h('span', { role: 'gridcell', class: 'number' });
    this.box = h('div', { role: 'row', class: 'grid-row' }, this.name, this.state, this.load.box, this.kv.box, this.flight, this.read, this.speed);
  }

  show(item, most) {
    const { row } = item;
    put(this.name, item.name);
    this.name.title = described(item);
    put(this.state, item.text);
    this.state.className = `state-${item.level}`;
    this.state.title = item.text;
    const known = row[ROW.waiting] !== null || row[ROW.running] !== null;
    put(this.load.text, known ? `${grouped(row[ROW.running] ?? 0)} + ${grouped(row[ROW.waiting] ?? 0)}` : '–');
    this.load.part.style.transform = `scaleX(${(row[ROW.running] ?? 0) / most})`;
    this.load.all.style.transform = `scaleX(${load(row) / most})`;
    put(this.kv.text, row[ROW.kv] === null ? '–' : percent(row[ROW.kv]));
    this.kv.part.style.transform = `scaleX(${Math.min(1, row[ROW.kv] ?? 0)})`;
    put(this.flight, grouped(row[ROW.inFlight]));
    const read = row[ROW.age];
    put(this.read, read === null ? 'never' : `< ${read < 1000 ? `${read} ms` : span(read / 1000)}`);
    put(this.speed, row[ROW.prefill] === null ? '–' : `${grouped(row[ROW.prefill])} tok/s, ${seconds(row[ROW.perToken])}`);
  }
}

/** The list. `onChoose` gets the address of an endpoint that somebody wants to know more of. */
export class Endpoints {
  #items = [];
  #order = [];
  #lines = new Map();
  #spare = [];
  #active = 0;
  #wanted = false;
  /** A row was chosen, by a key or a click. */
  #isChosen = false;

  constructor(root, onChoose) {
    const find = (id) => root.getElementById(id);
    this.grid = find('grid');
    this.rows = find('rows');
    this.head = this.grid.firstElementChild;
    this.count = find('endpoints-count');
    this.empty = find('endpoints-empty');
    [this.filter, this.shown, this.sort] = ['endpoints-filter', 'endpoints-show', 'endpoints-sort'].map(find);
    [this.chosen, this.chosenText, this.decisions] = ['endpoint-chosen', 'endpoint-chosen-text', 'endpoint-decisions'].map(find);
    this.decisions.addEventListener('click', () => this.#choose());
    this.onChoose = onChoose;
    const again = () => {
      this.#arrange();
      this.#ask();
    };
    this.filter.addEventListener('input', again);
    this.shown.addEventListener('change', again);
    this.sort.addEventListener('change', again);
    this.grid.addEventListener('scroll', () => this.#ask(), { passive: true });
    new ResizeObserver(() => this.#ask()).observe(this.grid);
    this.grid.addEventListener('keydown', (event) => this.#key(event));
    this.rows.addEventListener('click', (event) => {
      const box = event.target.closest('[role=row]');
      if (!box) return;
      this.#isChosen = true;
      this.#move(Number(box.getAttribute('aria-rowindex')) - 2);
    });
    this.rows.addEventListener('dblclick', () => this.#choose());
  }

  /** Takes a state. */
  take(state) {
    const { names: known, rows, isNew } = state.endpoints;
    if (isNew) {
      this.#items = known.map(([id, address, role]) => ({
        id, address, role, name: id.split('/').at(-1), key: `${id} ${address} ${role ?? ''}`.toLowerCase(),
      }));
      [...this.#items].sort((a, b) => names.compare(a.name, b.name)).forEach((item, rank) => {
        item.rank = rank;
      });
    }
    this.#items.forEach((item, place) => {
      item.row = rows[place];
      [item.level, item.text] = condition(item.row, state.now_ms, state.stale_ms);
    });
    this.unixMs = state.unix_ms;
    this.most = this.#items.reduce((most, item) => Math.max(most, load(item.row)), 1);
    this.#arrange();
    this.#ask();
  }

  #arrange() {
    const text = this.filter.value.trim().toLowerCase();
    const which = this.shown.value;
    const at = (place) => this.#items[place];
    const active = this.#order[this.#active];
    const all = this.#items.map((_, place) => place);
    const shows = (item) => which === 'all' || (which === 'ejected' ? item.row[ROW.ejection] !== null : item.level !== 'good');
    const left = all.filter((place) => at(place).key.includes(text) && shows(at(place)));
    this.#order = ORDERS[this.sort.value](left, at);
    // The active row stays the same endpoint.
    const place = this.#order.indexOf(active);
    this.#active = place >= 0 ? place : Math.min(this.#active, Math.max(0, this.#order.length - 1));
    put(this.count, this.#order.length === all.length ? grouped(all.length) : `${grouped(this.#order.length)} of ${grouped(all.length)}`);
    this.grid.hidden = this.#order.length === 0;
    this.empty.hidden = this.#order.length > 0;
    put(this.empty, all.length === 0 ? 'The pool has no endpoints.' : 'No endpoint matches.');
    this.grid.setAttribute('aria-rowcount', this.#order.length + 1);
  }

  #ask() {
    if (this.#wanted) return;
    this.#wanted = true;
    requestAnimationFrame(() => {
      this.#wanted = false;
      this.#draw();
    });
  }

  get #height() {
    return parseFloat(getComputedStyle(document.documentElement).getPropertyValue('--row'));
  }

  #draw() {
    const height = this.#height;
    const top = this.grid.scrollTop;
    const first = Math.max(0, Math.floor(top / height) - BEYOND);
    const last = Math.min(this.#order.length, Math.ceil((top + this.grid.clientHeight) / height) + BEYOND);
    this.rows.style.height = `${this.#order.length * height}px`;
    for (const [place, line] of this.#lines) {
      if (place < first || place >= last) {
        line.box.remove();
        this.#spare.push(line);
        this.#lines.delete(place);
      }
    }
    for (let place = first; place < last; place += 1) {
      let line = this.#lines.get(place);
      if (!line) {
        line = this.#spare.pop() ?? new Line();
        line.box.id = `endpoint-${place}`;
        line.box.style.transform = `translateY(${place * height}px)`;
        line.box.setAttribute('aria-rowindex', place + 2);
        line.height = height;
        this.#lines.set(place, line);
        this.rows.append(line.box);
      } else if (line.height !== height) {
        line.box.style.transform = `translateY(${place * height}px)`;
        line.height = height;
      }
      line.box.classList.toggle('active', place === this.#active);
      line.box.setAttribute('aria-selected', place === this.#active);
      line.show(this.#items[this.#order[place]], this.most);
    }
    const chosen = this.#isChosen ? this.#items[this.#order[this.#active]] : undefined;
    this.chosen.hidden = chosen === undefined;
    if (chosen) {
      const events = chosen.row[ROW.events];
      put(this.chosenText, `${described(chosen)}: ${chosen.text}${events === null ? '' : `; ${eventsOf(events, this.unixMs)}`}`);
    }
    const active = this.#lines.get(this.#active);
    if (active) this.grid.setAttribute('aria-activedescendant', active.box.id);
    else this.grid.removeAttribute('aria-activedescendant');
  }

  #move(place) {
    if (this.#order.length === 0) return;
    this.#active = Math.max(0, Math.min(this.#order.length - 1, place));
    const height = this.#height;
    const top = this.#active * height;
    const room = this.grid.clientHeight - this.head.offsetHeight;
    if (top < this.grid.scrollTop) this.grid.scrollTop = top;
    else if (top + height > this.grid.scrollTop + room) this.grid.scrollTop = top + height - room;
    this.#ask();
  }

  #choose() {
    const item = this.#items[this.#order[this.#active]];
    if (item) this.onChoose(item.address);
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.grid.clientHeight / this.#height) - 2);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in moves) this.#move(this.#active + moves[event.key]);
    else if (event.key === 'Enter') this.#choose();
    else return;
    this.#isChosen = true;
    event.preventDefault();
  }
}
