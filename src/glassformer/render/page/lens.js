// The lens over all positions: a token in every cell, shaded by a number to choose, and the likeliest tokens of one cell.

const LENS_SHADES = [["top_probability", spoken("probability of the token shown")], ["kl_bits", spoken("bits from the last prediction")],
  ["entropy_bits", spoken("entropy, bits")], ["probability", spoken("probability of the answer")]];

class LensTable {
  // words: texts by id; tensors: `top` and, as far as they are known, the others, `site pos` and `site pos k`
  constructor(words, tensors, place = -1) {
    Object.assign(this, { words }, tensors);
    this.sites = this.top.labels("site");
    this.places = this.top.labels("pos");
    this.shades = LENS_SHADES.filter(([name]) => this[name]);
    this.shade = this.shades[0]?.[0];
    this.told = el("div", { class: "card told", "aria-live": "polite" });
    this.legend = el("div", {});
    this.cells = this.sites.map((_, s) => this.places.map((_, p) => this.cell(s, p)));
    this.table = el("table", { class: "grid lenses", onkeydown: (event) => this.key(event) },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, spoken("place")), this.places.map((place, p) => el("th", { scope: "col", class: this.isBeyond(p) ? "beyond" : null }, labelNode("pos", place).slice(-1))))),
      el("tbody", {}, this.sites.map((site, s) => el("tr", {}, el("th", { scope: "row" }, spokenLabel(placeOf(site))), this.cells[s]))));
    painters.push(() => this.paint());
    this.paint();
    this.select(this.sites.length - 1, place < 0 ? this.places.length - 1 : place, false);
  }

  text(id) { return this.words[id] ?? `<${id}>`; }

  cell(s, p) {
    const right = this.rank && this.rank.at(s, p) === 1;
    const probability = this.top_probability?.at(s, p, 0);
    const node = el("td", { class: `${right ? "lens answer" : "lens"}${this.isBeyond(p) ? " beyond" : ""}`, tabindex: -1, onclick: () => this.select(s, p), onpointerenter: () => this.tell(s, p) },
      token(this.text(this.top.at(s, p, 0))), probability === undefined ? null : el("span", { class: "p" }, percent(probability)));
    return node;
  }

  // whether training never went as far as this column, and went as far as the one before
  isBeyond(p) {
    const at = (column) => Number(placed(this.places[column])?.[2] ?? this.places[column]);
    return TRAINED !== null && p > 0 && at(p) >= TRAINED && at(p - 1) < TRAINED;
  }

  value(s, p) { return this.shade === "top_probability" ? this.top_probability.at(s, p, 0) : this[this.shade].at(s, p); }

  paint() {
    if (!this.shade) return;
    const probability = /probability/.test(this.shade);
    const limit = probability ? 1 : this[this.shade].range().limit;
    this.cells.forEach((row, s) => row.forEach((node, p) => shade(node, this.value(s, p) ?? 0, limit, false)));
    this.legend.replaceChildren(legend(limit, false, this.shades.find(([name]) => name === this.shade)[1]));
  }

  key(event) {
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    const clamp = (x, n) => Math.min(Math.max(x, 0), n - 1);
    this.select(clamp(this.s + by[0], this.sites.length), clamp(this.p + by[1], this.places.length));
  }

  select(s, p, focus = true) {
    if (this.s !== undefined) this.cells[this.s][this.p].setAttribute("tabindex", -1);
    [this.s, this.p] = [s, p];
    this.cells[s][p].setAttribute("tabindex", 0);
    if (focus) this.cells[s][p].focus();
    this.tell(s, p);
  }

  tell(s, p) {
    const bits = (found) => compact(found.at(s, p));
    const facts = [this.entropy_bits && spoken("entropy {n} bits", { n: bits(this.entropy_bits) }),
      this.kl_bits && spoken("from the last prediction {n} bits", { n: bits(this.kl_bits) })].filter(Boolean);
    const answer = this.answers && this.probability
      ? [chip(this.text(this.answers.at(p))), ` ${percent(this.probability.at(s, p) ?? 0)}`, this.rank ? spoken(", rank {rank}", { rank: count(this.rank.at(s, p)) }) : ""] : null;
    const rows = Array.from({ length: this.top.size("k") }, (_, k) => {
      const probability = this.top_probability?.at(s, p, k) ?? 0;
      return { name: chip(this.text(this.top.at(s, p, k))), value: probability, cells: [percent(probability)] };
    });
    this.told.replaceChildren(
      el("p", {}, spoken("after {site} at {place}", { site: el("strong", {}, spokenLabel(placeOf(this.sites[s]))), place: labelNode("pos", this.places[p]) }), facts.length ? [spoken(": "), listed(facts)] : ""),
      answer ? el("p", {}, spoken("the answer: {answer}", { answer })) : "",
      bars({ heads: [spoken("token"), spoken("probability")], rows, limit: 1 }));
  }

  // scroll so that a cell is seen, and no column before it is cut by the labels of rows
  showWhole(cell, region) {
    const labels = this.table.tBodies[0].rows[0].cells[0].offsetWidth + 2;
    const starts = this.cells[0].map((c) => c.offsetLeft - labels);
    const left = Math.max(0, starts.find((x) => x >= cell.offsetLeft + cell.offsetWidth - region.clientWidth) ?? 0);
    this.table.style.marginRight = `${Math.max(0, left - (region.scrollWidth - region.clientWidth))}px`;
    region.scrollLeft = left;
  }

  get node() {
    const shading = this.shades.length > 1 ? choice("shade", this.shades.map(([, words]) => words), null, (i) => { this.shade = this.shades[i][0]; this.paint(); }) : null;
    const region = el("div", { class: "scroll", role: "region", "aria-label": distinct(spoken("table of predictions")) }, this.table);
    const cell = this.cells[this.s][this.p];
    requestAnimationFrame(() => { this.showWhole(cell, region); });
    return el("div", { class: "stack" }, shading ? el("div", { class: "choices" }, shading) : null, this.legend, region, this.told);
  }
}
