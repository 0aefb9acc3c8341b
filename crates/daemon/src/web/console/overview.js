// Overview: what is wrong first, then each pool with its fill and forecast.

import { get } from './api.js';
import { bar, facts, h, put, tag } from './dom.js';
import { ago, bytes, count, percent, span } from './format.js';
import { findings } from './records.js';

export const poolLink = (name) => `#/pool/${encodeURIComponent(name)}`;

/** What a pool's fill means in words. */
export function forecast(pool) {
  if (pool.full_in_seconds === null || pool.full_in_seconds === undefined) return 'does not fill at the present rate';
  return `full in ${span(pool.full_in_seconds)} at the rate of the last hour`;
}

function poolCard(pool) {
  return h('section', { class: 'card', 'aria-label': `Pool ${pool.name}` },
    h('div', { class: 'row' }, h('h2', {}, h('a', { href: poolLink(pool.name) }, pool.name)), tag(pool.health)),
    bar(pool.allocated, pool.size, `${percent(pool.allocated, pool.size)} of ${bytes(pool.size)} allocated`),
    h('p', { class: 'quiet' }, `${bytes(pool.allocated)} of ${bytes(pool.size)} (${percent(pool.allocated, pool.size)}); ${forecast(pool)}`),
    facts([['Free', bytes(pool.free)], ['Devices', count(pool.devices.length)], ['Clients', count(pool.clients)]]));
}

export function overview() {
  const node = h('div', {});
  async function refresh() {
    const [status, jobs] = await Promise.all([get('/v1/status'), get('/v1/jobs')]);
    const problems = findings(status.conditions);
    put(node, h('div', { class: 'head' }, h('h1', {}, 'Overview'), tag(problems.length ? problems[0].severity : 'ok')),
      problems.map((one) => one.node),
      status.pools.length === 0 && h('section', { class: 'card' }, h('p', { class: 'empty' }, 'No pool yet. Make one with: ', h('code', {}, 'millpond pool create tank /dev/disk/by-id/…'))),
      h('div', { class: 'grid' }, status.pools.map(poolCard)),
      h('section', { class: 'card', 'aria-label': 'Daemon' }, h('h2', {}, 'Daemon'), facts([
        ['Version', status.version], ['Started', ago(status.started)], ['Ready', status.ready ? 'yes' : 'pools are being imported'],
        ['Exports', count(status.exports.length)], ['Clients', count(status.exports.reduce((all, one) => all + one.clients, 0))],
        ['Jobs', count(jobs.length)], ['Request memory', `${bytes(status.request_memory.used)} of ${bytes(status.request_memory.limit)}`],
      ])));
  }
  return { node, refresh, title: 'Overview' };
}
