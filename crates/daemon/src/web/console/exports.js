// Exports: what is served where, with the lines that programs need.

import { get, may, part, post, remove } from './api.js';
import { ask, field, tick } from './dialog.js';
import { facts, h, note, put, tag } from './dom.js';
import { bytes, count, time } from './format.js';

const PROGRAMS = [['qemu', 'QEMU'], ['libvirt', 'libvirt'], ['proxmox', 'Proxmox VE'], ['nbd_client', 'nbd-client'], ['mount', 'mount']];

function copy(text) {
  return h('button', {
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(text);
        note('Copied');
      } catch {
        note('The browser does not allow copying here; select the text');
      }
    },
  }, 'Copy');
}

/** Asks for a new export of a volume. */
export function newExport(volume) {
  const name = field('Volume or snapshot', { name: 'name', required: true, value: volume ?? '' });
  const kind = field('Protocol', { name: 'kind', choices: [['nbd', 'NBD'], ['vhost-user', 'vhost-user']] });
  const unix = field('Path of the unix socket (empty: beside the control socket)', { name: 'unix' });
  const readonly = tick('Read-only');
  ask({
    title: 'New export', button: 'Export', fields: [name, kind, unix, readonly],
    run: async () => {
      const common = { kind: kind.value(), name: name.value(), unix: unix.value() || null, readonly: readonly.value(), access: {} };
      const made = await post('/v1/exports', kind.value() === 'nbd' ? { ...common, tcp: null } : { ...common, queues: 1 });
      location.hash = '#/exports';
      return `${made.name} is served on ${made.address}`;
    },
  });
}

function end(one) {
  const force = tick('End it although clients are connected: they lose their disk');
  ask({
    title: `End export ${one.id} of ${one.name}`, button: 'End it', danger: true, fields: one.clients ? [force] : [],
    before: async () => {
      const blocked = one.clients > 0 && !force.value();
      return { lines: ['No data is lost. Clients can no longer connect.', ...(one.clients ? [`${one.clients} clients are connected: ${one.connections.map((client) => client.peer).join(', ')}`] : [])], bad: blocked, stop: blocked };
    },
    run: async () => {
      await remove(`/v1/exports/${one.id}?force=${force.value()}`);
      return `Export ${one.id} has ended`;
    },
  });
}

function lines(one) {
  const box = h('div', {});
  const details = h('details', {}, h('summary', {}, 'Lines to paste'), box);
  details.addEventListener('toggle', async () => {
    if (!details.open || box.firstChild) return;
    try {
      const found = await get(`/v1/exports/${part(one.id)}/lines`);
      put(box, PROGRAMS.filter(([key]) => found[key]).map(([key, title]) => h('div', {}, h('div', { class: 'head' }, h('h3', {}, title), copy(found[key])), h('pre', {}, found[key]))));
    } catch (error) {
      put(box, h('p', { class: 'quiet' }, error.message));
    }
  });
  return details;
}

function card(one) {
  return h('section', { class: 'card', 'aria-label': `Export ${one.id} of ${one.name}` },
    h('div', { class: 'head' }, h('h2', {}, `${one.name} `, h('span', { class: 'quiet' }, `${one.kind}, id ${one.id}`)), tag(one.state), one.readonly && tag('readonly'), h('span', { class: 'spring' }),
      may('operator') && h('button', { class: 'danger', onclick: () => end(one) }, 'End…')),
    one.reason && h('p', { class: 'loss bad' }, one.reason),
    facts([['Address', h('span', { class: 'mono' }, one.address)], ['Clients', count(one.clients)], ['Read', bytes(one.io.read_bytes)], ['Written', bytes(one.io.write_bytes)], ['Encryption', one.tls ? one.tls.mode : 'none']]),
    one.connections.length > 0 && h('p', { class: 'quiet' }, one.connections.slice(0, 8).map((client) => `${client.peer} since ${time(client.since)}`).join('; ')),
    one.kind !== 'fuse' && lines(one));
}

export function exportsPage() {
  const node = h('div', {});
  let shown = '';
  async function refresh() {
    const all = await get('/v1/exports');
    // open lines stay open while nothing but counters has changed
    const key = JSON.stringify(all.map((one) => [one.id, one.state, one.clients, one.name, one.address]));
    if (key === shown) return;
    shown = key;
    put(node, h('div', { class: 'head' }, h('h1', {}, 'Exports'), h('span', { class: 'spring' }), may('operator') && h('button', { class: 'main', onclick: () => newExport() }, 'New export…')),
      all.length === 0 ? h('p', { class: 'card empty' }, 'Nothing is served.') : all.map(card));
  }
  return { node, refresh, title: 'Exports' };
}
