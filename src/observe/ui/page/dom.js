// Elements and units. Text is put into the document as text only: names in it are chosen by clients.

/** An element with attributes, and children that are elements or text. */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Puts a text into an element, if it is another one. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replaces the children of an element where they differ: what has the focus or is scrolled stays, and so does its place. */
export function renew(element, children) {
  const before = [...element.childNodes];
  if (before.length !== children.length) {
    element.replaceChildren(...children);
    return;
  }
  children.forEach((next, place) => {
    const old = before[place];
    if (old.isEqualNode(next)) return;
    const isAlike = old.nodeType === Node.ELEMENT_NODE && next.nodeType === Node.ELEMENT_NODE && old.cloneNode().isEqualNode(next.cloneNode());
    if (isAlike) renew(old, [...next.childNodes]);
    else old.replaceWith(next);
  });
}

/** A table with a label, of cells of a text and whether it is a number. */
export function table(label, head, rows) {
  const cell = (tag, [text, isNumber], scope) => h(tag, { class: isNumber ? 'number' : 'name', scope }, text);
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label }, h('table', {},
    h('thead', {}, h('tr', {}, ...head.map((each) => cell('th', each, 'col')))),
    h('tbody', {}, ...rows.map((row) => h('tr', {}, ...row.map((each) => cell('td', each)))))));
}

/** Replaces the content of a box, if its data are others. */
export function refresh(box, data, make) {
  const shown = JSON.stringify(data);
  if (box.dataset.shown === shown) return;
  box.dataset.shown = shown;
  renew(box, make());
}

/** A remark. */
export const note = (text) => h('p', { class: 'muted' }, text);

/** A number with so many digits behind the point, of two equally near ones the even, as Rust prints it. */
export function fixed(number, digits) {
  const text = number.toFixed(digits);
  // Halfway are only odd multiples of a power of two. toFixed takes the one that is farther from 0.
  const isHalfway = Math.abs(number * 2 ** (digits + 1)) % 2 === 1;
  if (!isHalfway || Number(text.at(-1)) % 2 === 0) return text;
  return (Math.trunc(number * 10 ** digits) / 10 ** digits).toFixed(digits);
}

/** Whole numbers in groups of three digits. */
export function grouped(number) {
  return Math.round(number).toLocaleString('en-US');
}

/** A rate, with as many digits as matter. */
export function rate(number) {
  if (number >= 100) return grouped(number);
  return number >= 10 || number === 0 ? number.toFixed(number === 0 ? 0 : 1) : number.toFixed(2);
}

/** A time in seconds, as `usher explain` prints it. */
export function seconds(time) {
  const size = Math.abs(time);
  if (size < 1e-3) return `${fixed(time * 1e6, 0)} µs`;
  if (size < 0.01) return `${fixed(time * 1e3, 1)} ms`;
  if (size < 1) return `${fixed(time * 1e3, 0)} ms`;
  if (size < 120) return `${fixed(time, 2)} s`;
  return `${fixed(time / 60, 0)} min`;
}

/** A long time in seconds. */
export function span(time) {
  if (time < 120) return `${Math.max(0, Math.round(time))} s`;
  if (time < 7200) return `${Math.round(time / 60)} min`;
  return time < 172800 ? `${Math.round(time / 3600)} h` : `${Math.round(time / 86400)} d`;
}

/** An age in milliseconds. */
export function age(ms) {
  if (ms < 1000) return `${ms} ms`;
  return ms < 120000 ? `${fixed(ms / 1000, 1)} s` : `${Math.floor(ms / 60000)} min`;
}

/** A number of bytes. */
export function bytes(number) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) {
    number /= 1024;
    unit += 1;
  }
  return `${unit === 0 || number >= 100 ? Math.round(number) : number.toFixed(1)} ${units[unit]}`;
}

/** A share as a percentage. */
export function percent(share) {
  return `${fixed(share * 100, 0)} %`;
}

/** Milliseconds since 1970 as a time of day in UTC, with the date if it isn't today's. */
export function clock(ms) {
  const text = new Date(ms).toISOString();
  const today = new Date().toISOString().slice(0, 10);
  const time = `${text.slice(11, 23)} UTC`;
  return text.startsWith(today) ? time : `${text.slice(0, 10)} ${time}`;
}

/** "1 pod", "2 pods". */
export function count(number, one, many = `${one}s`) {
  return `${grouped(number)} ${number === 1 ? one : many}`;
}
