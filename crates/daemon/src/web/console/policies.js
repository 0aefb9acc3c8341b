// Policies: which snapshots are taken when and kept how long, and how their runs go.

import { get, may, part, patch, post, remove } from './api.js';
import { ask, field, tick } from './dialog.js';
import { facts, h, put, table, tag } from './dom.js';
import { count, span, time } from './format.js';
import { volumeLink } from './pool.js';

/** Most volumes of a policy that are listed. */
const MOST = 200;

const route = (policy) => `/v1/policies/${part(policy.name)}`;

/** "7d" -> seconds; 0 for nothing. */
function seconds(label, text) {
  if (!text) return 0;
  const match = /^(\d+)\s*([smhdw])$/.exec(text);
  if (!match) throw new Error(`${label}: '${text}' is no span of time; give for example 24h, 7d or 2w`);
  return Number(match[1]) * { s: 1, m: 60, h: 3600, d: 86400, w: 604800 }[match[2]];
}

const inUnits = (of) => {
  const unit = [[604800, 'w'], [86400, 'd'], [3600, 'h'], [60, 'm'], [1, 's']].find(([size]) => of && of % size === 0);
  return unit ? `${of / unit[0]}${unit[1]}` : '';
};

/** The fields of a policy's properties, and the request that they make. */
function properties(policy) {
  const keep = field('Keep: spacing and span of time, such as 1h:2d 1d:30d', { name: 'keep', required: true, value: policy?.keep ?? '1h:2d 1d:30d' });
  const at = field('At calendar times, such as daily 02:30 (empty: as often as the rules keep)', { name: 'at', value: policy?.at ?? '' });
  const zone = field('Time zone (empty: that of the host)', { name: 'zone', value: policy?.zone ?? '' });
  const lock = field('Lock: cannot be destroyed for (empty: no lock)', { name: 'lock', placeholder: '7d', value: inUnits(policy?.lock_seconds) });
  const expire = field('Destroy in any case after (empty: by the rules alone)', { name: 'expire', placeholder: '60d', value: inUnits(policy?.expire_seconds) });
  const freeze = field('Socket of the guest agent, to freeze guests (empty: they are not frozen)', { name: 'freeze', placeholder: '/var/run/qemu-server/{vmid}.qga', value: policy?.freeze ?? '' });
  const required = tick('Take no snapshot of a guest that cannot be frozen');
  const group = tick('All volumes of a pool at one instant');
  required.input.checked = policy?.freeze_required ?? false;
  group.input.checked = policy?.group ?? false;
  return {
    fields: [keep, at, zone, lock, expire, freeze, required, group],
    request: () => ({
      keep: keep.value(), at: at.value(), ...(zone.value() && { zone: zone.value() }), group: group.value(),
      lock_seconds: seconds('Lock', lock.value()), expire_seconds: seconds('Destroy', expire.value()),
      freeze: freeze.value(), freeze_required: required.value(),
    }),
  };
}

const times = (policy) => (policy.at ? `${policy.at} (${policy.zone})` : 'as often as the rules keep');
const atMost = (policy) => `at most ${count(policy.keeps)} of each volume`;

function create() {
  const name = field('Name', { name: 'policy', required: true, placeholder: 'hourly' });
  const of = properties();
  const body = (dry) => {
    const { at, freeze, ...rest } = of.request();
    return { name: name.value(), ...rest, at: at || null, freeze: freeze || null, dry_run: dry };
  };
  ask({
    title: 'New policy', button: 'Create', fields: [name, ...of.fields],
    before: async () => {
      if (!name.value()) return { lines: ['Name the policy. Nothing is lost: it has no volumes yet.'], stop: true };
      const plan = await post('/v1/policies', body(true));
      return { lines: [`It takes snapshots ${times(plan)} and keeps ${atMost(plan)}.`, 'It begins once volumes are attached. Nothing is lost.'] };
    },
    run: async () => `Policy ${(await post('/v1/policies', body(false))).name} is there; attach volumes to it`,
  });
}

/** What a run would take and destroy. */
function planned(run) {
  return {
    lines: [`The next run takes ${count(run.taken.length)} snapshots and destroys ${count(run.destroyed.length)}${run.destroyed.length ? '. Lost for good:' : '.'}`,
      ...(run.kept.length ? [`${count(run.kept.length)} more are superfluous, and stay while they are held, locked, served or cloned.`] : [])],
    list: run.destroyed, bad: run.destroyed.length > 0,
  };
}

function change(policy) {
  const of = properties(policy);
  ask({
    title: `Change policy ${policy.name}`, button: 'Change', danger: true, fields: of.fields,
    before: async () => (policy.volumes.length === 0 ? { lines: ['No volume is attached: nothing is lost.'] }
      : planned(await post(`${route(policy)}/run`, { dry_run: true, change: of.request() }))),
    run: async () => {
      const now = await patch(route(policy), of.request());
      return `Policy ${now.name} keeps ${atMost(now)}`;
    },
  });
}

function runNow(policy) {
  ask({
    title: `Run policy ${policy.name} now`, button: 'Run', danger: true,
    before: async () => planned(await post(`${route(policy)}/run`, { dry_run: true })),
    run: async () => {
      const done = await post(`${route(policy)}/run`, { dry_run: false });
      const frozen = done.not_frozen.length ? `; not frozen: ${done.not_frozen.join('; ')}` : '';
      return `${count(done.taken.length)} taken, ${count(done.destroyed.length)} destroyed${frozen}`;
    },
  });
}

async function attach(policy) {
  const has = new Set(policy.volumes.map((one) => one.name));
  const free = (await get('/v1/volumes')).map((one) => one.name).filter((name) => !has.has(name)).sort((one, other) => one.localeCompare(other, 'en', { numeric: true }));
  const pools = [...new Set(free.map((name) => name.split('/')[0]))];
  const which = field('Volume', { name: 'volume', choices: [...free.map((name) => [name, name]), ...pools.map((pool) => [`${pool}/*`, `all other volumes of ${pool}`])] });
  const chosen = () => (which.value().endsWith('/*') ? free.filter((name) => name.startsWith(which.value().slice(0, -1))) : [which.value()].filter(Boolean));
  ask({
    title: `Attach volumes to policy ${policy.name}`, button: 'Attach', fields: [which],
    before: async () => (chosen().length === 0 ? { lines: ['No other volume is there.'], stop: true }
      : { lines: [`Snapshots of ${count(chosen().length)} more volumes are taken ${times(policy)}, and ${atMost(policy)} are kept. Nothing is lost.`], list: chosen() }),
    run: async () => {
      await post(`${route(policy)}/attach`, { volumes: chosen() });
      return `${count(chosen().length)} volumes are under policy ${policy.name}`;
    },
  });
}

function detach(policy, volume) {
  ask({
    title: `Detach ${volume.name} from policy ${policy.name}`, button: 'Detach', danger: true,
    before: async () => ({ lines: ['No more snapshots of it are taken by this policy. Those that are there stay until somebody destroys them or they expire.'] }),
    run: async () => {
      await post(`${route(policy)}/detach`, { volumes: [volume.name] });
      return `${volume.name} is not under policy ${policy.name} any more`;
    },
  });
}

function destroy(policy) {
  ask({
    title: `Destroy policy ${policy.name}`, button: 'Destroy', danger: true,
    before: async () => {
      const plan = await remove(`${route(policy)}?dry_run=true`);
      return { lines: [`${count(plan.volumes.length)} volumes get no more snapshots from it. Their snapshots stay until somebody destroys them or they expire.`], list: plan.volumes.map((one) => one.name), bad: plan.volumes.length > 0 };
    },
    run: async () => {
      await remove(route(policy));
      return `Policy ${policy.name} is destroyed`;
    },
  });
}

function card(policy) {
  const can = may('operator');
  const some = policy.volumes.slice(0, MOST);
  return h('section', { class: 'card', 'aria-label': `Policy ${policy.name}` },
    h('div', { class: 'head' }, h('h2', {}, policy.name), tag(policy.state), h('span', { class: 'spring' }),
      can && [h('button', { onclick: () => attach(policy) }, 'Attach…'), policy.volumes.length > 0 && h('button', { onclick: () => runNow(policy) }, 'Run now…'),
        h('button', { onclick: () => change(policy) }, 'Change…'), h('button', { class: 'danger', onclick: () => destroy(policy) }, 'Destroy…')]),
    policy.reason && h('p', { class: 'loss bad' }, policy.reason),
    facts([['Keeps', `${policy.keep}, ${atMost(policy)}`], ['Runs', times(policy)], ['Group', policy.group ? 'at one instant' : null],
      ['Lock', policy.lock_seconds ? span(policy.lock_seconds) : null], ['Expire', policy.expire_seconds ? `after ${span(policy.expire_seconds)}` : null],
      ['Pruned when full', policy.prune ? `order ${policy.prune}` : null],
      ['Guests frozen', policy.freeze ? `${policy.freeze}${policy.freeze_required ? ', required' : ''}` : null],
      ['Taken', count(policy.taken)], ['Destroyed', count(policy.destroyed)], ['Missed runs', count(policy.missed)],
      ['Runs without freezing', policy.freeze ? count(policy.not_frozen) : null]]),
    table(`Volumes of policy ${policy.name}`, [
      ['Volume', (one) => h('a', { href: volumeLink(one.name) }, one.name)],
      ['State', (one) => [tag(one.state), (one.reason || one.not_frozen) && h('div', { class: 'quiet' }, one.reason ?? `not frozen: ${one.not_frozen}`)]],
      ['Snapshots', (one) => (one.snapshots === null ? '–' : count(one.snapshots)), true],
      ['Oldest', (one) => time(one.oldest)],
      ['Last run', (one) => time(one.newest)],
      ['Next run', (one) => time(one.next)],
      ...(can ? [['Action', (one) => h('button', { onclick: () => detach(policy, one), 'aria-label': `Detach ${one.name}` }, 'Detach…')]] : []),
    ], some, 'No volume is attached.'),
    policy.volumes.length > MOST && h('p', { class: 'quiet' }, `and ${count(policy.volumes.length - MOST)} more volumes`));
}

export function policies() {
  const node = h('div', {});
  let shown = '';
  async function refresh() {
    const all = await get('/v1/policies');
    // the keyboard's focus stays where it is while nothing has changed
    const key = JSON.stringify(all);
    if (key === shown) return;
    shown = key;
    put(node, h('div', { class: 'head' }, h('h1', {}, 'Policies'), h('span', { class: 'spring' }), may('operator') && h('button', { class: 'main', onclick: create }, 'New policy…')),
      all.length === 0 ? h('p', { class: 'card empty' }, 'No policy yet: snapshots are taken only by hand.') : all.map(card));
  }
  return { node, refresh, title: 'Policies' };
}
