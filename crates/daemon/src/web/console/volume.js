// A volume: its timeline, what can be done from a snapshot, live figures.

import { get, may, part, post } from './api.js';
import { ask, field, tick } from './dialog.js';
import { facts, h, put, tag } from './dom.js';
import { bytes, count, time } from './format.js';
import { virtualList } from './list.js';
import { liveCharts } from './live.js';
import { newExport } from './exports.js';
import { poolLink } from './overview.js';
import { volumeLink } from './pool.js';
import { timeline } from './timeline.js';

/** Milliseconds after which the list is read again without an event, and between two readings of a long one. */
const STALE = 30000;
const GAP = 5000;
const LONG = 2000;

const short = (snapshot) => snapshot.name.split('@')[1];
const route = (snapshot) => {
  const [volume, name] = snapshot.name.split('@');
  return `/v1/snapshots/${volume.split('/').map(part).join('/')}/${part(name)}`;
};
const connected = (list) => (list.length ? [`Connected now: ${list.join(', ')}. Shut the guest down first, or tick the box.`] : []);

/** Sums up the ranges in which two states differ. */
async function differences(older, newer) {
  const extents = await get(`/v1/diff?older=${part(older)}${newer ? `&newer=${part(newer)}` : ''}`);
  const of = (kind) => extents.filter((extent) => extent.kind === kind).reduce((sum, extent) => sum + extent.length, 0);
  return { extents, data: of('data'), zero: of('zero') };
}

const inWords = ({ extents, data, zero }) => `${bytes(data)} of data and ${bytes(zero)} of zeroes differ, in ${count(extents.length)} ranges`;

function take(volume) {
  const name = field('Name of the snapshot', { name: 'snapshot', required: true, value: `manual-${new Date().toISOString().slice(0, 19).replaceAll(':', '-')}` });
  const about = field('Description', { name: 'description' });
  ask({
    title: `Snapshot of ${volume}`, button: 'Take it', fields: [name, about],
    run: async () => {
      const { names } = await post('/v1/snapshots', { names: [`${volume}@${name.value()}`], group: false, description: about.value(), expires: null });
      return `${names[0]} is there`;
    },
  });
}

function rollBack(volume, snapshot) {
  const force = tick('Roll back although clients are connected: they see other data at once');
  ask({
    title: `Roll ${volume} back to @${short(snapshot)}`, button: 'Roll back', danger: true, fields: [force],
    before: async () => {
      const [plan, changed] = await Promise.all([post(`${route(snapshot)}/rollback`, { dry_run: true, force: force.value() }), differences(snapshot.name, null)]);
      const blocked = plan.connected.length > 0 && !force.value();
      return {
        lines: [`What was written since ${time(snapshot.created)} leaves the volume: ${inWords(changed)}.`, `It is kept as the snapshot ${plan.kept_as}. Newer snapshots stay.`, ...connected(plan.connected)],
        bad: blocked, stop: blocked,
      };
    },
    run: async () => {
      const done = await post(`${route(snapshot)}/rollback`, { dry_run: false, force: force.value() });
      return `${volume} is as it was at @${short(snapshot)}; the state before is ${done.kept_as}`;
    },
  });
}

function clone(volume, snapshot) {
  const name = field('Name of the new volume', { name: 'clone', required: true, value: `${volume.split('/')[1]}-clone` });
  ask({
    title: `Clone @${short(snapshot)}`, button: 'Clone', fields: [name],
    before: async () => ({ lines: ['A writable volume begins with the content of this snapshot. Nothing is lost, and it takes no space before it is written to.', 'The snapshot cannot be destroyed while the clone depends on it.'] }),
    run: async () => `${(await post(`${route(snapshot)}/clone`, { name: `${volume.split('/')[0]}/${name.value()}` })).name} is there`,
  });
}

function compare(snapshot, all) {
  const later = all.filter((one) => one.epoch > snapshot.epoch).slice(-500).reverse();
  const other = field('Compare with', { name: 'other', choices: [['', 'the head of the volume'], ...later.map((one) => [one.name, `@${short(one)}`])] });
  ask({
    title: `What changed since @${short(snapshot)}`, button: 'Close', fields: [other],
    before: async () => {
      const changed = await differences(snapshot.name, other.value() || null);
      return { lines: [inWords(changed)], list: changed.extents.map((one) => `${bytes(one.length)} of ${one.kind} at ${bytes(one.offset)} (byte ${one.offset})`) };
    },
    run: async () => '',
  });
}

function hold(snapshot) {
  const label = field('Tag', { name: 'tag', placeholder: 'reason for the hold' });
  const until = field('Until (empty: until it is released)', { name: 'until', type: 'datetime-local' });
  ask({
    title: `Hold @${short(snapshot)}`, button: 'Hold', fields: [label, until],
    before: async () => ({ lines: ['A held snapshot cannot be destroyed, also not when it expires. Nothing is lost.'] }),
    run: async () => {
      await post(`${route(snapshot)}/hold`, { tag: label.value() || null, until: until.value() ? new Date(until.value()).toISOString() : null });
      return `@${short(snapshot)} is held`;
    },
  });
}

function release(snapshot) {
  const which = field('Hold', { name: 'hold', choices: snapshot.hold_list.filter((one) => !one.locked).map((one) => [one.tag ?? '', one.tag ?? 'without a tag']) });
  ask({
    title: `Release a hold of @${short(snapshot)}`, button: 'Release', danger: true, fields: [which],
    before: async () => ({ lines: ['Without a hold the snapshot can be destroyed, by hand or when it expires.', ...snapshot.hold_list.filter((one) => one.locked).map((one) => `Its lock stays until ${time(one.until)}.`)] }),
    run: async () => {
      await post(`${route(snapshot)}/release${which.value() ? `?tag=${part(which.value())}` : ''}`);
      return `The hold of @${short(snapshot)} is released`;
    },
  });
}

function destroy(name, more = {}) {
  const body = (dry) => ({ name, more: [], recursive: false, clones: false, unexport: false, force: false, dry_run: dry, ...more });
  ask({
    title: `Destroy ${name}`, button: 'Destroy', danger: true,
    before: async () => {
      const plan = await post('/v1/destroy', body(true));
      return { lines: [`${plan.exact ? '' : 'About '}${bytes(plan.freed_bytes)} are freed. This cannot be undone. Lost for good:`], list: plan.destroyed, bad: true };
    },
    run: async () => {
      const done = await post('/v1/destroy', body(false));
      if (!name.includes('@')) location.hash = poolLink(name.split('/')[0]);
      return `Destroyed: ${done.destroyed.slice(0, 3).join(', ')}${done.destroyed.length > 3 ? ` and ${done.destroyed.length - 3} more` : ''}`;
    },
  });
}

export function volume(pool, name) {
  const full = `${pool}/${name}`;
  const top = h('div', {});
  const actions = h('div', { class: 'chosen', role: 'region', 'aria-label': 'Selected snapshot', 'aria-live': 'polite' });
  const live = liveCharts(pool, name);
  const line = timeline(full, (snapshot) => list.select(snapshot.name));
  let snapshots = [];
  let most = 1;
  let dirty = true;
  let listed = 0;
  const list = virtualList({
    label: `Snapshots of ${full}, newest first`, columns: 'cols-snapshot', heads: ['Snapshot', 'Taken', 'Marks', 'Unique', ''],
    key: (snapshot) => snapshot.name,
    cells: (snapshot) => [`@${short(snapshot)}`, time(snapshot.created), marks(snapshot), bytes(snapshot.unique_bytes), meter(snapshot)],
    pick: (snapshot) => { line.select(snapshot.name); show(snapshot); },
  });
  function meter(snapshot) {
    const one = h('span', { class: 'meter' });
    one.style.width = `${(100 * Math.sqrt(snapshot.unique_bytes / most)).toFixed(1)}%`;
    return one;
  }
  const marks = (snapshot) => [snapshot.holds > 0 && [tag('held'), ' '], snapshot.clones > 0 && [tag(`${snapshot.clones} clones`), ' '], snapshot.expires && h('span', { class: 'quiet' }, `expires ${time(snapshot.expires)} `), snapshot.description];
  function show(snapshot) {
    if (!snapshot) {
      put(actions, h('p', { class: 'quiet' }, 'Select a snapshot in the line or in the list to roll back, clone, compare, hold or destroy.'));
      return;
    }
    const can = may('operator');
    put(actions, h('div', { class: 'head' }, h('h2', {}, `@${short(snapshot)}`), marks(snapshot), h('span', { class: 'spring' }),
      can && h('button', { onclick: () => rollBack(full, snapshot) }, 'Roll back…'),
      can && h('button', { onclick: () => clone(full, snapshot) }, 'Clone…'),
      h('button', { onclick: () => compare(snapshot, snapshots) }, 'Compare…'),
      can && h('button', { onclick: () => hold(snapshot) }, 'Hold…'),
      can && snapshot.hold_list.some((one) => !one.locked) && h('button', { onclick: () => release(snapshot) }, 'Release…'),
      can && h('button', { class: 'danger', onclick: () => destroy(snapshot.name) }, 'Destroy…')),
      facts([['Taken', time(snapshot.created)], ['Referenced', bytes(snapshot.referenced_bytes)], ['Unique', bytes(snapshot.unique_bytes)], ['Size', bytes(snapshot.size)],
        ['Holds', snapshot.hold_list.map((one) => `${one.tag ?? 'without a tag'}${one.until ? ` until ${time(one.until)}` : ''}${one.locked ? ' (lock)' : ''}`).join(', ') || 'none']]));
  }
  const node = h('div', {}, top, h('section', { class: 'card', 'aria-label': 'Timeline' }, line.node, actions, list.node), live.node);
  async function refresh() {
    const path = `pool=${part(pool)}&volume=${part(name)}`;
    const age = Date.now() - listed;
    const again = age > STALE || (dirty && age > (snapshots.length > LONG ? GAP : 0));
    const [view, of, exports] = await Promise.all([get(`/v1/volumes/${part(pool)}/${part(name)}`), again ? get(`/v1/snapshots?${path}`) : snapshots, get('/v1/exports')]);
    if (again) [dirty, listed] = [false, Date.now()];
    snapshots = of;
    most = snapshots.reduce((high, one) => Math.max(high, one.unique_bytes), 1);
    const withClones = snapshots.some((one) => one.clones > 0);
    const clones = withClones ? (await get(`/v1/volumes?pool=${part(pool)}`)).filter((one) => one.origin?.startsWith(`${full}@`)) : [];
    const serving = exports.filter((one) => one.name === full || one.name.startsWith(`${full}@`));
    put(top, h('div', { class: 'head' }, h('p', { class: 'crumb' }, h('a', { href: poolLink(pool) }, `Pool ${pool}`)), h('h1', {}, full), view.readonly && tag('readonly'), h('span', { class: 'spring' }),
      may('operator') && [h('button', { class: 'main', onclick: () => take(full) }, 'Snapshot…'), h('button', { onclick: () => newExport(full) }, 'Export…'),
        h('button', { class: 'danger', onclick: () => destroy(full, { recursive: true }) }, 'Destroy volume…')]),
      h('section', { class: 'card', 'aria-label': 'Volume' }, facts([['Size', bytes(view.size)], ['Referenced', bytes(view.referenced_bytes)], ['Unique', bytes(view.unique_bytes)],
        ['Sectors', view.sector], ['Cache', view.cache], ['Compression', view.compression], ['Created', time(view.created)],
        ['Origin', view.origin ? h('a', { href: volumeLink(view.origin.split('@')[0]) }, view.origin) : null],
        ['Exports', serving.length ? h('a', { href: '#/exports' }, `${serving.length} (${serving.reduce((sum, one) => sum + one.clients, 0)} clients)`) : 'none'],
        ['Clones', clones.length ? clones.slice(0, 5).map((one, at) => [at > 0 && ', ', h('a', { href: volumeLink(one.name) }, one.name.split('/')[1])]) : null]])));
    line.set(snapshots, clones);
    const chosen = list.selected();
    list.set([...snapshots].reverse());
    show(snapshots.find((one) => one.name === chosen?.name) ?? null);
  }
  function event(one) {
    dirty ||= one.pool === pool;
    live.event(one);
  }
  return { node, refresh, title: full, event, stop: live.stop };
}
