// Tokens with a colour that says something: advantage, log-probability, entropy or ratio.

const COLOURINGS = {
  advantage: { name: 'advantage', low: 'pushed down', high: 'pushed up', diverging: true },
  nll: { name: 'log-probability', low: 'sure', high: 'surprising', most: 5, colour: '--heat' },
  entropy: { name: 'entropy', low: 'decided', high: 'undecided', most: 3, colour: '--entropy' },
  log_ratio: { name: 'ratio', low: 'made less likely', high: 'made more likely', diverging: true, least: 0.05 },
  none: { name: 'no colour' },
};
const LONGEST = 900; // tokens of a row that are shown at once

// How the rows of one group are coloured: {value(row) -> numbers | one number | null, most}
function colouring(kind, rows) {
  if (kind === 'none') return { kind, value: () => null, most: 1 };
  if (kind === 'advantage') {
    const value = (row) => (row.block.hasTokens && row.block.values(row, 'token_advantage')) || row.advantage;
    const size = (row) => { const v = value(row); return typeof v === 'number' ? Math.abs(v) : v.reduce((m, x) => Math.max(m, Math.abs(x) || 0), 0); };
    return { kind, value, most: Math.max(1e-6, ...rows.map(size).filter(Number.isFinite)) };
  }
  const spec = COLOURINGS[kind];
  const value = (row) => (row.block.hasTokens ? row.block.values(row, kind) : null);
  if (!spec.diverging) return { kind, value, most: spec.most };
  const all = rows.map(value).filter(Boolean);
  return { kind, value, most: Math.max(spec.least, ...all.map((v) => v.reduce((m, x) => Math.max(m, Math.abs(x) || 0), 0))) };
}

function background(scheme, value) {
  if (value === null || !Number.isFinite(value)) return '';
  const spec = COLOURINGS[scheme.kind];
  const share = Math.min(1, Math.abs(value) / scheme.most);
  const strength = spec.diverging ? share : Math.sqrt(share);
  if (strength < 0.02) return '';
  const colour = spec.diverging ? (value > 0 ? '--up' : '--down') : spec.colour;
  return `color-mix(in srgb, var(${colour}) ${(58 * strength).toFixed(0)}%, transparent)`;
}

function legend(kind, scheme) {
  const spec = COLOURINGS[kind];
  if (!spec.low) return h('span', { class: 'scale' });
  const steps = spec.diverging ? [-1, -0.5, 0, 0.5, 1] : [0, 0.1, 0.3, 0.6, 1];
  const cells = steps.map((s) => h('i', { style: { background: background({ kind, most: 1 }, s) || 'transparent' } }));
  const unit = kind === 'nll' ? `−${scheme.most} nats` : kind === 'log_ratio' ? `×${Math.exp(scheme.most).toPrecision(3)}` : number(scheme.most);
  return h('span', { class: 'scale' }, spec.low, h('span', { class: 'cells' }, cells), `${spec.high} (${unit})`);
}

// The text of one row. `query`: tokens that hold a piece of it are marked.
function tokenText(browser, row, scheme, query) {
  if (row.block.hasTexts) return h('div', { class: 'tokens' }, highlighted(row.block.header.texts[row.row], query));
  if (!row.block.hasTokens) return h('div', { class: 'tokens faint' }, 'text not in this page');
  const vocabulary = browser.vocabulary();
  const ids = row.block.tokens(row);
  const pieces = vocabulary.pieces(ids);
  const values = scheme.value(row);
  const hits = queryHits(pieces, query);
  const element = h('div', { class: 'tokens' });
  const add = (from, to) => {
    for (let i = from; i < to; i++) element.append(tokenSpan(pieces[i], i, vocabulary.special.has(ids[i]), background(scheme, typeof values === 'number' ? values : values && values[i]), hits && hits[i]));
  };
  const stop = ids.length > LONGEST * 1.2 ? LONGEST : ids.length;
  add(0, stop);
  if (!ids.length) element.append(h('span', { class: 'faint' }, '(no token)'));
  if (stop < ids.length) {
    const more = h('button', { type: 'button', class: 'more', onclick: () => { more.remove(); add(stop, ids.length); } }, `show the other ${count(ids.length - stop, 'token')}`);
    element.append(more);
  }
  tokenNotes(element, row, pieces, ids, vocabulary);
  return element;
}

function tokenSpan(piece, index, special, colour, hit) {
  const shown = piece === '' ? '·' : piece.replace(/\n/g, '↵\n');
  const span = h('span', { class: `t${special ? ' special' : ''}${hit ? ' hit' : ''}${piece === '' ? ' part' : ''}`, 'data-i': index }, shown);
  if (colour) span.style.backgroundColor = colour;
  return span;
}

function queryHits(pieces, query) {
  if (!query) return null;
  const text = pieces.join('').toLowerCase();
  const hits = new Uint8Array(pieces.length);
  const starts = [];
  pieces.reduce((at, piece, i) => { starts[i] = at; return at + piece.length; }, 0);
  for (let at = text.indexOf(query); at >= 0; at = text.indexOf(query, at + 1)) {
    for (let i = 0; i < pieces.length; i++) if (starts[i] < at + query.length && starts[i] + pieces[i].length > at) hits[i] = 1;
  }
  return hits;
}

function highlighted(text, query) {
  if (!query) return [text];
  const out = [];
  let from = 0;
  const lowered = text.toLowerCase();
  for (let at = lowered.indexOf(query); at >= 0; at = lowered.indexOf(query, from)) {
    out.push(text.slice(from, at), h('mark', {}, text.slice(at, at + query.length)));
    from = at + query.length;
  }
  return [...out, text.slice(from)];
}

// Numbers of the token under the pointer, or last tapped.
function tokenNotes(element, row, pieces, ids, vocabulary) {
  const known = { nll: row.block.values(row, 'nll'), entropy: row.block.values(row, 'entropy'), log_ratio: row.block.values(row, 'log_ratio'), token_advantage: row.block.values(row, 'token_advantage') };
  const line = (name, text) => h('div', { class: 'tip-row' }, h('span', {}, name), h('b', {}, text));
  const show = (event) => {
    const span = event.target.closest('.t');
    if (!span) return hideTip();
    const i = Number(span.dataset.i);
    const lines = [h('div', { class: 'code' }, JSON.stringify(pieces[i])), line('token', `${i + 1} of ${ids.length}, id ${vocabulary.ids[ids[i]]}`)];
    if (known.nll) lines.push(line('log-probability', `${fixed(-known.nll[i], 3)}  (${percent(Math.exp(-known.nll[i]))})`));
    if (known.entropy) lines.push(line('entropy', `${fixed(known.entropy[i], 3)} nats`));
    if (known.log_ratio) lines.push(line('ratio', fixed(Math.exp(known.log_ratio[i]), 3)));
    const advantage = known.token_advantage ? known.token_advantage[i] : row.advantage;
    if (Number.isFinite(advantage)) lines.push(line('advantage', signed(advantage, 3)));
    return showTip(event, lines);
  };
  element.addEventListener('pointermove', show);
  element.addEventListener('pointerdown', show);
  element.addEventListener('pointerleave', hideTip);
}
