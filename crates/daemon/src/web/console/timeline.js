// The line of time of a volume: snapshots with their unique bytes, clones as branches.

import { h, put, svg } from './dom.js';
import { bytes, count, span, time } from './format.js';

const LEFT = 12;
const RIGHT = 64;
const AXIS = 112;
const HIGH = 80;
/** Branches that are drawn, and their distance. */
const BRANCHES = 4;
const APART = 15;

/**
 * Groups snapshots into bins of a few pixels, so that the picture costs the same for any number.
 * Returns bins with `x` and `snapshots`.
 */
export function bins(snapshots, place, width) {
  const step = 5;
  const found = new Map();
  for (const snapshot of snapshots) {
    const at = Math.min(Math.floor(place(snapshot) / step), Math.floor(width / step));
    if (!found.has(at)) found.set(at, { x: at * step, snapshots: [] });
    found.get(at).snapshots.push(snapshot);
  }
  return [...found.values()];
}

/** pick: called with the snapshot of a bar. Returns {node, set(snapshots, clones), select(name)}. */
export function timeline(name, pick) {
  const picture = svg('svg', { class: 'timeline', role: 'img' });
  const scale = h('select', { 'aria-label': 'Scale of the line of time', onchange: () => draw() },
    h('option', { value: 'age' }, 'Recent times wider'), h('option', { value: 'time' }, 'True to time'), h('option', { value: 'even' }, 'Evenly spaced'));
  const words = h('p', { class: 'quiet' });
  let snapshots = [];
  let clones = [];
  let selected = null;

  function places(width) {
    const order = new Map(snapshots.map((snapshot, at) => [snapshot.name, at]));
    const now = Date.now();
    const oldest = snapshots.length ? new Date(snapshots[0].created).getTime() : now - 1;
    const all = Math.max(1000, now - oldest);
    return (snapshot) => {
      if (scale.value === 'even') return (width * (order.get(snapshot.name) + 0.5)) / snapshots.length;
      const age = Math.max(0, now - new Date(snapshot.created).getTime());
      if (scale.value === 'time') return width * (1 - age / all);
      const unit = all / 400;
      return width * (1 - Math.log1p(age / unit) / Math.log1p(all / unit));
    };
  }
  function draw() {
    const whole = picture.clientWidth || 800;
    const width = whole - LEFT - RIGHT;
    const place = places(width);
    const groups = bins(snapshots, place, width);
    const most = Math.max(1, ...groups.map((group) => group.snapshots.reduce((sum, one) => sum + one.unique_bytes, 0)));
    const bars = groups.map(({ x, snapshots: some }) => {
      const unique = some.reduce((sum, one) => sum + one.unique_bytes, 0);
      const high = 4 + (HIGH - 4) * Math.sqrt(unique / most);
      const held = some.some((one) => one.holds > 0);
      const text = some.length === 1 ? `${some[0].name}: ${bytes(unique)} unique, ${time(some[0].created)}` : `${count(some.length)} snapshots: ${bytes(unique)} unique in all, from ${time(some[0].created)}`;
      return svg('rect', { class: held ? 'bin held' : 'bin', x: LEFT + x, y: AXIS - high, width: 4, height: high, onclick: () => pick(some.at(-1)) }, svg('title', {}, text));
    });
    const byName = new Map(snapshots.map((snapshot) => [snapshot.name, snapshot]));
    const known = clones.filter((clone) => byName.has(clone.origin));
    const branches = known.slice(0, BRANCHES).map((clone, at) => {
      const from = LEFT + place(byName.get(clone.origin)) + 2;
      const low = AXIS + 14 + at * APART;
      const short = clone.name.split('/')[1];
      const to = Math.min(from + 60, whole - RIGHT);
      return [svg('path', { class: 'clone', d: `M${from} ${AXIS}C${from} ${low} ${from + 12} ${low} ${to} ${low}` }), svg('text', { class: 'name', x: to + 4, y: low + 4 }, short)];
    });
    const chosen = byName.get(selected);
    const mark = chosen && svg('line', { class: 'pick', x1: LEFT + place(chosen) + 2, x2: LEFT + place(chosen) + 2, y1: AXIS - HIGH - 12, y2: AXIS + 6 });
    const end = LEFT + width + 6;
    picture.setAttribute('viewBox', `0 0 ${whole} ${picture.clientHeight || 190}`);
    put(picture, svg('line', { class: 'axis', x1: LEFT, x2: end, y1: AXIS, y2: AXIS }), bars, branches, mark,
      known.length > BRANCHES && svg('text', { x: LEFT, y: AXIS + 14 + BRANCHES * APART }, `and ${known.length - BRANCHES} more clones`),
      svg('circle', { class: 'head', cx: end + 4, cy: AXIS, r: 6 }), svg('text', { x: end + 14, y: AXIS + 4 }, 'head'),
      snapshots.length > 0 && svg('text', { x: LEFT, y: 14 }, `${span((Date.now() - new Date(snapshots[0].created)) / 1000)} ago`),
      svg('text', { x: end, y: 14, 'text-anchor': 'end' }, 'now'));
    const unique = snapshots.reduce((sum, one) => sum + one.unique_bytes, 0);
    const held = snapshots.filter((one) => one.holds > 0).length;
    const text = `${count(snapshots.length)} snapshots with ${bytes(unique)} that one of them alone has; ${count(held)} held; ${count(clones.length)} clones`;
    put(words, `${text}. Bars show unique bytes, held snapshots in another colour; branches are clones.`);
    picture.setAttribute('aria-label', `Line of time of ${name}: ${text}. The list below has the same snapshots.`);
  }
  new ResizeObserver(draw).observe(picture);
  return {
    node: h('div', {}, h('div', { class: 'head' }, h('h2', {}, 'Timeline'), h('span', { class: 'spring' }), scale), picture, words),
    set(of, branching) {
      [snapshots, clones] = [of, branching];
      draw();
    },
    select(wanted) {
      selected = wanted;
      draw();
    },
  };
}
