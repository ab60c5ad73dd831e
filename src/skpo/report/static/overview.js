// The first view: runs in a table, held-out accuracy with intervals, where the time goes.

const X_NAMES = { step: 'step', tokens: 'generated tokens', seconds: 'seconds of training' };

function overviewView(page) {
  const root = $('overview');
  root.replaceChildren(
    ...notices(page),
    card('Runs', runTable(page)),
    card('Held-out accuracy', ...heldOut(page)),
    card('Time per step', timeSplit(page), 'Seconds of each step, evaluation left out.'),
  );
}

function card(title, ...content) {
  const parts = content.map((c) => (typeof c === 'string' ? h('p', { class: 'faint' }, c) : c));
  return h('section', { class: 'card' }, h('h2', {}, title), ...parts);
}

function notices(page) {
  const out = [];
  for (const run of page.runs) {
    const r = run.rollouts;
    if (r.unreadable.length) out.push(`${run.name}: ${count(r.unreadable.length, 'rollout file')} could not be read and is left out: ${r.unreadable.join('; ')}`);
    const columns = Object.values(run.series);
    const steps = [...run.step.keys()].filter((i) => columns.some((values) => values[i] === Infinity)).length;
    if (steps) out.push(`${run.name}: ${count(steps, 'record')} with values that are not finite; red wedges in the curves show where.`);
  }
  return out.map((text) => h('p', { class: 'notice' }, text));
}

function swatch(run) {
  return h('i', { class: `swatch ${run.colour}` });
}

function runTable(page) {
  const head = ['run', 'algorithm', 'steps', 'tokens', 'training time', 'held-out before', 'after', 'best', 'rollouts'];
  const rows = page.runs.map((run) => {
    const evals = run.evaluations;
    const best = evals.reduce((b, e) => (b === null || e.pass_at_1 > b.pass_at_1 ? e : b), null);
    const running = run.planned !== null && run.steps < run.planned;
    const steps = run.planned === null ? String(run.steps) : `${run.steps} of ${run.planned}`;
    return h('tr', {},
      h('th', { scope: 'row' }, swatch(run), run.name),
      h('td', { title: run.model || '' }, run.algorithm || '–'),
      h('td', { class: 'n', title: running ? 'stopped early, or still running when this page was written' : '' }, steps),
      h('td', { class: 'n' }, run.tokens ? short(run.tokens) : '–'),
      h('td', { class: 'n' }, duration(run.seconds)),
      h('td', { class: 'n' }, evals.length ? interval(evals[0]) : '–'),
      h('td', { class: 'n strong' }, evals.length > 1 ? interval(evals[evals.length - 1]) : '–'),
      h('td', { class: 'n' }, best ? `${percent(best.pass_at_1)} at step ${best.step}` : '–'),
      h('td', { class: 'n' }, run.rollouts.rollouts.toLocaleString('en')));
  });
  return h('div', { class: 'scroll' }, h('table', { class: 'runs' },
    h('thead', {}, h('tr', {}, head.map((text, i) => h('th', { class: i < 2 ? '' : 'n', scope: 'col' }, text)))), h('tbody', {}, rows)));
}

function interval(e) {
  return e.low === null ? percent(e.pass_at_1) : `${percent(e.pass_at_1)} ± ${(50 * (e.high - e.low)).toFixed(1)}`;
}

function heldOut(page) {
  const with_ = page.runs.filter((run) => run.evaluations.length);
  if (!with_.length) return [empty('No evaluation: the recipe has no held-out problems, or none was due yet.')];
  let axis = 'step';
  const holder = h('div', { class: 'figure tall' });
  const redraw = plot(holder, (width) => lineChart(width, heldOutSeries(page, with_, axis), {
    height: 280, title: 'Held-out pass@1 with 95 % intervals', xName: X_NAMES[axis],
  }));
  page.redraws.push(redraw);
  const choose = axisChoice('against', axis, (value) => { axis = value; redraw(); });
  const dashed = with_.some((run) => run.eval_k > 1);
  const note = `pass@1 with its 95 % interval over problems${dashed ? '; dashed: solved by one of k samples (pass@k)' : ''}.`;
  const chart = h('div', {}, h('div', { class: 'controls' }, choose), holder, h('p', { class: 'faint' }, note));
  return [h('div', { class: with_.length < 3 ? 'beside' : '' }, chart, evaluationTable(with_))];
}

function heldOutSeries(page, runs, axis) {
  const column = (run, key) => Float64Array.from(run.evaluations, (e) => (e[key] === null || e[key] === undefined ? NaN : e[key]));
  return runs.filter((run) => !page.hidden.has(run.index)).flatMap((run) => {
    const base = { colour: run.colour, xs: column(run, axis), points: true };
    const name = page.runs.length > 1 ? `${run.name} ` : '';
    const lines = [{ ...base, name: `${name}pass@1`, ys: column(run, 'pass_at_1'), low: column(run, 'low'), high: column(run, 'high') }];
    if (run.eval_k > 1) lines.push({ ...base, name: `${name}pass@${run.eval_k}`, ys: column(run, 'pass_at_k'), dashed: true });
    return lines;
  });
}

function axisChoice(label, current, change) {
  return h('label', {}, `${label} `, h('select', { onchange: (e) => change(e.target.value), 'aria-label': 'horizontal axis' },
    Object.entries(X_NAMES).map(([key, text]) => option(key, text, key === current))));
}

function evaluationTable(runs) {
  const steps = [...new Set(runs.flatMap((run) => run.evaluations.map((e) => e.step)))].sort((a, b) => a - b);
  const columns = (run) => ['pass@1', '95 %', ...(run.eval_k > 1 ? [`pass@${run.eval_k}`] : []), 'tokens each'];
  const cells = (run, step) => {
    const e = run.evaluations.find((x) => x.step === step);
    if (!e) return columns(run).map((_, i) => h('td', { class: i ? 'n' : 'n first' }, ''));
    const texts = [percent(e.pass_at_1), e.low === null ? '–' : `${(100 * e.low).toFixed(1)} – ${(100 * e.high).toFixed(1)}`,
      ...(run.eval_k > 1 ? [percent(e.pass_at_k)] : []), fixed(e.length, 1)];
    return texts.map((text, i) => h('td', { class: i ? 'n' : 'n first strong' }, text));
  };
  const groups = runs.length > 1 ? [h('tr', {}, h('th', {}, ''), runs.map((run) => h('th', { class: 'first', colspan: columns(run).length, scope: 'colgroup' }, swatch(run), run.name)))] : [];
  const head = h('tr', {}, h('th', { class: 'n', scope: 'col' }, 'step'), runs.flatMap((run) => columns(run).map((text, i) => h('th', { class: i ? 'n' : 'n first', scope: 'col' }, text))));
  const body = steps.map((step) => h('tr', {}, h('th', { class: 'n', scope: 'row' }, String(step)), runs.flatMap((run) => cells(run, step))));
  return h('details', { open: true }, h('summary', {}, count(steps.length, 'evaluation')),
    h('div', { class: 'scroll bounded' }, h('table', {}, h('thead', {}, ...groups, head), h('tbody', {}, body))));
}

function timeSplit(page) {
  const figures = page.runs.map((run) => {
    const names = Object.keys(run.series).filter((name) => name.startsWith('seconds_'));
    const at = [...run.step.keys()].filter((i) => names.some((name) => Number.isFinite(run.series[name][i])));
    const layers = names.map((name, i) => ({ name: name.slice(8), colour: `part-${i % 6}`, ys: at.map((j) => run.series[name][j]) }))
      .filter((layer) => layer.ys.some((v) => v > 0));
    if (!layers.length) return h('div', { class: 'figure' }, h('h3', {}, swatch(run), run.name), empty('no step with times'));
    const total = (layer) => layer.ys.reduce((sum, v) => sum + (Number.isFinite(v) ? v : 0), 0);
    const all = layers.reduce((sum, layer) => sum + total(layer), 0);
    const holder = h('div', { class: 'figure' });
    page.redraws.push(plot(holder, (width) => areaChart(width, at.map((i) => run.step[i]), layers, { title: `${run.name}: seconds per step` })));
    const legend = h('ul', { class: 'legend' }, layers.map((layer) => h('li', {}, h('i', { class: `swatch ${layer.colour}` }), layer.name, h('b', {}, percent(total(layer) / all, 0)))));
    return h('div', {}, page.runs.length > 1 ? h('h3', {}, swatch(run), run.name) : null, holder, legend);
  });
  return h('div', { class: page.runs.length > 1 ? 'grid filled' : '' }, figures);
}
