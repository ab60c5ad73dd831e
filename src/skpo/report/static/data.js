// Packed data (see pack.py): base64 of gzip of a JSON header and typed arrays.

const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

// The overview's data stand before this script, the rest behind it: what is behind is there once the whole file is parsed.
const parsed = new Promise((done) => { document.addEventListener('DOMContentLoaded', done, { once: true }); });

async function unpack(id) {
  if (id !== 'data-main') await parsed;
  if (typeof DecompressionStream === 'undefined') throw new Error('this browser has no DecompressionStream; any from 2023 on has');
  const stream = new Blob([fromBase64($(id).textContent)]).stream().pipeThrough(new DecompressionStream('gzip'));
  const buffer = await new Response(stream).arrayBuffer();
  const size = new DataView(buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  const base = 4 + size + ((8 - ((4 + size) % 8)) % 8);
  const arrays = {};
  for (const [name, kind, offset, length] of header.arrays) arrays[name] = new TYPES[kind](buffer, base + offset, length);
  return { header, arrays };
}

const positiveValue = (code) => (code === 255 ? NaN : Math.expm1(code / 40) / 20);
const signedValue = (code) => (code === 255 ? NaN : (Math.sign(code - 127) * Math.expm1(Math.abs(code - 127) / 20)) / 50);

// ids from three byte planes
function merged(arrays, name) {
  const [a, b, c] = [0, 1, 2].map((i) => arrays[`${name}${i}`]);
  if (!a) return new Uint32Array(0);
  const ids = new Uint32Array(a.length);
  for (let i = 0; i < a.length; i++) ids[i] = a[i] | (b[i] << 8) | (c[i] << 16);
  return ids;
}

function sums(lengths) {
  const out = new Uint32Array(lengths.length + 1);
  for (let i = 0; i < lengths.length; i++) out[i + 1] = out[i] + lengths[i];
  return out;
}

// A block of groups' details, with the offsets that find a group's rows, contexts and tokens in it.
class Block {
  constructor({ header, arrays }) {
    this.header = header;
    this.arrays = arrays;
    this.rowAt = sums(arrays.group_rows);
    this.hasTokens = 'token_id0' in arrays;
    this.hasTexts = Array.isArray(header.texts);
    if (!this.hasTokens) return;
    this.ids = merged(arrays, 'token_id');
    this.tokenAt = sums(arrays.row_length);
    this.contextAt = sums(arrays.group_contexts || []);
    this.contextIds = merged(arrays, 'context');
    this.contextIdAt = sums(arrays.context_length || []);
  }

  rows(place) {
    const out = [];
    for (let row = this.rowAt[place]; row < this.rowAt[place + 1]; row++) out.push(this.row(row, place));
    return out;
  }

  row(row, place) {
    const { arrays } = this;
    const note = this.header.infos.of[row];
    const own = { block: this, row, place, info: note < 0 ? null : this.header.infos.distinct[note] };
    for (const [name, values] of Object.entries(arrays)) if (name.startsWith('row_')) own[name.slice(4)] = values[row];
    return own;
  }

  // number of a row's token values: null where the run did not log them
  values(row, name) {
    const codes = this.arrays[`token_${name}`];
    if (!codes) return null;
    const own = codes.subarray(this.tokenAt[row.row], this.tokenAt[row.row + 1]);
    if (!own.length || own.every((code) => code === 255)) return null;
    if (name === 'token_advantage') return Float32Array.from(own, (c) => (c === 255 ? NaN : ((c - 127) / 127) * row.scale));
    return Float32Array.from(own, name === 'log_ratio' ? signedValue : positiveValue);
  }

  tokens(row) {
    return this.ids.subarray(this.tokenAt[row.row], this.tokenAt[row.row + 1]);
  }

  context(row) {
    const index = this.contextAt[row.place] + row.context;
    return this.contextIds.subarray(this.contextIdAt[index], this.contextIdAt[index + 1]);
  }
}
