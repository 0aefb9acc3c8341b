// A pool: space, classes and devices, live figures, volumes.

import { get, may, part, post } from './api.js';
import { ask, field, tick } from './dialog.js';
import { bar, facts, h, put, table, tag } from './dom.js';
import { bytes, count, percent, size, span, time } from './format.js';
import { virtualList } from './list.js';
import { liveCharts } from './live.js';
import { forecast } from './overview.js';
import { findings } from './records.js';

export const volumeLink = (name) => `#/volume/${name.split('/').map(encodeURIComponent).join('/')}`;

function layout(pool) {
  const of = pool.layout;
  if (!of) return '–';
  const words = { mirror: `mirror of ${of.copies}`, stripe: `stripe over ${of.width}`, parity: `parity${of.parity} over ${of.width}` };
  return words[of.kind] ?? of.kind;
}

function replace(pool, device) {
  const to = field('Path of the new device', { placeholder: '/dev/disk/by-id/…', name: 'new' });
  const force = tick('It holds data that may be overwritten');
  const body = (dry) => ({ old: device.id || device.path, new: { path: to.value(), create: null }, force: force.value(), dry_run: dry });
  ask({
    title: `Replace ${device.path}`, button: 'Replace', danger: true, fields: [to, force],
    before: async () => {
      if (!to.value()) return { lines: ['Name the new device. Its content will be overwritten; the old device leaves the pool when the copy is complete.'], stop: true };
      const plan = await post(`/v1/pools/${part(pool)}/replace`, body(true));
      return { lines: [`The data of ${device.path} is copied to ${plan.new?.path || to.value()} while the pool stays in service.`, `${bytes(device.allocated)} are to be copied.`, ...(plan.warnings ?? [])] };
    },
    run: async () => {
      await post(`/v1/pools/${part(pool)}/replace`, body(false));
      return `Replacement of ${device.path} has started`;
    },
  });
}

function create(pool) {
  const name = field('Name', { name: 'name', placeholder: 'vm1', required: true });
  const room = field('Size', { name: 'size', placeholder: '20G', required: true });
  const sector = field('Sectors', { name: 'sector', choices: [['512e', '512e: 512 bytes, physical 4096'], ['4kn', '4kn: 4096 bytes'], ['512n', '512n: 512 bytes']] });
  ask({
    title: `New volume in ${pool}`, button: 'Create', fields: [name, room, sector],
    run: async () => {
      const wanted = size(room.value());
      if (!(wanted > 0)) throw new Error(`'${room.value()}' is not a size; give for example 20G`);
      const made = await post('/v1/volumes', { name: `${pool}/${name.value()}`, size: wanted, sector: sector.value(), properties: {} });
      return `${made.name} is there, with ${bytes(made.size)}`;
    },
  });
}

function scrub(pool) {
  ask({
    title: `Scrub ${pool}`, button: 'Start',
    before: async () => ({ lines: ['Every copy of everything is read and compared with its checksum; wrong copies are repaired. Guests have priority.', 'Nothing is lost.'] }),
    run: async () => {
      await post(`/v1/pools/${part(pool)}/scrub`, {});
      return `A scrub of ${pool} has started`;
    },
  });
}

function devices(pool) {
  const classes = [...new Set(pool.devices.map((device) => device.class))];
  return classes.map((name) => {
    const of = pool.devices.filter((device) => device.class === name);
    const [used, all] = [of.reduce((total, device) => total + device.allocated, 0), of.reduce((total, device) => total + device.size, 0)];
    return h('section', { class: 'card', 'aria-label': `Class ${name}` },
      h('h2', {}, `Class ${name} `, h('span', { class: 'quiet' }, of[0].layout)),
      bar(used, all, `class ${name}: ${percent(used, all)} of ${bytes(all)} in use`),
      table(`Devices of class ${name}`, [
        ['Device', (device) => [h('span', { class: 'mono' }, device.path), device.serial && h('div', { class: 'quiet' }, `serial ${device.serial}`)]],
        ['State', (device) => [tag(device.state), device.health && !['ok', device.state].includes(device.health) && [' ', tag(device.health)], device.health_reason && h('div', { class: 'quiet' }, device.health_reason)]],
        ['In use', (device) => `${bytes(device.allocated)} of ${bytes(device.size)}`, true],
        ['Errors', (device) => (device.errors ? `${count(device.errors)} (${count(device.repaired)} repaired)` : '0'), true],
        ['Latency r/w', (device) => `${mean(device.io.read_nanos, device.io.reads)} / ${mean(device.io.write_nanos, device.io.writes)}`, true],
        ...(may('admin') ? [['Action', (device) => h('button', { onclick: () => replace(pool.name, device), 'aria-label': `Replace ${device.path}` }, 'Replace…')]] : []),
      ], of, 'No device'));
  });
}

const mean = (nanos, number) => (number ? `${(nanos / number / 1e6).toFixed(2)} ms` : '–');

export function pool(name) {
  const top = h('div', {});
  const below = h('div', {});
  const live = liveCharts(name, null);
  const filter = h('input', { type: 'search', placeholder: 'Filter by name', 'aria-label': 'Filter volumes by name', oninput: () => show() });
  const list = virtualList({
    label: `Volumes of ${name}`, columns: 'cols-volume', heads: ['Volume', 'Size', 'Referenced', 'Unique', 'Snapshots', 'Origin'],
    key: (volume) => volume.name,
    cells: (volume) => [h('a', { href: volumeLink(volume.name) }, volume.name.split('/')[1]), bytes(volume.size), bytes(volume.referenced_bytes), bytes(volume.unique_bytes), count(volume.snapshots), volume.origin ?? ''],
    open: (volume) => { location.hash = volumeLink(volume.name); },
  });
  let volumes = [];
  const title = h('h2', {}, 'Volumes');
  function show() {
    const wanted = filter.value.trim().toLowerCase();
    const some = wanted ? volumes.filter((volume) => volume.name.toLowerCase().includes(wanted)) : volumes;
    put(title, `Volumes (${count(some.length)}${wanted ? ` of ${count(volumes.length)}` : ''})`);
    list.set(some);
  }
  const node = h('div', {}, top,
    h('section', { class: 'card', 'aria-label': 'Volumes' }, h('div', { class: 'head' }, title, h('span', { class: 'spring' }), filter,
      may('operator') && h('button', { class: 'main', onclick: () => create(name) }, 'New volume…')), list.node),
    live.node, below);
  async function refresh() {
    const [view, conditions] = await Promise.all([get(`/v1/pools/${part(name)}`), get('/v1/conditions')]);
    const inService = ['online', 'readonly', 'degraded'].includes(view.health);
    volumes = inService ? await get(`/v1/volumes?pool=${part(name)}`) : [];
    volumes.sort((one, other) => one.name.localeCompare(other.name, 'en', { numeric: true }));
    show();
    const scrubbed = view.scrub ? `${view.scrub.state}${view.scrub.ended ? `, ${time(view.scrub.ended)}` : ''}, ${count(view.scrub.errors)} errors` : 'never since import';
    put(top, h('div', { class: 'head' }, h('h1', {}, `Pool ${name}`), tag(view.health), h('span', { class: 'spring' }),
      may('operator') && h('button', { onclick: () => scrub(name) }, 'Scrub…')),
      findings(conditions.filter((one) => one.pool === name)).map((one) => one.node),
      h('section', { class: 'card', 'aria-label': 'Space' }, h('h2', {}, 'Space'),
        bar(view.allocated, view.size, `${percent(view.allocated, view.size)} of ${bytes(view.size)} allocated`),
        h('p', { class: 'quiet' }, forecast(view)),
        facts([['Size', bytes(view.size)], ['Allocated', `${bytes(view.allocated)} (${percent(view.allocated, view.size)})`], ['Free', bytes(view.free)], ['Layout', layout(view)],
          ['Kept for rewind', bytes(view.space.resting)], ['To be freed', bytes(view.io.reclaim_backlog)], ['Last scrub', scrubbed],
          ['In service', view.imported ? span((Date.now() - new Date(view.imported)) / 1000) : '–']])));
    put(below, devices(view));
  }
  return { node, refresh, title: `Pool ${name}`, event: live.event, stop: live.stop };
}
