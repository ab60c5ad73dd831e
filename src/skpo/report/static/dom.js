// Elements and numbers. Data only ever becomes text nodes and attributes set by name: nothing in a run is read as HTML.

function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (key === 'class') element.className = value;
    else if (key === 'style') for (const [name, v] of Object.entries(value)) element.style.setProperty(name, v);
    else element.setAttribute(key, value === true ? '' : value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== undefined && value !== null) element.setAttribute(key, value);
  }
  element.append(...children.filter((c) => c !== null && c !== undefined));
  return element;
}

const $ = (id) => document.getElementById(id);
const empty = (text) => h('p', { class: 'empty' }, text);

function option(value, text, selected) {
  return h('option', { value, selected: selected || undefined }, text);
}

// 0.4213, 12.3, 1,234, 2.50 M, 3.1e-6: about four digits, so that columns line up.
function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (!Number.isFinite(value)) return 'not finite';
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e6) return short(value);
  if (Number.isInteger(value)) return value.toLocaleString('en');
  if (size < 1e-3) return value.toExponential(1);
  return value.toLocaleString('en', { maximumSignificantDigits: 4, minimumFractionDigits: 0 });
}

function short(value) {
  const size = Math.abs(value);
  for (const [limit, sign] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']]) {
    if (size >= limit) return `${trim((value / limit).toPrecision(3))} ${sign}`;
  }
  return trim(Number(value.toPrecision(3)).toString());
}

const trim = (text) => (text.includes('.') && !text.includes('e') ? text.replace(/\.?0+$/, '') : text);
const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits).replace('-', '−') : '–');
const signed = (value, digits) => (value > 0 ? '+' : '') + fixed(value, digits);
const percent = (value, digits = 1) => (Number.isFinite(value) ? `${(100 * value).toFixed(digits)} %` : '–');
const count = (n, one, many) => `${n.toLocaleString('en')} ${n === 1 ? one : many || `${one}s`}`;

function duration(seconds) {
  if (!(seconds > 0)) return '–';
  if (seconds < 100) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 100 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`;
}
