// A list that keeps only the visible rows in the page: 10,000 rows cost no more than 30.

import { h, put } from './dom.js';

const ROW = 38;
const BEYOND = 8;

/**
 * label: name for screen readers; columns: class of the grid; heads: titles; cells: row -> contents;
 * key: row -> identity; pick: called with the selected row; open: called on Enter or a double click.
 */
export function virtualList({ label, columns, heads, cells, key, pick = () => {}, open = () => {} }) {
  let rows = [];
  let selected = null;
  const room = h('div', { class: 'room', role: 'rowgroup' });
  const box = h('div', { class: 'vlist', tabindex: 0, role: 'grid', 'aria-label': label, 'aria-readonly': 'true' }, room);
  const head = h('div', { class: `vhead ${columns}`, 'aria-hidden': 'true' }, heads.map((one) => h('span', {}, one)));
  const id = `list-${Math.random().toString(36).slice(2)}`;

  function draw() {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW) - BEYOND);
    const last = Math.min(rows.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW) + BEYOND);
    room.style.height = `${Math.max(rows.length * ROW, 1)}px`;
    put(room, rows.length === 0 ? h('div', { role: 'row' }, h('p', { class: 'empty', role: 'gridcell' }, 'None')) : rows.slice(first, last).map((row, offset) => {
      const at = first + offset;
      const line = h('div', {
        class: `vrow ${columns}`, role: 'row', id: `${id}-${at}`, 'aria-rowindex': at + 1, 'aria-selected': String(key(row) === selected),
        onclick: () => choose(at), ondblclick: () => open(row),
      }, cells(row).map((cell) => h('span', { role: 'gridcell' }, cell)));
      line.style.top = `${at * ROW}px`;
      return line;
    }));
    box.setAttribute('aria-rowcount', rows.length);
    const at = rows.findIndex((row) => key(row) === selected);
    if (at >= first && at < last) box.setAttribute('aria-activedescendant', `${id}-${at}`);
    else box.removeAttribute('aria-activedescendant');
  }
  function choose(at) {
    const row = rows[Math.max(0, Math.min(rows.length - 1, at))];
    if (!row) return;
    selected = key(row);
    const top = rows.indexOf(row) * ROW;
    if (top < box.scrollTop) box.scrollTop = top;
    if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
    draw();
    pick(row);
  }
  box.addEventListener('scroll', () => requestAnimationFrame(draw), { passive: true });
  box.addEventListener('keydown', (event) => {
    const at = rows.findIndex((row) => key(row) === selected);
    const page = Math.max(1, Math.floor(box.clientHeight / ROW) - 1);
    const steps = { ArrowDown: at + 1, ArrowUp: Math.max(0, at - 1), PageDown: at + page, PageUp: Math.max(0, at - page), Home: 0, End: rows.length - 1 };
    if (event.key in steps) {
      event.preventDefault();
      choose(steps[event.key]);
    } else if (event.key === 'Enter' && at >= 0) {
      open(rows[at]);
    }
  });
  new ResizeObserver(draw).observe(box);
  return {
    node: h('div', {}, head, box),
    set(next) {
      rows = next;
      box.style.height = `${Math.min(416, Math.max(60, rows.length * ROW + 2))}px`;
      draw();
    },
    select(wanted) {
      const at = rows.findIndex((row) => key(row) === wanted);
      if (at >= 0) choose(at);
    },
    selected: () => rows.find((row) => key(row) === selected) ?? null,
  };
}
