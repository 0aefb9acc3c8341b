// Line charts over time, drawn as SVG.

import { h, put, svg } from './dom.js';

const KEYS = ['one', 'two', 'three'];
const LEFT = 62;
const BOTTOM = 18;
const TOP = 8;

/** Rounds up to 1, 2 or 5 times a power of ten, in units of a power of `base`. */
function ceiling(value, base) {
  if (!(value > 0)) return 1;
  const unit = base ** Math.max(0, Math.floor(Math.log(value) / Math.log(base)));
  const power = unit * 10 ** Math.floor(Math.log10(value / unit));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

/**
 * title: words; names: of the lines; show: value -> text; base: of its units.
 * set(points, marks): points have `at` in milliseconds and `values`; marks have `at`, `text`, `gone`.
 */
export function chart(title, names, show, base = 10) {
  const picture = svg('svg', { class: 'chart', role: 'img', 'aria-label': title });
  const values = names.map(() => h('span', {}, '–'));
  const node = h('figure', {}, h('figcaption', {}, h('b', {}, title), names.map((name, at) => h('span', { class: `key ${KEYS[at]}` }, `${name} `, values[at]))), picture);

  function set(points, marks, seconds) {
    const width = picture.clientWidth || 480;
    const height = picture.clientHeight || 150;
    const last = points.at(-1);
    const to = last?.at ?? Date.now();
    const from = to - seconds * 1000;
    const inside = points.filter((point) => point.at >= from);
    const known = inside.flatMap((point) => point.values).filter((value) => value !== null && Number.isFinite(value));
    const most = ceiling(Math.max(0, ...known) * 1.05, base);
    const x = (at) => LEFT + ((at - from) / (to - from)) * (width - LEFT - 6);
    const y = (value) => TOP + (1 - value / most) * (height - TOP - BOTTOM);
    const lines = names.map((_, which) => {
      let path = '';
      let pen = 'M';
      for (const { at, values: of } of inside) {
        const value = of[which];
        if (value === null || !Number.isFinite(value)) {
          pen = 'M';
          continue;
        }
        path += `${pen}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
        pen = 'L';
      }
      return svg('path', { class: KEYS[which], d: path || 'M0 0' });
    });
    const grid = (most > 1 || known.some((value) => value > 0) ? [0, 0.5, 1] : [0]).map((share) => [
      svg('line', { class: 'axis', x1: LEFT, x2: width, y1: y(most * share), y2: y(most * share) }),
      svg('text', { x: LEFT - 6, y: y(most * share) + 4, 'text-anchor': 'end' }, show(most * share)),
    ]);
    const shown = marks.filter((mark) => mark.at >= from && mark.at <= to);
    const drawn = shown.map((mark) => svg('line', { class: `mark ${mark.gone ? 'gone' : ''}`, x1: x(mark.at), x2: x(mark.at), y1: TOP, y2: height - BOTTOM },
      svg('title', {}, mark.text)));
    const begin = shown[0] && svg('rect', { class: 'phase', x: x(shown[0].at), y: TOP, width: Math.max(1, x(shown.at(-1).at) - x(shown[0].at)), height: height - TOP - BOTTOM });
    picture.setAttribute('viewBox', `0 0 ${width} ${height}`);
    put(picture, begin, grid, drawn, lines, svg('text', { x: LEFT, y: height - 4 }, `${seconds} s ago`), svg('text', { x: width - 2, y: height - 4, 'text-anchor': 'end' }, 'now'));
    const text = names.map((_, at) => (last && last.values[at] !== null ? show(last.values[at]) : '–'));
    text.forEach((one, at) => put(values[at], one));
    const phases = shown.length ? `; marked: ${shown.length} changes of snapshots` : '';
    picture.setAttribute('aria-label', `${title}, last ${seconds} seconds. Now ${names.map((name, at) => `${name} ${text[at]}`).join(', ')}${phases}`);
  }
  return { node, set };
}
