// Numbers and times for people.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** 1536 -> "1.5 KiB" */
export function bytes(count) {
  let value = Number(count) || 0;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : Math.round(value * 10) / 10} ${UNITS[unit]}`;
}

/** 12345 -> "12,345" */
export const count = (number) => Math.round(Number(number) || 0).toLocaleString('en');

/** 0.5 -> "50 %" */
export const percent = (part, whole) => (whole > 0 ? `${((100 * part) / whole).toFixed(part / whole < 0.1 ? 1 : 0)} %` : '–');

/** Seconds -> "3 d 4 h" */
export function span(seconds) {
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  let left = Math.max(0, Math.round(seconds));
  const words = [];
  for (const [size, name] of units) {
    const number = Math.floor(left / size);
    left -= number * size;
    if (number > 0 && words.length < 2) words.push(`${number} ${name}`);
  }
  return words.length ? words.join(' ') : '0 s';
}

/** Microseconds -> "1.2 ms" */
export function micros(value) {
  if (value === null || value === undefined) return '–';
  if (value < 1000) return `${Math.round(value)} µs`;
  return value < 1e6 ? `${(value / 1000).toFixed(value < 1e4 ? 1 : 0)} ms` : `${(value / 1e6).toFixed(1)} s`;
}

const two = (number) => String(number).padStart(2, '0');

/** Time in the zone of the browser: "2027-01-31 12:00:05" */
export function time(text) {
  if (!text) return '–';
  const at = new Date(text);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** "5 min ago" */
export const ago = (text) => `${span((Date.now() - new Date(text)) / 1000)} ago`;

/** "10G" -> bytes; NaN for anything else. */
export function size(text) {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?\s*$/i.exec(text);
  if (!match) return NaN;
  return Math.round(Number(match[1]) * 1024 ** ' kmgtp'.indexOf(match[2].toLowerCase() || ' '));
}
