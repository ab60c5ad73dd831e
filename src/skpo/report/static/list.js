// The rollout browser's state: filters, search, the list of groups.

const ITEM = 58; // height of a line of the list, as in style.css
const OUTCOMES = [['', 'any outcome'], ['some', 'some right'], ['all', 'all right'], ['none', 'none right'], ['unscored', 'not scored']];
const VERDICTS = [['', 'any verdict'], ['right', 'right'], ['wrong', 'wrong'], ['unscored', 'unscored']];
const ROLE_NAMES = ['completion', 'segment', 'refinement'];

class Browser {
  constructor(page, { header, arrays }) {
    this.page = page;
    this.problems = header.problems;
    this.lowered = header.problems.texts.map((text, i) => `${header.problems.ids[i]}\n${text}`.toLowerCase());
    this.vocabularies = header.vocabularies.map((v) => new Vocabulary(v));
    this.groups = page.runs.map((run, i) => Object.fromEntries(
      ['step', 'problem', 'rows', 'right', 'scored', 'reward', 'roles', 'block', 'place', 'text'].map((name) => [name, arrays[`r${i}_${name}`]])));
    this.run = Math.max(0, page.runs.findIndex((run) => run.rollouts.groups > 0));
    this.filters = { from: '', to: '', outcome: '', verdict: '', role: '', problem: '', query: '' };
    this.matches = new Int32Array(0);
    this.found = null; // groups whose texts hold the query; null: no query
    this.selected = -1; // index into matches
    this.blocks = new Map();
    this.searching = 0;
  }

  get own() { return this.groups[this.run]; }

  get group() { return this.selected < 0 ? -1 : this.matches[this.selected]; }

  vocabulary() {
    const index = this.page.runs[this.run].rollouts.vocabulary;
    return index === null ? null : this.vocabularies[index];
  }

  async block(index) {
    const key = `${this.run}-${index}`;
    if (!this.blocks.has(key)) {
      if (this.blocks.size >= 24) this.blocks.delete(this.blocks.keys().next().value);
      this.blocks.set(key, unpack(`data-block-${key}`).then((packed) => new Block(packed)));
    }
    return this.blocks.get(key);
  }

  apply() {
    const { own, filters } = this;
    const before = this.group;
    const [from, to] = [filters.from === '' ? -Infinity : Number(filters.from), filters.to === '' ? Infinity : Number(filters.to)];
    const wanted = filters.problem.trim().toLowerCase();
    const problems = wanted ? this.lowered.map((text) => text.includes(wanted)) : null;
    const bit = filters.role === '' ? 0 : 1 << ROLE_NAMES.indexOf(filters.role);
    const kept = [];
    for (let g = 0; g < own.step.length; g++) {
      if (own.step[g] < from || own.step[g] > to) continue;
      if (bit && !(own.roles[g] & bit)) continue;
      if (problems && !problems[own.problem[g]]) continue;
      if (!outcomeFits(own, g, filters.outcome) || !verdictFits(own, g, filters.verdict)) continue;
      if (this.found && !this.found.has(g)) continue;
      kept.push(g);
    }
    this.matches = Int32Array.from(kept);
    const place = kept.indexOf(before);
    this.selected = place >= 0 ? place : kept.length ? 0 : -1;
  }

  // Searches problems at once and texts block by block; `tell(share done)` between blocks.
  async search(query, tell) {
    const ticket = ++this.searching;
    const text = query.trim().toLowerCase();
    this.filters.query = text;
    if (!text) { this.found = null; return true; }
    const { own } = this;
    const inProblem = this.lowered.map((problem) => problem.includes(text));
    this.found = new Set([...own.step.keys()].filter((g) => inProblem[own.problem[g]]));
    const byBlock = new Map();
    for (let g = 0; g < own.step.length; g++) if (own.text[g] && !this.found.has(g)) byBlock.set(own.block[g], [...(byBlock.get(own.block[g]) || []), g]);
    let done = 0;
    for (const [index, groups] of byBlock) {
      const block = await this.block(index);
      if (ticket !== this.searching) return false;
      for (const g of groups) if (block.rows(own.place[g]).some((row) => this.text(row).toLowerCase().includes(text))) this.found.add(g);
      tell(++done / byBlock.size);
      await new Promise((resume) => setTimeout(resume));
    }
    return ticket === this.searching;
  }

  text(row) {
    if (row.block.hasTexts) return row.block.header.texts[row.row];
    return row.block.hasTokens ? this.vocabulary().join(row.block.tokens(row)) : '';
  }
}

function outcomeFits(own, g, outcome) {
  if (outcome === '') return true;
  if (outcome === 'unscored') return own.scored[g] === 0;
  if (own.scored[g] === 0) return false;
  if (outcome === 'all') return own.right[g] === own.scored[g];
  return outcome === 'none' ? own.right[g] === 0 : own.right[g] > 0 && own.right[g] < own.scored[g];
}

function verdictFits(own, g, verdict) {
  if (verdict === 'right') return own.right[g] > 0;
  if (verdict === 'wrong') return own.right[g] < own.scored[g];
  return verdict === '' || own.scored[g] < own.rows[g];
}

// Draws only the lines in view: a list of 60,000 groups scrolls as well as one of 60.
class GroupList {
  constructor(browser, choose) {
    this.browser = browser;
    this.inner = h('div', { class: 'list-inner' });
    this.element = h('div', { class: 'list', id: 'group-list', tabindex: 0, role: 'listbox', 'aria-label': 'problems by step', onscroll: () => this.draw() }, this.inner);
    this.element.addEventListener('click', (event) => {
      const line = event.target.closest('.item');
      if (line) choose(Number(line.dataset.index), true);
    });
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  draw() {
    const { browser, element } = this;
    const total = browser.matches.length;
    this.inner.style.height = `${total * ITEM}px`;
    const first = Math.max(0, Math.floor(element.scrollTop / ITEM) - 4);
    const last = Math.min(total, Math.ceil((element.scrollTop + element.clientHeight) / ITEM) + 4);
    const lines = [];
    for (let i = first; i < last; i++) lines.push(this.line(i));
    this.inner.replaceChildren(...lines);
    if (browser.selected >= 0) element.setAttribute('aria-activedescendant', `item-${browser.selected}`);
  }

  line(i) {
    const { browser } = this;
    const { own } = browser;
    const g = browser.matches[i];
    const score = own.scored[g] ? `${own.right[g]} / ${own.scored[g]}` : 'unscored';
    return h('div', {
      class: `item${i === browser.selected ? ' on' : ''}`, role: 'option', id: `item-${i}`, 'aria-selected': String(i === browser.selected), 'data-index': i, 'data-group': g,
      style: { top: `${i * ITEM}px` },
    },
    h('span', { class: 'item-head' }, h('span', { class: 'n' }, `step ${own.step[g]}`), own.text[g] ? null : h('span', { class: 'tag', title: 'texts of this group are not in the page' }, own.block[g] >= 0 ? 'no text' : 'no details'),
      h('span', { class: 'n score' }, score), outcomeBar(own.right[g], own.scored[g])),
    h('span', { class: 'item-problem' }, (browser.problems.texts[own.problem[g]] || browser.problems.ids[own.problem[g]]).slice(0, 160)));
  }

  // Bring the selected line into view.
  follow() {
    const top = this.browser.selected * ITEM;
    const { element } = this;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + ITEM > element.scrollTop + element.clientHeight) element.scrollTop = top + ITEM - element.clientHeight;
    this.draw();
  }
}

function outcomeBar(right, scored) {
  const share = scored ? (100 * right) / scored : 0;
  return h('span', { class: `bar${scored ? '' : ' none'}`, 'aria-hidden': 'true' }, h('i', { style: { width: `${share}%` } }));
}
