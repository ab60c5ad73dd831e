// One group: the problem, the segments, the prompt that the completions were sampled from, the completions.

class Detail {
  constructor(browser) {
    this.browser = browser;
    this.element = h('div', { class: 'detail', id: 'group-detail', tabindex: 0, 'aria-label': 'rollouts of the problem' });
    this.kind = 'advantage';
    this.shown = null;
  }

  async show() {
    const { browser } = this;
    const g = browser.group;
    const ticket = (this.ticket = {});
    if (g < 0) {
      this.rows = [];
      this.element.replaceChildren(empty(browser.own.step.length ? 'Nothing fits these filters.' : 'No rollouts here: rollout.save was off, or the files are gone.'));
      return;
    }
    const index = browser.own.block[g];
    const rows = index < 0 ? [] : (await browser.block(index)).rows(browser.own.place[g]);
    if (ticket !== this.ticket) return; // another group was chosen meanwhile
    this.rows = rows;
    if (this.shown !== g) this.element.scrollTop = 0;
    this.shown = g;
    this.draw(g);
  }

  // kinds of colour that these rows can have
  kinds() {
    const has = (name) => this.rows.some((row) => row.block.hasTokens && row.block.values(row, name));
    return ['advantage', ...['nll', 'entropy', 'log_ratio'].filter(has), 'none'];
  }

  nextColour() {
    const kinds = this.kinds();
    this.kind = kinds[(kinds.indexOf(this.kind) + 1) % kinds.length];
    if (this.shown !== null) this.draw(this.shown);
  }

  draw(g) {
    const { browser, rows } = this;
    const kinds = this.kinds();
    const kind = kinds.includes(this.kind) ? this.kind : 'advantage';
    this.scheme = colouring(kind, rows);
    const choice = h('select', { id: 'colour', 'aria-label': 'colour of tokens', onchange: (e) => { this.kind = e.target.value; this.draw(g); } },
      kinds.map((k) => option(k, COLOURINGS[k].name, k === kind)));
    const tokens = rows.some((row) => row.block.hasTokens);
    const plain = rows.some((row) => row.block.hasTexts);
    this.element.replaceChildren(...[
      this.head(g),
      this.problem(g),
      tokens ? h('div', { class: 'controls colours' }, h('label', {}, 'colour ', choice), legend(kind, this.scheme)) : null,
      plain ? h('p', { class: 'faint' }, 'No tokenizer was found in the run’s checkpoints: texts as logged, without single tokens.') : null,
      ...(rows.length ? this.sections() : [empty('The details of this group are left out of this page, to keep it small.')]),
    ].filter(Boolean));
  }

  head(g) {
    const { own, page, run } = this.browser;
    const words = [own.scored[g] ? `${own.right[g]} of ${own.scored[g]} right` : 'not scored'];
    if (Number.isFinite(own.reward[g])) words.push(`mean reward ${signed(own.reward[g], 2)}`);
    const others = () => setFilters({ problem: this.browser.problems.ids[own.problem[g]], from: '', to: '' });
    return h('div', { class: 'detail-head' },
      h('button', { type: 'button', class: 'back', onclick: () => document.body.classList.remove('in-detail') }, '‹ list'),
      h('h2', {}, `Step ${own.step[g]}`, page.runs.length > 1 ? h('span', { class: 'faint' }, ` ${page.runs[run].name}`) : null),
      h('span', { class: 'n' }, words.join(' · ')),
      h('span', { class: 'pager' },
        h('button', { type: 'button', title: 'previous (k)', 'aria-label': 'previous', onclick: () => step(-1) }, '↑'),
        h('button', { type: 'button', title: 'next (j)', 'aria-label': 'next', onclick: () => step(1) }, '↓'),
        h('button', { type: 'button', title: 'this problem at every step', onclick: others }, 'other steps')));
  }

  problem(g) {
    const { own, problems } = this.browser;
    const i = own.problem[g];
    const answer = problems.answers[i];
    return h('div', { class: 'problem' },
      h('div', { class: 'label' }, 'problem ', h('span', { class: 'code faint' }, problems.ids[i])),
      h('div', { class: 'tokens' }, highlighted(problems.texts[i], this.browser.filters.query)),
      answer === null ? null : h('div', { class: 'answer' }, h('span', { class: 'label' }, 'answer '), h('span', { class: 'code' }, answer)));
  }

  // Rows that share role and context stand together: segments first, then what was sampled after them.
  sections() {
    const { filters } = this.browser;
    const fits = (row) => (filters.role === '' || ROLE_NAMES[row.role] === filters.role) && (row.role === 1 ? filters.verdict === '' || filters.role === 'segment' : rowVerdict(row, filters.verdict));
    const shown = this.rows.filter(fits);
    const parts = new Map();
    for (const row of shown) {
      const key = `${row.role}/${row.block.hasTokens ? row.context : 0}/${row.role === 1 ? 1 : row.chosen}`;
      parts.set(key, [...(parts.get(key) || []), row]);
    }
    const rank = ([row]) => (row.role === 1 ? 0 : row.chosen ? 1 + row.role : 9);
    const out = [...parts.values()].sort((a, b) => rank(a) - rank(b)).map((rows) => (rows[0].role === 1 ? this.segments(rows) : this.answers(rows)));
    const hidden = this.rows.length - shown.length;
    return hidden ? [...out, h('p', { class: 'faint' }, `${count(hidden, 'rollout')} hidden by the filters of role and verdict`)] : out;
  }

  segments(rows) {
    const sorted = [...rows].sort((a, b) => (Number.isNaN(a.nll) ? 1 : a.nll - b.nll));
    const finite = sorted.map((row) => row.nll).filter(Number.isFinite);
    const most = Math.max(1e-9, ...finite);
    const half = finite.length >> 1;
    const median = finite.length % 2 ? finite[half] : (finite[half - 1] + finite[half]) / 2;
    const stop = rows.find((row) => Number.isFinite(row.stop));
    const chosen = rows.filter((row) => row.chosen).length;
    const title = `${count(rows.length, 'segment')}${stop ? `, stopped at ${count(stop.stop, 'token')}` : ''}`;
    return h('section', { class: 'rows segments' }, h('h3', {}, title, h('small', {}, chosen === 1 ? 'most likely first; the bar is −log-probability per token, its tick the median' : '')),
      this.context(rows[0], false),
      alike(sorted).map(([row, times]) => h('div', { class: `row segment${row.chosen ? ' chosen' : ''}` },
        h('div', { class: 'row-head' },
          row.chosen ? h('span', { class: 'tag strong' }, 'chosen') : h('span', { class: 'tag' }, 'not used'),
          likelihoodBar(row.nll, median, most), h('span', { class: 'n', title: 'mean log-probability of a token' }, fixed(-row.nll, 4)), ...facts(row, row.chosen), copies(times)),
        tokenText(this.browser, row, this.scheme, this.browser.filters.query))));
  }

  answers(rows) {
    const [first] = rows;
    const name = first.role === 2 ? 'refinement' : 'completion';
    const after = this.rows.some((row) => row.role === 1);
    const title = `${count(rows.length, name)}${first.chosen ? '' : ', not trained on'}${after && first.chosen && first.role === 0 ? ' from the skip connection' : ''}`;
    return h('section', { class: 'rows' }, h('h3', {}, title), this.context(first, after),
      alike(rows).map(([row, times]) => h('div', { class: `row ${verdictOf(row)}` },
        h('div', { class: 'row-head' }, verdictMark(row), ...facts(row, row.chosen), copies(times)),
        tokenText(this.browser, row, this.scheme, this.browser.filters.query))));
  }

  // The prompt as the model read it; where it holds the chosen segment, that part is marked.
  context(row, open) {
    if (!row.block.hasTokens) return null;
    const vocabulary = this.browser.vocabulary();
    const text = vocabulary.join(row.block.context(row));
    const chosen = this.rows.find((r) => r.role === 1 && r.chosen);
    const segment = open && chosen ? vocabulary.join(chosen.block.tokens(chosen)).trim() : '';
    const at = segment ? text.indexOf(segment) : -1;
    const parts = at < 0 ? [text] : [text.slice(0, at), h('span', { class: 'from-segment', title: 'the chosen segment' }, segment), text.slice(at + segment.length)];
    const title = at < 0 ? 'prompt as the model read it' : 'skip connection: the chosen segment, then the problem again';
    return h('details', { class: 'context', open: open || undefined }, h('summary', {}, title, h('span', { class: 'faint' }, ` · ${count(row.block.context(row).length, 'token')}`)), h('div', { class: 'tokens' }, parts));
  }
}

// Rows with the same tokens (or text), verdict, advantage and fate once each: [row, how many].
function alike(rows) {
  const out = new Map();
  for (const row of rows) {
    const text = row.block.hasTokens ? row.block.tokens(row).join() : row.block.hasTexts ? row.block.header.texts[row.row] : row.row;
    const key = [row.chosen, row.finished, row.score, row.advantage, row.reward, text].join('|');
    if (out.has(key)) out.get(key)[1] += 1;
    else out.set(key, [row, 1]);
  }
  return [...out.values()];
}

const copies = (times) => (times > 1 ? h('span', { class: 'tag copies', title: 'sampled so many times, token for token' }, `× ${times}`) : null);

const verdictOf = (row) => (Number.isNaN(row.score) ? 'unscored' : row.score >= 1 - 1e-6 ? 'right' : 'wrong');
const rowVerdict = (row, wanted) => wanted === '' || verdictOf(row) === wanted;

function verdictMark(row) {
  const kind = verdictOf(row);
  const text = { right: '✓ right', wrong: row.score > 0 ? `◐ ${fixed(row.score, 2)}` : '✗ wrong', unscored: '– unscored' }[kind];
  return h('span', { class: `verdict ${kind}` }, text);
}

function facts(row, trained) {
  const fact = (name, text, title) => h('span', { class: 'fact', title }, `${name} `, h('b', {}, text));
  const out = [];
  if (trained && Number.isFinite(row.reward)) out.push(fact('reward', signed(row.reward, 2)));
  if (Number.isFinite(row.advantage)) out.push(fact('advantage', signed(row.advantage, 3)));
  if (trained && row.baseline) out.push(fact('baseline', signed(row.baseline, 2)));
  out.push(fact('tokens', String(row.length)));
  if (row.role !== 1) {
    out.push(fact('log-prob', fixed(-row.nll, 3), 'mean log-probability of a token'));
    if (!row.finished) out.push(h('span', { class: 'tag warn', title: 'no end-of-sequence token within the budget' }, 'cut off'));
  }
  const note = row.info ? infoText(row) : '';
  if (note) out.push(h('span', { class: 'info faint', title: row.info }, note));
  return out;
}

// What else the algorithm noted about a row, less what the page says already.
function infoText(row) {
  try {
    const { sampled, ended, ...rest } = JSON.parse(row.info);
    const words = Object.entries(rest).map(([key, value]) => `${key} ${JSON.stringify(value)}`);
    if (ended) words.unshift(`ended by itself after ${sampled}, cut`);
    return words.join(', ').slice(0, 80);
  } catch {
    return row.info.slice(0, 80);
  }
}

function likelihoodBar(nll, median, most) {
  const width = Number.isFinite(nll) ? Math.max(1, (100 * nll) / most) : 0;
  return h('span', { class: 'likelihood', 'aria-hidden': 'true' }, h('i', { style: { width: `${width}%` } }), h('b', { style: { left: `${(100 * median) / most}%` } }));
}
