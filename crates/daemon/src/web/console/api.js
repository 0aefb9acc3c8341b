// The API: requests, the session, and the stream of events. The console uses the same routes as any
// other client.

/** A refused or failed request. */
export class Refused extends Error {
  constructor(status, kind, message) {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

// A note that this browser has had a session: without it none is asked for, which would only be
// refused. The session itself is a cookie that scripts cannot read.
const HAD = 'millpond-had-session';

let session = null;
let lost = () => {};

/** The caller of this session, or null. */
export const me = () => session;
/** Returns true if the caller has a role. */
export const may = (role) => ['viewer', 'operator', 'admin'].indexOf(session?.role) >= ['viewer', 'operator', 'admin'].indexOf(role);
/** Calls `then` when the session has ended. */
export const onLost = (then) => { lost = then; };

async function call(method, path, body) {
  const headers = {};
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (method !== 'GET' && session?.csrf) headers['x-millpond-csrf'] = session.csrf;
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), cache: 'no-store' });
  } catch {
    throw new Refused(0, 'unreachable', 'The daemon does not answer. Is it running?');
  }
  const text = await answer.text();
  if (answer.ok) return text ? JSON.parse(text) : null;
  let error = { kind: 'internal', message: `The daemon answered ${answer.status}` };
  try {
    error = JSON.parse(text).error;
  } catch { /* the answer of a proxy */ }
  if (answer.status === 401 && session) {
    session = null;
    lost(error.message);
  }
  throw new Refused(answer.status, error.kind, error.message);
}

export const get = (path) => call('GET', path);
export const post = (path, body) => call('POST', path, body ?? {});
export const patch = (path, body) => call('PATCH', path, body);
export const remove = (path) => call('DELETE', path);
/** Encodes a part of a path or a query. */
export const part = encodeURIComponent;

/** Opens a session with the code of a link or a token. */
export async function login(proof) {
  session = await call('POST', '/v1/session', proof);
  localStorage.setItem(HAD, '1');
  return session;
}

/** Returns the caller of the session that the browser has, or null. */
export async function resume() {
  if (!localStorage.getItem(HAD)) return null;
  try {
    session = await call('GET', '/v1/session');
  } catch (error) {
    if (error.status !== 401) throw error;
    session = null;
    localStorage.removeItem(HAD);
  }
  return session;
}

export async function logout() {
  await remove('/v1/session');
  session = null;
  localStorage.removeItem(HAD);
}

/** Calls `each` for every event from now on, and `again` after the connection was lost and is back. */
export async function follow(each, again) {
  let first = true;
  while (session) {
    try {
      const answer = await fetch('/v1/events', { cache: 'no-store' });
      if (!answer.ok) throw new Error(String(answer.status));
      if (!first) again();
      first = false;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split('\n');
        rest = lines.pop();
        lines.filter(Boolean).forEach((line) => each(JSON.parse(line)));
      }
    } catch { /* tried again below */ }
    await new Promise((wait) => { setTimeout(wait, 2000); });
    if (session) await resume().catch(() => {});
    if (!session) lost('The session has ended.');
  }
}
