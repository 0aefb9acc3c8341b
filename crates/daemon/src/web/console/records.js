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

/** Shows conditions, the worst first: {severity, node}. Those that another one names are left out. */
export function findings(conditions) {
  return conditions.filter((one) => !one.covered).map((one) => {
    const link = one.kind.startsWith('export.') ? '#/exports' : one.pool && `#/pool/${part(one.pool)}`;
    return {
      severity: one.severity,
      node: h('section', { class: `card alert ${one.severity === 'error' ? 'bad' : ''}`, 'aria-label': `${one.kind} ${one.subject}` },
        h('div', { class: 'row' }, tag(one.severity), h('b', {}, link ? h('a', { href: link }, one.subject) : one.subject), h('span', { class: 'quiet' }, `${one.kind}, since ${time(one.since)}`)),
        h('p', {}, one.cause), one.remedy && h('p', { class: 'quiet' }, one.remedy)),
    };
  });
}

export function health() {
  const node = h('div', {});
  async function refresh() {
    const found = findings(await get('/v1/conditions'));
    put(node, h('div', { class: 'head' }, h('h1', {}, 'Health'), tag(found.length ? found[0].severity : 'ok')),
      found.length === 0 ? h('p', { class: 'card empty' }, 'No condition: pools, devices, exports and the host are well.') : found.map((one) => one.node));
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
