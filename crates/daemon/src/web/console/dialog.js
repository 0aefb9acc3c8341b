// Dialogs: a question with fields, and what would be lost before anything is done.

import { h, note, put } from './dom.js';

/** Makes an input with its label. */
export function field(label, attributes = {}) {
  const input = attributes.choices
    ? h('select', { name: attributes.name }, attributes.choices.map(([value, text]) => h('option', { value }, text)))
    : h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', ...attributes });
  return { input, node: h('label', { class: 'field' }, h('span', {}, label), input), value: () => input.value.trim() };
}

/** Makes a box to tick. */
export function tick(label) {
  const input = h('input', { type: 'checkbox' });
  return { input, node: h('label', { class: 'row' }, input, label), value: () => input.checked };
}

/**
 * Asks before an action.
 * title, button: words; danger: colours the button; fields: of `field` and `tick`;
 * before: async () => {lines, list, bad, stop}: what the action would do, shown before it can be agreed to,
 * and again whenever a field changes; run: async () => text of a note.
 */
export function ask({ title, button, danger, fields = [], before, run }) {
  const opener = document.activeElement;
  const loss = h('div', { class: 'loss', role: 'status', 'aria-live': 'polite' }, 'Asking the daemon what this would do…');
  const trouble = h('p', { class: 'loss bad', role: 'alert', hidden: true });
  const go = h('button', { type: 'submit', class: danger ? 'danger' : 'main', disabled: Boolean(before) }, button);
  const cancel = h('button', { type: 'button' }, 'Cancel');
  const heading = h('h2', { id: 'dialog-title' }, title);
  const form = h('form', { method: 'dialog' }, heading, fields.map((one) => one.node), before && loss, trouble,
    h('div', { class: 'row' }, go, cancel));
  const dialog = h('dialog', { 'aria-labelledby': 'dialog-title' }, form);
  let turn = 0;

  const show = (error) => {
    trouble.hidden = false;
    put(trouble, error.message);
  };
  async function rehearse() {
    if (!before) return;
    turn += 1;
    const mine = turn;
    go.disabled = true;
    try {
      const { lines = [], list = [], bad = false, stop = false } = await before();
      if (mine !== turn) return;
      loss.className = bad ? 'loss bad' : 'loss';
      put(loss, lines.map((line) => h('p', {}, line)), list.length > 0 && h('ul', { tabindex: 0 }, list.slice(0, 200).map((one) => h('li', {}, one))),
        list.length > 200 && h('p', {}, `and ${list.length - 200} more`));
      go.disabled = stop;
    } catch (error) {
      if (mine !== turn) return;
      loss.className = 'loss bad';
      put(loss, h('p', {}, error.message));
    }
  }
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    go.disabled = true;
    trouble.hidden = true;
    try {
      const text = await run();
      dialog.close();
      if (text) note(text);
    } catch (error) {
      show(error);
      go.disabled = false;
    }
  });
  cancel.addEventListener('click', () => dialog.close());
  fields.forEach((one) => one.input.addEventListener('change', rehearse));
  dialog.addEventListener('close', () => {
    turn += 1;
    dialog.remove();
    if (opener?.isConnected) opener.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  rehearse();
}
