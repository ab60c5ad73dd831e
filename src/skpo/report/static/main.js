// Opening the page.

const VIEWS = [['overview', 'Overview'], ['curves', 'Curves'], ['rollouts', 'Rollouts'], ['settings', 'Settings']];
const opened = new Map(); // view -> promise of its first drawing
let page = null;

const DRAW = { overview: overviewView, curves: curvesView, rollouts: rolloutsView, settings: settingsView };

async function openView(name) {
  for (const [id] of VIEWS) {
    $(id).hidden = id !== name;
    $(`tab-${id}`).setAttribute('aria-selected', String(id === name));
  }
  document.body.dataset.view = name;
  if (location.hash !== `#${name}`) history.replaceState(null, '', `#${name}`);
  hideTip();
  if (!opened.has(name)) opened.set(name, Promise.resolve(DRAW[name](page)).catch(fail));
  return opened.get(name);
}

function fail(error) {
  $('loading').hidden = false;
  $('loading').textContent = `This page could not be opened: ${error.message}`;
  console.error(error);
}

function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  root.dataset.theme = dark ? 'light' : 'dark';
}

function readPage({ header, arrays }) {
  const runs = header.runs.map((run, i) => ({
    ...run,
    index: i,
    colour: `run-${i % 8}`,
    step: arrays[`r${i}_step`],
    axes: { step: arrays[`r${i}_step`], tokens: arrays[`r${i}_tokens`], seconds: arrays[`r${i}_seconds`] },
    series: Object.fromEntries(run.metrics.map((name, j) => [name, arrays[`r${i}_m${j}`]])),
  }));
  return { ...header, runs, hidden: new Set(), redraws: [] };
}

async function start() {
  page = readPage(await unpack('data-main'));
  $('title').textContent = page.runs.map((run) => run.name).join(' · ');
  $('made').textContent = `skpo ${page.version} · ${new Date(page.made).toLocaleString()}`;
  $('tabs').replaceChildren(...VIEWS.map(([id, name]) => h('button', { type: 'button', role: 'tab', id: `tab-${id}`, 'aria-controls': id, onclick: () => openView(id) }, name)));
  $('theme').addEventListener('click', toggleTheme);
  $('help-button').addEventListener('click', helpDialog);
  addEventListener('keydown', onKey);
  addEventListener('scroll', hideTip, { passive: true });
  $('loading').hidden = true;
  const wanted = location.hash.slice(1);
  await openView(VIEWS.some(([id]) => id === wanted) ? wanted : 'overview');
  await new Promise((drawn) => { requestAnimationFrame(() => requestAnimationFrame(drawn)); });
  document.body.dataset.ready = String(Math.round(performance.now()));
}

start().catch(fail);
