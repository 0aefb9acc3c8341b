// Jobs, health and events.

import { get, part } from './api.js';
import { bar, h, put, table, tag } from './dom.js';
import { bytes, count, span, time } from './format.js';
import { virtualList } from './list.js';

export function jobs() {
  const node = h('div', {});
  async function refresh() {
    const all = await get('/v1/jobs');
    put(node, h('div', { class: 'head' }, h('h1', {}, 'Jobs')), h('section', { class: 'card', 'aria-label': 'Jobs' },
      table('Jobs', [
        ['Job', (job) => [h('b', {}, job.kind), ` ${job.id.split(':').slice(1).join(' ')}`]],
        ['State', (job) => tag(job.state)],
        ['Progress', (job) => {
          const whole = job.done_bytes + job.remaining_bytes;
          return job.done_bytes ? [bar(job.done_bytes, whole, `${Math.floor((100 * job.done_bytes) / whole)} % done`), `${bytes(job.done_bytes)} of ${bytes(whole)}`] : `${bytes(job.remaining_bytes)} remain`;
        }],
        ['Rate', (job) => (job.rate ? `${bytes(job.rate)}/s` : '–'), true],
        ['Ends', (job) => (job.eta_seconds === null || job.eta_seconds === undefined ? '–' : `in ${span(job.eta_seconds)}, ${time(new Date(Date.now() + job.eta_seconds * 1000))}`)],
        ['Errors', (job) => count(job.errors), true],
      ], all, 'Nothing runs in the background.')));
  }
  return { node, refresh, title: 'Jobs', every: 1000 };
}

const REMEDY = {
  missing: 'Connect it again, or replace it.', failed: 'Replace it.', failing: 'Replace it soon.', faulted: 'Replace it.',
  silent: 'Look at its cable and at the kernel log.', slow: 'Watch it; replace it if it stays slow.', full: 'Free up space below it.',
};

/** Lists what is wrong, the worst first: {severity, title, node}. */
export function findings(pools, exports) {
  const found = [];
  const add = (severity, title, cause, remedy, link) => found.push({
    severity, title,
    node: h('section', { class: `card alert ${severity === 'error' ? 'bad' : ''}`, 'aria-label': title },
      h('div', { class: 'row' }, tag(severity), h('b', {}, link ? h('a', { href: link }, title) : title)), cause && h('p', {}, cause), remedy && h('p', { class: 'quiet' }, remedy)),
  });
  for (const pool of pools) {
    const link = `#/pool/${part(pool.name)}`;
    if (!['online', 'readonly', 'opening'].includes(pool.health)) {
      const remedy = pool.health === 'degraded' ? 'Data is safe while no more devices fail. Replace what is missing on the page of the pool.' : `Try again with: millpond pool import ${pool.name}`;
      add(pool.health === 'degraded' ? 'warning' : 'error', `Pool ${pool.name} is ${pool.health}`, pool.reason, remedy, link);
    } else if (pool.reason && pool.health === 'online') {
      add('warning', `Pool ${pool.name}`, pool.reason, null, link);
    }
    if (pool.silent_since) add('error', `Pool ${pool.name} does not answer`, `since ${time(pool.silent_since)}`, 'A device may hang: see the kernel log.', link);
    if (pool.size > 0 && pool.free < pool.size / 20) add(pool.free < pool.size / 100 ? 'error' : 'warning', `Pool ${pool.name} is nearly full`, `${bytes(pool.free)} of ${bytes(pool.size)} are free`, 'Destroy snapshots, or add a device.', link);
    for (const device of pool.devices) {
      const bad = device.health && !['ok', 'filling', ''].includes(device.health);
      if (bad) add(['failed', 'failing', 'silent'].includes(device.health) ? 'error' : 'warning', `Device ${device.path} of ${pool.name} is ${device.health}`, device.health_reason, REMEDY[device.health], link);
      else if (device.errors > 0) add('warning', `Device ${device.path} of ${pool.name} has errors`, `${count(device.errors)} errors, ${count(device.repaired)} of them repaired from other devices`, 'A scrub without errors clears the count; replace the device if errors come again.', link);
    }
    if (pool.io.unreclaimed > 0) add('warning', `Space of ${pool.name} cannot be freed`, `${bytes(pool.io.unreclaimed)} wait for lists that cannot be read`, 'Connect missing devices again.', link);
  }
  for (const one of exports.filter((of) => of.state !== 'online')) add('error', `Export ${one.id} of ${one.name} is ${one.state}`, one.reason, null, '#/exports');
  return found.sort((one, other) => (one.severity === other.severity ? 0 : one.severity === 'error' ? -1 : 1));
}

export function health() {
  const node = h('div', {});
  async function refresh() {
    const status = await get('/v1/status');
    const found = findings(status.pools, status.exports);
    put(node, h('div', { class: 'head' }, h('h1', {}, 'Health'), tag(found.length ? found[0].severity : 'ok')),
      found.length === 0 ? h('p', { class: 'card empty' }, 'All pools, devices and exports are well.') : found.map((one) => one.node));
  }
  return { node, refresh, title: 'Health' };
}

export function events() {
  let all = [];
  const least = h('select', { 'aria-label': 'Least severity', onchange: () => show() }, ['info', 'warning', 'error'].map((word) => h('option', { value: word }, `${word} and worse`)));
  const list = virtualList({
    label: 'Events, newest first', columns: 'cols-event', heads: ['Time', 'Severity', 'Event', 'Message'],
    key: (event) => event.key,
    cells: (event) => [time(event.time), tag(event.severity), event.event, h('span', { title: event.message }, event.message)],
    pick: (event) => put(whole, h('h2', {}, event.event), h('p', {}, event.message), h('p', { class: 'quiet' }, `${time(event.time)}${event.who ? `, by ${event.who}` : ''}`)),
  });
  const whole = h('section', { class: 'card', 'aria-label': 'Selected event', 'aria-live': 'polite' }, h('p', { class: 'quiet' }, 'Select an event to read all of it.'));
  const order = ['info', 'warning', 'error'];
  function show() {
    list.set(all.filter((event) => order.indexOf(event.severity) >= order.indexOf(least.value)));
  }
  let number = 0;
  const keyed = (event) => {
    number += 1;
    return { ...event, key: number };
  };
  async function refresh() {
    if (all.length > 0) return;
    const answer = await fetch('/v1/events?follow=false&since=1970-01-01T00:00:00Z', { cache: 'no-store' });
    all = (await answer.text()).split('\n').filter(Boolean).map((line) => keyed(JSON.parse(line))).reverse();
    show();
  }
  return {
    node: h('div', {}, h('div', { class: 'head' }, h('h1', {}, 'Events'), h('span', { class: 'spring' }), least), h('section', { class: 'card', 'aria-label': 'Events' }, list.node), whole),
    refresh, title: 'Events',
    event(event) {
      all = [keyed(event), ...all].slice(0, 2000);
      show();
    },
  };
}
