// Every metric of every run, as small multiples that share their controls.

const WINDOWS = [1, 3, 5, 9, 15, 25, 51, 101];

function curvesView(page) {
  const root = $('curves');
  const longest = Math.max(0, ...page.runs.map((run) => run.step.length));
  if (!page.metrics.length) {
    root.replaceChildren(empty('No metrics yet: metrics.jsonl is missing or empty.'));
    return;
  }
  const state = { axis: 'step', log: false, width: longest > 150 ? 9 : longest > 20 ? 5 : 1, find: '' };
  const figures = [];
  const refresh = () => figures.forEach((f) => f.redraw());
  page.redraws.push(refresh);
  const sections = page.sections.map((section) => {
    const own = page.metrics.filter((m) => m.section === section).map((metric) => metricFigure(page, metric, state));
    figures.push(...own);
    return own.length ? h('section', { class: 'metric-section' }, h('h2', {}, section), h('div', { class: 'grid' }, own.map((f) => f.element))) : null;
  });
  root.replaceChildren(curveControls(page, state, refresh, figures), ...sections.filter(Boolean));
}

function curveControls(page, state, refresh, figures) {
  const shown = h('output', { class: 'n' }, windowText(state.width));
  const slider = h('input', {
    type: 'range', min: 0, max: WINDOWS.length - 1, step: 1, value: WINDOWS.indexOf(state.width), 'aria-label': 'smoothing',
    oninput: (e) => { state.width = WINDOWS[e.target.value]; shown.textContent = windowText(state.width); refresh(); },
  });
  const find = (e) => {
    const text = e.target.value.trim().toLowerCase();
    for (const f of figures) f.element.hidden = !f.words.includes(text);
    document.querySelectorAll('.metric-section').forEach((s) => { s.hidden = ![...s.querySelectorAll('.metric')].some((m) => !m.hidden); });
  };
  return h('div', { class: 'controls sticky' },
    axisChoice('against', state.axis, (value) => { state.axis = value; refresh(); }),
    h('label', {}, 'smoothing ', slider, shown),
    h('label', {}, h('input', { type: 'checkbox', id: 'log-axis', onchange: (e) => { state.log = e.target.checked; refresh(); } }), ' log axis'),
    h('input', { type: 'search', placeholder: 'find a metric', 'aria-label': 'find a metric', id: 'find-metric', oninput: find }),
    page.runs.length > 1 ? runChips(page) : null);
}

const windowText = (width) => (width === 1 ? 'off' : `${width} points`);

// Buttons that show and hide a run in every chart.
function runChips(page) {
  return h('span', { class: 'chips' }, page.runs.map((run) => h('button', {
    type: 'button', class: 'chip', 'aria-pressed': 'true',
    onclick: (e) => {
      const hide = !page.hidden.delete(run.index);
      if (hide) page.hidden.add(run.index);
      e.currentTarget.setAttribute('aria-pressed', String(!hide));
      page.redraws.forEach((redraw) => redraw());
    },
  }, swatch(run), run.name)));
}

function metricFigure(page, metric, state) {
  const holder = h('div', { class: 'figure' });
  const last = page.runs.map((run) => lastFinite(run.series[metric.name]));
  const shown = page.runs.length === 1 ? h('b', { class: 'n' }, number(last[0])) : null;
  const redraw = plot(holder, (width) => {
    const runs = page.runs.filter((run) => run.series[metric.name] && !page.hidden.has(run.index));
    const series = runs.map((run) => ({ name: run.name, colour: run.colour, xs: run.axes[state.axis], ys: run.series[metric.name], points: metric.name.startsWith('eval_') }));
    if (!series.length) return emptyChart(width, 168, 'hidden');
    return lineChart(width, series, { log: state.log, smoothing: state.width, title: metric.title, xName: X_NAMES[state.axis] });
  });
  const element = h('figure', { class: 'metric', 'data-metric': metric.name },
    h('figcaption', { title: metric.name }, h('span', {}, metric.title), shown, metric.help ? h('small', {}, metric.help) : null), holder);
  return { element, redraw, words: `${metric.name} ${metric.title} ${metric.help}`.toLowerCase() };
}

function lastFinite(values) {
  for (let i = (values || []).length - 1; i >= 0; i--) if (Number.isFinite(values[i])) return values[i];
  return NaN;
}
