// The rollout browser as a page, and the keyboard.

const KEYS = [
  ['j  ↓', 'next group'], ['k  ↑', 'previous group'], ['←  →', 'previous, next step'], ['d  u', 'scroll the rollouts down, up'],
  ['/', 'search problems and rollouts'], ['c', 'next colour of tokens'], ['x', 'clear filters'], ['Esc', 'leave a field, close, back to the list'],
  ['1 2 3 4', 'overview, curves, rollouts, settings'], ['t', 'light or dark'], ['?', 'this help'],
];
let ui = null; // {browser, list, detail, count, fields} once the rollouts have been opened

async function rolloutsView(page) {
  const root = $('rollouts');
  if (!page.runs.some((run) => run.rollouts.groups)) {
    root.replaceChildren(empty('No rollouts here: rollout.save was off, or the files are gone.'));
    return;
  }
  root.replaceChildren(empty('Opening …'));
  const browser = new Browser(page, await unpack('data-rollouts'));
  const list = new GroupList(browser, choose);
  const detail = new Detail(browser);
  ui = { browser, list, detail, count: h('output', { class: 'n faint', id: 'match-count' }), told: h('div', { class: 'told faint' }) };
  root.replaceChildren(h('div', { class: 'browser' }, h('div', { class: 'side' }, filterBar(page, browser), h('div', { class: 'list-head' }, ui.count), list.element, ui.told), detail.element));
  await refreshList();
}

function filterBar(page, browser) {
  const change = (name) => (event) => setFilters({ [name]: event.target.value });
  const field = (name, props) => h('input', { 'data-filter': name, oninput: change(name), ...props });
  const select = (name, options) => h('select', { 'data-filter': name, 'aria-label': name, onchange: change(name) }, options.map(([value, text]) => option(value, text)));
  let timer = 0;
  const search = h('input', {
    type: 'search', id: 'search', placeholder: 'search problems and rollouts  ( / )', 'aria-label': 'search problems and rollouts', spellcheck: 'false',
    oninput: (event) => { clearTimeout(timer); timer = setTimeout(() => runSearch(event.target.value), 300); },
  });
  const runs = page.runs.length > 1 ? h('select', { id: 'run-choice', 'aria-label': 'run', onchange: (e) => chooseRun(Number(e.target.value)) },
    page.runs.map((run) => option(run.index, `${run.name} (${run.rollouts.rollouts.toLocaleString('en')})`, run.index === browser.run))) : null;
  return h('div', { class: 'filters' }, runs, search,
    h('details', { class: 'more-filters', open: innerWidth > 760 || undefined }, h('summary', {}, 'filters'), h('div', { class: 'filter-grid' },
      h('span', { class: 'steps' }, field('from', { type: 'number', placeholder: 'from step', min: 0, 'aria-label': 'from step' }), field('to', { type: 'number', placeholder: 'to step', min: 0, 'aria-label': 'to step' })),
      field('problem', { type: 'text', placeholder: 'problem: text or id', 'aria-label': 'problem: text or id', spellcheck: 'false' }),
      select('outcome', OUTCOMES), select('verdict', VERDICTS),
      select('role', [['', 'every role'], ...ROLE_NAMES.map((name) => [name, `${name}s`])]),
      h('button', { type: 'button', id: 'clear', onclick: clearFilters }, 'clear'))));
}

function setFilters(values) {
  Object.assign(ui.browser.filters, values);
  for (const [name, value] of Object.entries(values)) {
    const input = document.querySelector(`[data-filter="${name}"]`);
    if (input && input.value !== value) input.value = value;
  }
  refreshList();
}

function clearFilters() {
  $('search').value = '';
  ui.browser.found = null;
  ui.browser.searching += 1;
  setFilters({ from: '', to: '', outcome: '', verdict: '', role: '', problem: '', query: '' });
}

async function runSearch(query) {
  const { browser } = ui;
  const tell = (share) => { ui.count.textContent = `searching texts … ${Math.round(100 * share)} %`; };
  if (await browser.search(query, tell)) refreshList();
}

function chooseRun(index) {
  ui.browser.run = index;
  ui.browser.selected = -1;
  ui.browser.found = null;
  if ($('search').value.trim()) runSearch($('search').value);
  refreshList();
}

function refreshList() {
  const { browser, list, detail } = ui;
  browser.apply();
  const total = browser.own.step.length;
  ui.count.textContent = browser.matches.length === total ? count(total, 'group') : `${browser.matches.length.toLocaleString('en')} of ${count(total, 'group')}`;
  ui.told.textContent = leftOut(browser.page, browser.page.runs[browser.run].rollouts);
  list.follow();
  return detail.show();
}

// What of this run's rollouts is not in the page.
function leftOut(page, r) {
  const parts = [];
  if (r.text_groups < r.groups) {
    parts.push(`Texts of ${r.text_rollouts.toLocaleString('en')} of ${count(r.rollouts, 'rollout')} are in this page: whole groups, taken in rounds of one per step and outcome until it was full. Counts and verdicts are complete; search reads the texts that are here.`);
  }
  if (r.detailed_groups < r.groups) parts.push(`Details of ${r.detailed_groups.toLocaleString('en')} of ${count(r.groups, 'group')} are here.`);
  if (page.shortened) parts.push('Problems are shown by their first 400 characters.');
  return parts.join(' ');
}

function choose(index, open) {
  const { browser, list, detail } = ui;
  if (!browser.matches.length) return;
  browser.selected = Math.max(0, Math.min(browser.matches.length - 1, index));
  if (open) document.body.classList.add('in-detail');
  list.follow();
  detail.show();
}

const step = (by) => choose(ui.browser.selected + by, false);

// First group of the next step, or of the previous one.
function jump(by) {
  const { matches, own, selected } = ui.browser;
  if (selected < 0) return;
  const here = own.step[matches[selected]];
  let i = selected;
  while (i >= 0 && i < matches.length && own.step[matches[i]] === here) i += by;
  if (i < 0 || i >= matches.length) return;
  const there = own.step[matches[i]];
  while (i > 0 && own.step[matches[i - 1]] === there) i -= 1;
  choose(i, false);
}

function helpDialog() {
  const dialog = $('help');
  dialog.replaceChildren(h('h2', {}, 'Keyboard'), h('dl', {}, KEYS.flatMap(([key, text]) => [h('dt', {}, key.split(/ +/).map((k) => h('kbd', {}, k))), h('dd', {}, text)])),
    h('form', { method: 'dialog' }, h('button', {}, 'close')));
  if (!dialog.open) dialog.showModal();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $('help').open) return;
  const typing = event.target.closest('input, select, textarea') && event.target.type !== 'checkbox';
  if (event.key === 'Escape') {
    if (typing) event.target.blur();
    document.body.classList.remove('in-detail');
    hideTip();
    return;
  }
  if (typing) return;
  const everywhere = { '?': helpDialog, t: toggleTheme, 1: () => openView('overview'), 2: () => openView('curves'), 3: () => openView('rollouts'), 4: () => openView('settings') };
  const inRollouts = ui && !$('rollouts').hidden ? {
    j: () => step(1), ArrowDown: () => step(1), k: () => step(-1), ArrowUp: () => step(-1), ArrowRight: () => jump(1), ArrowLeft: () => jump(-1),
    d: () => ui.detail.element.scrollBy(0, innerHeight / 2), u: () => ui.detail.element.scrollBy(0, -innerHeight / 2),
    c: () => ui.detail.nextColour(), x: clearFilters, Enter: () => document.body.classList.add('in-detail'),
  } : {};
  const slash = { '/': async () => { await openView('rollouts'); if ($('search')) $('search').focus(); } };
  const action = { ...everywhere, ...slash, ...inRollouts }[event.key];
  if (action && !(event.key === 'Enter' && event.target.closest('button, summary'))) {
    event.preventDefault();
    action();
  }
}
