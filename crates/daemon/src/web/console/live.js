// Live figures: counters of the API, read once a second; two readings give rates and latencies.

import { get, part } from './api.js';
import { chart } from './chart.js';
import { h, note, put } from './dom.js';
import { bytes, count, micros } from './format.js';

const SECONDS = 120;
const KEPT = SECONDS + 10;
/** Events that are marked in the charts: word -> text. */
const MARKED = { 'snapshot.created': 'snapshot', destroyed: 'destroyed', 'volume.rolled-back': 'rolled back', 'snapshot.expired': 'expired' };
const GONE = ['destroyed', 'snapshot.expired'];

/** Returns the latency below which a share of requests is, by the differences of two histograms. */
export function quantile(ends, before, after, share) {
  const counts = after.map((value, at) => Math.max(0, value - (before[at] ?? 0)));
  const all = counts.reduce((sum, value) => sum + value, 0);
  if (all === 0) return null;
  let left = all * share;
  for (let at = 0; at < counts.length; at += 1) {
    if (counts[at] >= left && counts[at] > 0) {
      const low = at === 0 ? 0 : ends[at - 1];
      const high = ends[at] ?? ends.at(-1) * 2;
      return low + ((high - low) * left) / counts[at];
    }
    left -= counts[at];
  }
  return ends.at(-1);
}

/** Upper ends, in microseconds, of the classes of a device's histogram: quarters of powers of two from 4 on. */
const deviceEnd = (at) => (at < 4 ? at + 1 : 2 ** (2 + Math.floor((at - 4) / 4)) * (1 + ((at - 4) % 4 + 1) / 4));
const sum = (one, other) => Array.from({ length: Math.max(one.length, other.length) }, (_, at) => (one[at] ?? 0) + (other[at] ?? 0));

function difference(old, now, seconds, ends, [reads, writes]) {
  const rate = (name) => Math.max(0, now.io[name] - old.io[name]) / seconds;
  const both = (of) => sum(of[reads] ?? of.io[reads] ?? [], of[writes] ?? of.io[writes] ?? []);
  const times = both(now);
  const of = ends ?? times.map((_, at) => deviceEnd(at));
  return {
    throughput: [rate('read_bytes'), rate('write_bytes')],
    iops: [rate('reads'), rate('writes')],
    latency: [0.5, 0.99].map((share) => quantile(of, both(old), times, share)),
  };
}

/**
 * Charts of a pool, of one of its volumes if `volume` names one, and of its devices by choice.
 * Returns {node, event, stop}.
 */
export function liveCharts(pool, volume) {
  const charts = {
    throughput: chart('Throughput', ['read', 'written'], (value) => `${bytes(value)}/s`, 1024),
    iops: chart('Requests per second', ['reads', 'writes'], count),
    latency: chart('Latency', ['median', '99 %'], micros),
  };
  const choice = h('select', { 'aria-label': 'What the charts show', onchange: () => { series.length = 0; draw(); } });
  const series = [];
  const marks = [];
  let last = null;
  let timer = null;
  let failed = false;

  function choices(load) {
    const words = [...(volume ? [['volume', `${pool}/${volume}`]] : []), ['pool', `pool ${pool}`], ...load.devices.map((device) => [`device:${device.id}`, device.path])];
    if (choice.options.length === words.length) return;
    const before = choice.value;
    put(choice, words.map(([value, text]) => h('option', { value }, text)));
    if (words.some(([value]) => value === before)) choice.value = before;
  }
  function of(load) {
    if (choice.value === 'volume') return [load.volume, load.volume?.ends_micros];
    if (choice.value === 'pool') return [load.guests, load.guests.ends_micros];
    return [load.devices.find((device) => choice.value === `device:${device.id}`), null];
  }
  function draw() {
    for (const [name, one] of Object.entries(charts)) one.set(series.map((point) => ({ at: point.at, values: point[name] })), marks, SECONDS);
  }
  async function turn() {
    if (document.hidden) return;
    try {
      const load = await get(`/v1/pools/${part(pool)}/load${volume ? `?volume=${part(volume)}` : ''}`);
      failed = false;
      choices(load);
      const at = new Date(load.time).getTime();
      if (last && last.imported === load.imported) {
        const seconds = (at - new Date(last.time).getTime()) / 1000;
        const [[old], [now, ends]] = [of(last), of(load)];
        if (old && now && seconds > 0) {
          series.push({ at, ...difference(old, now, seconds, ends, ['read_times', 'write_times']) });
          if (series.length > KEPT) series.shift();
        }
      }
      last = load;
      draw();
    } catch (error) {
      if (!failed) note(`Live figures: ${error.message}`);
      failed = true;
      last = null;
    }
  }
  function again() {
    turn().finally(() => { if (timer !== null) timer = setTimeout(again, failed ? 5000 : 1000); });
  }
  timer = 0;
  again();
  return {
    node: h('section', { class: 'card', 'aria-label': 'Live figures' }, h('div', { class: 'head' }, h('h2', {}, 'Live'), h('span', { class: 'spring' }), choice),
      h('div', { class: 'charts' }, Object.values(charts).map((one) => one.node)),
      h('p', { class: 'quiet' }, 'Dashed lines mark snapshots taken (grey) and destroyed (red).')),
    event(event) {
      if (!(event.event in MARKED) || event.pool !== pool) return;
      marks.push({ at: new Date(event.time).getTime(), text: `${MARKED[event.event]}: ${event.subject}`, gone: GONE.includes(event.event) });
      if (marks.length > 500) marks.shift();
    },
    stop() {
      clearTimeout(timer);
      timer = null;
    },
  };
}
