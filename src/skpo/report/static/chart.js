// Line and area charts in SVG. Colours come from CSS, so that a change of theme needs no redraw.

const MARGIN = { left: 50, right: 12, top: 8, bottom: 22 };

function ticks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((f) => f * power).find((s) => s >= rough * 0.999);
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) out.push(i * step);
  return out;
}

function logTicks(low, high) {
  const out = [];
  const every = Math.max(1, Math.ceil((high - low) / 5));
  for (let p = Math.ceil(low - 1e-9); p <= high + 1e-9; p += every) out.push(p);
  return out.length >= 2 ? out : ticks(low, high, 3);
}

// Centred running mean over `width` points; NaN and infinite values are left out.
function smooth(values, width) {
  if (width <= 1) return Float64Array.from(values);
  const n = values.length;
  const half = width >> 1;
  const total = new Float64Array(n + 1);
  const seen = new Uint32Array(n + 1);
  for (let i = 0; i < n; i++) {
    const good = Number.isFinite(values[i]);
    total[i + 1] = total[i] + (good ? values[i] : 0);
    seen[i + 1] = seen[i] + (good ? 1 : 0);
  }
  return Float64Array.from(values, (v, i) => {
    const [a, b] = [Math.max(0, i - half), Math.min(n, i + half + 1)];
    return Number.isFinite(v) ? (total[b] - total[a]) / (seen[b] - seen[a]) : v;
  });
}

// Path of points; at more than two a pixel only each pixel's lowest and highest are kept.
function path(xs, ys, toX, toY, pixels) {
  const kept = xs.length > 2 * pixels ? extremes(xs, ys, toX) : null;
  let text = '';
  let pen = false;
  const n = kept ? kept.length : xs.length;
  for (let j = 0; j < n; j++) {
    const i = kept ? kept[j] : j;
    const y = toY(ys[i]);
    if (Number.isNaN(ys[i])) continue; // the metric is not in this record: the line goes on
    if (!Number.isFinite(y)) pen = false; // not finite, or not positive on a log axis: a gap
    else {
      text += `${pen ? 'L' : 'M'}${toX(xs[i]).toFixed(1)} ${y.toFixed(1)}`;
      pen = true;
    }
  }
  return text;
}

function extremes(xs, ys, toX) {
  const kept = [];
  let column = null;
  let low = -1;
  let high = -1;
  const flush = () => { if (low >= 0) kept.push(...(low === high ? [low] : [Math.min(low, high), Math.max(low, high)])); };
  for (let i = 0; i < xs.length; i++) {
    if (!Number.isFinite(ys[i])) continue;
    const c = Math.round(toX(xs[i]));
    if (c !== column) { flush(); column = c; low = i; high = i; }
    else { if (ys[i] < ys[low]) low = i; if (ys[i] > ys[high]) high = i; }
  }
  flush();
  return kept;
}

// `element` is redrawn at every change of its width, and first when it comes into view.
function plot(element, draw) {
  let width = 0;
  let seen = false;
  const redraw = () => { if (seen && width > 0) element.replaceChildren(draw(width)); };
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now !== width) { width = now; redraw(); }
  }).observe(element);
  const watch = new IntersectionObserver((entries) => {
    if (entries.some((e) => e.isIntersecting)) { seen = true; watch.disconnect(); redraw(); }
  }, { rootMargin: '400px' });
  watch.observe(element);
  return redraw;
}

function frame(width, height, scale, labels) {
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, class: 'chart', role: 'img' });
  root.append(svg('title', {}, labels.title));
  for (const t of scale.yTicks) {
    const y = scale.toYTick(t);
    root.append(svg('line', { class: 'grid', x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }));
    root.append(svg('text', { class: 'tick', x: MARGIN.left - 7, y: y + 3.5, 'text-anchor': 'end' }, labels.y(t)));
  }
  for (const t of scale.xTicks) {
    const x = scale.toX(t);
    const anchor = x > width - 28 ? 'end' : 'middle';
    root.append(svg('text', { class: 'tick', x, y: height - 5, 'text-anchor': anchor }, short(t)));
  }
  return root;
}

function range(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of values) for (const v of list) if (Number.isFinite(v)) { if (v < low) low = v; if (v > high) high = v; }
  return [low, high];
}

function scales(width, height, xs, ys, { log, zero }) {
  let [x0, x1] = range(xs);
  if (x0 === x1) [x0, x1] = [x0 - 0.5, x1 + 0.5];
  const forY = log ? (v) => (v > 0 ? Math.log10(v) : NaN) : (v) => v;
  let [low, high] = range(ys.map((list) => Array.from(list, forY)));
  if (low > high) [low, high] = [0, 1];
  if (zero && !log) low = Math.min(0, low);
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
  if (!(zero && low === 0)) low -= room;
  high = !log && high > 0.8 && high <= 1 ? Math.min(1.02, high + room) : high + room; // shares end at 1
  const toX = (v) => MARGIN.left + ((v - x0) / (x1 - x0)) * (width - MARGIN.left - MARGIN.right);
  const place = (v) => height - MARGIN.bottom - ((v - low) / (high - low)) * (height - MARGIN.top - MARGIN.bottom);
  return {
    toX, toY: (v) => place(forY(v)), toYTick: place, x0, x1,
    xTicks: ticks(x0, x1, Math.max(2, width / 110)), yTicks: log ? logTicks(low, high) : ticks(low, high, height / 38),
  };
}

// series: [{name, colour (CSS class), xs, ys, low?, high?, dashed?, points?}]; options: {height, log, smoothing, zero, title, xName}
function lineChart(width, series, options) {
  const height = options.height || 168;
  const drawn = series.map((s) => ({ ...s, shown: options.smoothing > 1 && !s.points ? smooth(s.ys, options.smoothing) : s.ys }));
  if (!drawn.some((s) => s.ys.some((v) => Number.isFinite(v)))) return emptyChart(width, height, 'no finite value');
  const raw = drawn.flatMap((s) => [s.ys, s.low, s.high]).filter(Boolean);
  const scale = scales(width, height, drawn.map((s) => s.xs), raw, options);
  const label = options.log ? (t) => short(10 ** t) : (t) => short(Math.abs(t) < 1e-12 ? 0 : t);
  const root = frame(width, height, scale, { title: options.title, y: label });
  for (const s of drawn) {
    if (s.low) root.append(band(s, scale));
    const pale = s.shown !== s.ys;
    if (pale) root.append(svg('path', { class: `line pale ${s.colour}`, d: path(s.xs, s.ys, scale.toX, scale.toY, width) }));
    root.append(svg('path', { class: `line ${s.dashed ? 'dashed ' : ''}${s.colour}`, d: path(s.xs, s.shown, scale.toX, scale.toY, width) }));
    root.append(...marks(s, scale, height));
  }
  const hidden = options.log ? drawn.reduce((n, s) => n + s.ys.filter((v) => v <= 0).length, 0) : 0;
  if (hidden) root.append(svg('text', { class: 'note', x: width - MARGIN.right, y: 16, 'text-anchor': 'end' }, `${count(hidden, 'value')} ≤ 0 not on a log axis`));
  hover(root, drawn, scale, width, height, options);
  return root;
}

function band(s, scale) {
  const at = [...s.xs.keys()].filter((i) => Number.isFinite(s.low[i]) && Number.isFinite(scale.toY(s.high[i])));
  const point = (i, v) => `${scale.toX(s.xs[i]).toFixed(1)} ${scale.toY(v).toFixed(1)}`;
  if (!at.length) return svg('g');
  const d = `M${at.map((i) => point(i, s.high[i])).join('L')}L${at.reverse().map((i) => point(i, s.low[i])).join('L')}Z`;
  return svg('path', { class: `band ${s.colour}`, d });
}

// Dots on single points and on evaluations, and a red wedge where a value was not finite.
function marks(s, scale, height) {
  const out = [];
  const known = s.ys.reduce((n, v) => n + Number.isFinite(v), 0);
  for (let i = 0; i < s.xs.length; i++) {
    const x = scale.toX(s.xs[i]);
    if (s.ys[i] === Infinity) out.push(svg('path', { class: 'bad', d: `M${x - 4} ${height - MARGIN.bottom}h8l-4 -7z` }, svg('title', {}, 'not finite')));
    else if ((known === 1 || (s.points && known <= 60)) && Number.isFinite(scale.toY(s.ys[i]))) {
      out.push(svg('circle', { class: `dot ${s.colour}`, cx: x, cy: scale.toY(s.ys[i]), r: s.dashed ? 2 : 3 }));
    }
  }
  return out;
}

function emptyChart(width, height, text) {
  const root = svg('svg', { viewBox: `0 0 ${width} ${height}`, width, height, class: 'chart' });
  root.append(svg('text', { class: 'note', x: width / 2, y: height / 2, 'text-anchor': 'middle' }, text));
  return root;
}

function nearest(xs, ys, x) {
  let best = -1;
  for (let i = 0; i < xs.length; i++) {
    if (!Number.isNaN(ys[i]) && (best < 0 || Math.abs(xs[i] - x) < Math.abs(xs[best] - x))) best = i;
  }
  return best;
}

function hover(root, series, scale, width, height, options) {
  const line = svg('line', { class: 'cross', y1: MARGIN.top, y2: height - MARGIN.bottom });
  line.style.display = 'none';
  root.append(line);
  const leave = () => { line.style.display = 'none'; hideTip(); };
  const move = (event) => {
    const box = root.getBoundingClientRect();
    const share = (event.clientX - box.left - MARGIN.left) / (width - MARGIN.left - MARGIN.right);
    if (share < -0.05 || share > 1.05) return leave();
    const x = scale.x0 + share * (scale.x1 - scale.x0);
    const lines = [];
    let at = null;
    for (const s of series) {
      const i = nearest(s.xs, s.ys, x);
      if (i < 0) continue;
      if (at === null || Math.abs(s.xs[i] - x) < Math.abs(at - x)) at = s.xs[i];
      const interval = s.low && Number.isFinite(s.low[i]) ? ` [${number(s.low[i])}, ${number(s.high[i])}]` : '';
      lines.push(h('div', { class: 'tip-row' }, h('i', { class: `swatch ${s.colour}` }), h('span', {}, s.name), h('b', {}, number(s.ys[i]) + interval)));
    }
    if (at === null) return leave();
    line.setAttribute('x1', scale.toX(at));
    line.setAttribute('x2', scale.toX(at));
    line.style.display = '';
    showTip(event, [h('div', { class: 'faint' }, `${options.xName} ${number(at)}`), ...lines]);
    return undefined;
  };
  root.addEventListener('pointermove', move);
  root.addEventListener('pointerdown', move);
  root.addEventListener('pointerleave', leave);
}

// layers: [{name, colour, ys}], one above the other
function areaChart(width, xs, layers, options) {
  const height = options.height || 168;
  const total = new Float64Array(xs.length);
  const edges = layers.map((layer) => {
    const below = Float64Array.from(total);
    layer.ys.forEach((v, i) => { total[i] += Number.isFinite(v) ? v : 0; });
    return { layer, below, above: Float64Array.from(total) };
  });
  if (!xs.length) return emptyChart(width, height, 'no step yet');
  const scale = scales(width, height, [xs], [total], { zero: true });
  const root = frame(width, height, scale, { title: options.title, y: short });
  const half = xs.length === 1 ? 0.25 : 0; // one step: a bar
  for (const { layer, below, above } of edges) {
    const point = (i, v, shift) => `${scale.toX(xs[i] + shift).toFixed(1)} ${scale.toY(v).toFixed(1)}`;
    const up = Array.from(above, (v, i) => point(i, v, -half));
    const down = Array.from(below, (v, i) => point(i, v, -half)).reverse();
    if (half) { up.push(point(0, above[0], half)); down.unshift(point(0, below[0], half)); }
    root.append(svg('path', { class: `area ${layer.colour}`, d: `M${up.join('L')}L${down.join('L')}Z` }));
  }
  hover(root, layers.map((l) => ({ name: l.name, colour: l.colour, xs, ys: l.ys })), scale, width, height, { xName: 'step' });
  return root;
}

// ---- the floating note of charts and tokens

function showTip(event, children) {
  const tip = $('tip');
  tip.replaceChildren(...children);
  tip.hidden = false;
  const [w, hgt] = [tip.offsetWidth, tip.offsetHeight];
  const left = event.clientX + 14 + w > innerWidth - 8 ? event.clientX - 14 - w : event.clientX + 14;
  const top = event.clientY + 16 + hgt > innerHeight - 8 ? event.clientY - 12 - hgt : event.clientY + 16;
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - w - 8))}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

function hideTip() {
  $('tip').hidden = true;
}
