// Elements. Text goes in as text nodes only: nothing that the daemon sends is ever parsed as HTML.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (name === 'width%') node.style.width = `${value}%`;
    else if (name === 'value' || name === 'disabled' || name === 'checked') node[name] = value;
    else node.setAttribute(name, value === true ? '' : String(value));
  }
  for (const child of children.flat(4)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
}

/** Makes an element: h('p', {class: 'quiet'}, 'text', element). */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** Makes an element of a picture. */
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Replaces the content of an element. */
export function put(node, ...children) {
  node.replaceChildren();
  return fill(node, {}, children);
}

/** Terms and their values. */
export const facts = (pairs) => h('dl', { class: 'facts' }, pairs.filter(([, value]) => value !== null && value !== undefined)
  .map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))));

/** A table; on narrow screens each row becomes a block. Columns: [title, cell, isNumber]. */
export const table = (label, columns, rows, empty) => rows.length === 0 ? h('p', { class: 'empty' }, empty)
  : h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label }, h('table', { class: 'stack', 'aria-label': label },
    h('thead', {}, h('tr', {}, columns.map(([title, , number]) => h('th', { class: number && 'num', scope: 'col' }, title)))),
    h('tbody', {}, rows.map((row) => h('tr', {}, columns.map(([title, cell, number]) => h('td', { class: number && 'num', 'data-name': title }, h('div', {}, cell(row)))))))));

/** Health, severity or state as a coloured word. */
export function tag(word) {
  const good = ['online', 'ok', 'running', 'info', 'available', 'done', 'serving', 'served', 'active'];
  const bad = ['faulted', 'failed', 'unavailable', 'error', 'stopped', 'missing', 'failing'];
  const kind = good.includes(word) ? 'good' : bad.includes(word) ? 'bad' : 'warn';
  return h('span', { class: `tag ${kind}` }, word);
}

/** A filled bar with its meaning in words. */
export function bar(part, whole, label) {
  const percent = whole > 0 ? Math.min(100, (100 * part) / whole) : 0;
  const kind = percent > 95 ? 'bad' : percent > 85 ? 'warn' : '';
  return h('div', { class: `bar ${kind}`, role: 'img', 'aria-label': label }, h('i', { 'width%': percent.toFixed(2) }));
}

/** A message that goes by itself and that screen readers read. */
export function note(text) {
  const box = document.getElementById('notes');
  const one = h('div', { class: 'note' }, text);
  box.append(one);
  while (box.children.length > 4) box.firstChild.remove();
  setTimeout(() => one.remove(), 8000);
}
