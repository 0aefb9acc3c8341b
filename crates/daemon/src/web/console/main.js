// The frame: login, pages by the address, and what keeps them current.

import { follow, login, logout, me, onLost, resume } from './api.js';
import { h, note, put } from './dom.js';
import { exportsPage } from './exports.js';
import { overview } from './overview.js';
import { policies } from './policies.js';
import { pool } from './pool.js';
import { events, health, jobs } from './records.js';
import { volume } from './volume.js';

const PAGES = [['', 'Overview', overview], ['exports', 'Exports', exportsPage], ['policies', 'Policies', policies], ['jobs', 'Jobs', jobs], ['health', 'Health', health], ['events', 'Events', events]];
/** Milliseconds between two readings of a page that no event has changed. */
const EVERY = 5000;
/** Milliseconds that events of one moment are collected for. */
const TOGETHER = 300;

const page = document.getElementById('page');
let current = null;
let timer = null;
let busy = false;
let again = false;

async function refresh() {
  if (!current || document.hidden) return;
  if (busy) {
    again = true;
    return;
  }
  busy = true;
  const mine = current;
  try {
    await mine.refresh();
    mine.failed = false;
    if (mine === current && !mine.node.isConnected) put(page, mine.node);
  } catch (error) {
    if (mine === current && me() && !mine.failed) {
      mine.failed = true;
      if (mine.node.isConnected && !mine.shown) put(page, h('section', { class: 'card alert bad', role: 'alert' }, h('h1', {}, mine.title), h('p', {}, error.message), h('button', { onclick: go }, 'Try again')));
      else note(error.message);
    }
  }
  mine.shown = mine.shown || !mine.failed;
  busy = false;
  if (again || mine !== current) {
    again = false;
    soon(TOGETHER);
  } else {
    soon(mine.every ?? EVERY);
  }
}

function soon(millis) {
  clearTimeout(timer);
  timer = setTimeout(refresh, millis);
}

function find(hash) {
  const parts = hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  if (parts[0] === 'pool' && parts[1]) return pool(parts[1]);
  if (parts[0] === 'volume' && parts[2]) return volume(parts[1], parts[2]);
  return (PAGES.find(([word]) => word === parts[0]) ?? PAGES[0])[2]();
}

function go() {
  if (!me()) return;
  current?.stop?.();
  document.querySelectorAll('dialog').forEach((one) => one.close());
  current = find(location.hash);
  put(page, current.node);
  document.title = `${current.title} – Millpond`;
  const word = location.hash.replace(/^#\/?/, '').split('/')[0];
  put(document.getElementById('nav'), PAGES.map(([path, title]) => h('a', { href: `#/${path}`, 'aria-current': (path === word || (path === '' && ['pool', 'volume'].includes(word))) && 'page' }, title)));
  window.scrollTo(0, 0);
  refresh();
}

function enter() {
  put(document.getElementById('who'), h('span', {}, `${me().who} (${me().role})`), h('button', { onclick: async () => { await logout().catch((error) => note(error.message)); leave('You are logged out.'); } }, 'Log out'));
  go();
  let waiting = null;
  follow((event) => {
    current?.event?.(event);
    if (event.severity !== 'info') note(event.message);
    waiting ??= setTimeout(() => { waiting = null; refresh(); }, TOGETHER);
  }, refresh);
}

function leave(reason) {
  current?.stop?.();
  current = null;
  clearTimeout(timer);
  put(document.getElementById('nav'));
  put(document.getElementById('who'));
  document.title = 'Log in – Millpond';
  const secret = h('input', { type: 'password', name: 'token', autocomplete: 'off', required: true });
  const trouble = h('p', { role: 'alert' }, reason);
  const form = h('form', { class: 'card login' }, h('h1', {}, 'Log in'), trouble,
    h('p', { class: 'quiet' }, 'On the host, ', h('code', {}, 'millpond token link'), ' prints a link that opens this console once. Or give a token:'),
    h('label', { class: 'field' }, h('span', {}, 'Token'), secret), h('button', { type: 'submit', class: 'main' }, 'Log in'));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    try {
      await login({ token: secret.value.trim() });
      enter();
    } catch (error) {
      put(trouble, error.message);
    }
  });
  put(page, form);
}

async function start() {
  const code = /^#login=([0-9a-f]+)$/.exec(location.hash)?.[1];
  if (code) {
    // the code is used up by the login; it is not kept in the history either
    history.replaceState(null, '', '/');
    try {
      await login({ code });
    } catch (error) {
      if (!(await resume().catch(() => null))) return leave(error.message);
    }
  } else if (!(await resume().catch(() => null))) {
    return leave('');
  }
  return enter();
}

onLost((reason) => leave(reason));
window.addEventListener('hashchange', () => {
  if (location.hash.startsWith('#page')) return;
  if (location.hash.startsWith('#login=')) start();
  else go();
});
document.addEventListener('visibilitychange', () => { if (!document.hidden) refresh(); });
start();
