// Settings of the runs, those that differ first.

function settingsView(page) {
  const root = $('settings');
  const rows = page.settings;
  if (!rows.length) {
    root.replaceChildren(empty('No settings: config.yaml is missing or could not be read.'));
    return;
  }
  const several = page.runs.length > 1;
  const differing = rows.filter((row) => row.differs);
  const rest = rows.filter((row) => !row.differs);
  const parts = [];
  if (several) parts.push(card(differing.length ? 'Settings that differ' : 'No setting differs', differing.length ? settingsTable(page, differing, true) : null));
  parts.push(card(several ? 'Settings in common' : 'Settings', settingsTable(page, several ? rest : rows, false)));
  root.replaceChildren(...parts);
}

function settingsTable(page, rows, each) {
  const runs = each ? page.runs : page.runs.slice(0, 1);
  const cell = (value) => h('td', { class: 'code' }, value === null ? h('span', { class: 'faint' }, 'not set') : value === '' ? '""' : value);
  const head = each ? h('thead', {}, h('tr', {}, h('th', {}, 'setting'), runs.map((run) => h('th', { scope: 'col' }, swatch(run), run.name)))) : null;
  const body = rows.map((row) => {
    const values = each ? row.values : [row.key === 'out' && page.runs.length > 1 ? 'own folder' : row.values.find((v) => v !== null)];
    return h('tr', {}, h('th', { scope: 'row', class: 'code' }, row.key), values.map(cell));
  });
  return h('div', { class: 'scroll' }, h('table', { class: 'settings' }, head, h('tbody', {}, body)));
}
