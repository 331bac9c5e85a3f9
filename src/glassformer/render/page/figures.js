// Figures of labelled tensors, by their axes: none is a number, one is bars or a text, two are a map, more are maps to
// choose from. Axes over prompts and samples are averaged; entries of different units never share a colour scale.

const AVERAGED = new Set(["batch", "sample", "prompt", "pair"]);
const UNITS = new Set(["metric", "measure", "outcome"]);
const CHOSEN_FIRST = ["metric", "weights", "bound", "kind", "variant"]; // read one at a time, where there are too many axes
const CURVES = new Set(["count", "threshold", "depth", "length"]);
const POWERS = new Set(["length"]); // numbers grow as powers along it: both axes are logarithmic
const SHARES = new Set(["class", "distance"]);

// ---- one axis

const MOST_BARS = 24;

// what is looked through for the largest
const BY_SIZE = new Set(["component", "head", "neuron", "sender", "path", "pair"]);

// `sums`: whether the numbers add up to a whole
function oneAxis(tensor, error, scale, name, sums) {
  const [axis] = tensor.axes;
  const labels = tensor.labels(axis);
  const values = labels.map((_, i) => tensor.at(i));
  if (CURVES.has(axis)) return curves(tensor, name);
  const order = labels.map((_, i) => i).filter((i) => values[i] !== null);
  const bySize = [...order].sort((a, b) => Math.abs(values[b]) - Math.abs(values[a]));
  const shown = BY_SIZE.has(axis) ? bySize.slice(0, MOST_BARS)
    : order.length <= MOST_BARS ? order : bySize.slice(0, MOST_BARS).sort((a, b) => a - b);
  const spread = error?.values.some((x) => !Number.isNaN(x));
  const row = (i) => ({
    name: labelNode(axis, labels[i]), value: values[i],
    cells: [beside(values[i], scale.limit, scale.isSigned), ...(spread ? [`± ${compact(error.at(i))}`] : [])],
  });
  const others = bySize.slice(shown.length).map((i) => values[i]);
  const total = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const together = (name, value, className) => ({ name, value, className, cells: [beside(value, scale.limit, scale.isSigned), ...(spread ? [""] : [])] });
  const whole = !sums ? [] : [...(others.length ? [together(spoken("{n} others together", { n: others.length }), total(others), "out")] : []),
    together(spoken("sum"), total(order.map((i) => values[i])), "total")];
  const draw = (indices) => bars({ heads: [axisName(axis), spoken("number"), ...(spread ? [spoken("error")] : [])], rows: [...indices.map(row), ...whole], isSigned: scale.isSigned });
  const text = isText(tensor, axis) ? [legend(scale.limit, scale.isSigned, spoken("every token by its number")),
    strip(labels.map(textOfToken), { weights: values, ...scale, format: (x) => compact(x, scale.isSigned) })] : null;
  const table = room(name, order.length ? draw(shown) : el("p", {}, spoken("Nothing here is defined.")));
  const note = others.length && !sums ? el("p", { class: "soft small" },
    spoken("the {n} largest of {all}; the others sum to {sum}", { n: shown.length, all: order.length, sum: compact(total(others), scale.isSigned) })) : null;
  return el("div", { class: "stack" }, text, text ? el("details", {}, el("summary", {}, spoken("As bars")), note, table) : [note, table]);
}

function curves(tensor, name) {
  const axis = tensor.axes.at(-1);
  const labels = tensor.labels(axis);
  const numeric = labels.every((x) => typeof x === "number" || (x !== "" && Number.isFinite(Number(x))));
  const x = labels.map((label, i) => (numeric ? Number(label) : i));
  const title = numeric ? axisName(axis) : `${axisName(axis)}: ${labels.map((label, i) => `${i} ${label}`).join(", ")}`;
  if (tensor.axes.length === 1) return curveChart({ series: [{ name: "", x, y: labels.map((_, i) => tensor.at(i)) }], x: cut(title, 70), y: name, words: name });
  const rows = tensor.labels(tensor.axes[0]);
  const all = rows.map((row, r) => ({ name: labelText(tensor.axes[0], row, 40), x, y: labels.map((_, c) => tensor.at(r, c)) }));
  const present = all.filter((s) => s.y.some((y) => y !== null));
  const groups = []; // the first row is what the others are compared with
  for (let i = present.length <= 6 ? 0 : 1; i < present.length; i += 5) groups.push(present.length <= 6 ? present : [present[0], ...present.slice(i, i + 5)]);
  const values = present.flatMap((s) => s.y).filter((y) => y !== null);
  const isPower = POWERS.has(axis);
  const span = { low: isPower ? Math.min(...values) : Math.min(0, ...values), high: Math.max(...values), isPower };
  return el("div", { class: "charts" }, (present.length <= 6 ? groups.slice(0, 1) : groups).map((series) =>
    curveChart({ series, x: cut(title, 70), y: name, words: spoken("{name}, by {axis}", { name, axis: axisName(axis) }), ...span })));
}

// ---- two axes

// columns of different units: each column has a colour scale of its own
function unitTable(tensor, error, name) {
  const [rowAxis, columnAxis] = tensor.axes;
  const columns = tensor.labels(columnAxis);
  const scales = columns.map((_, c) => tensor.pick(columnAxis, c).range());
  const cell = (r, c) => {
    const value = tensor.at(r, c);
    if (value === null) return el("td", { class: "none" }, "–");
    const spread = error?.at(r, c) ?? null;
    const node = el("td", { class: "number", title: spread === null ? null : `± ${compact(spread)}` }, beside(value, scales[c].limit));
    return shaded(node, value, scales[c].limit, scales[c].isSigned);
  };
  return tallRoom(name, el("table", { class: "grid fixed" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, axisName(rowAxis)),
      columns.map((label) => el("th", { scope: "col" }, spoken(String(label).replaceAll("_", " ")))))),
    el("tbody", {}, tensor.labels(rowAxis).map((label, r) => el("tr", {}, el("th", { scope: "row" }, labelNode(rowAxis, label)), columns.map((_, c) => cell(r, c)))))));
}

// rows of shares that sum to one: a bar in pieces for each
function shareBars(tensor, name) {
  const [rowAxis, columnAxis] = tensor.axes;
  const kinds = tensor.labels(columnAxis);
  const tint = (c) => TABLES[theme].sequential[Math.round(36 + (184 * c) / Math.max(1, kinds.length - 1))];
  const fill = (node, c) => painted(node, () => { node.style.backgroundColor = css(tint(c)); node.style.color = ink(tint(c)); });
  const rows = tensor.labels(rowAxis).map((label, r) => {
    const shares = kinds.map((_, c) => tensor.at(r, c) ?? 0);
    const pieces = shares.map((share, c) => (share < 0.002 ? null
      : fill(el("span", { style: `width:${100 * share}%`, title: `${kinds[c]}: ${percent(share)}` }, share >= 0.09 ? percent(share) : ""), c)));
    const words = shares.map((share, c) => [share, `${kinds[c]} ${percent(share)}`]).filter(([share]) => share >= 0.002).map(([, w]) => w).join(", ");
    return el("tr", {}, el("th", { scope: "row" }, labelNode(rowAxis, label)),
      el("td", { class: "track" }, el("span", { class: "hidden" }, words), el("span", { class: "pieces", "aria-hidden": "true" }, pieces)));
  });
  return [el("p", { class: "key" }, kinds.map((kind, c) => el("span", {}, fill(el("span", { class: "block", "aria-hidden": "true" }), c), String(kind)))),
    tallRoom(name, el("table", { class: "bars" }, el("tbody", {}, rows)))];
}

// ---- any number of axes

// which axes are averaged, which are chosen from, and which are drawn
function arranged(tensor) {
  const averaged = tensor.axes.filter((axis) => AVERAGED.has(axis));
  const free = tensor.axes.filter((axis) => !AVERAGED.has(axis));
  if (!free.length) free.push(averaged.pop());
  const last = free.at(-1);
  const most = free.includes("measure") || free.includes("outcome") || !UNITS.has(last) ? 2 : 1;
  const chosen = [];
  const take = (axis) => { chosen.push(axis); free.splice(free.indexOf(axis), 1); };
  for (const axis of CHOSEN_FIRST) if (free.includes(axis) && (free.length > most || (axis === "metric" && free.length > 1))) take(axis);
  while (free.length > most) take(free[0]);
  return { averaged, chosen, drawn: free };
}

// a figure of any labelled tensor; `words` say what it is, `error` how sure it is, `sums` that it adds up to a whole
function tensorFigure(entry, name, { words = "", error = null, sums = false } = {}) {
  let tensor = entry instanceof Tensor ? entry : new Tensor(entry);
  let spread = error ? new Tensor(error) : null;
  const caption = el("figcaption", {}, el("h3", {}, name), words ? el("p", { class: "soft" }, inCode(words)) : null);
  const figure = (...content) => el("figure", { class: "result" }, caption, content);
  const alone = [];
  for (const axis of [...tensor.axes]) {
    if (tensor.size(axis) === 0) return figure(el("p", { class: "soft" }, spoken("There is no {axis} here.", { axis: axisName(axis) })));
    if (tensor.size(axis) !== 1) continue;
    if (!AVERAGED.has(axis) && axis in tensor.coords) alone.push(labelNode(axis, tensor.labels(axis)[0]));
    tensor = tensor.pick(axis, 0);
    spread = spread?.pick(axis, 0);
  }
  if (alone.length) caption.append(el("p", { class: "soft small" }, listed(alone)));
  if (!tensor.axes.length) return figure(el("p", { class: "alone number" }, compact(tensor.at(), tensor.range().isSigned)));
  return figure(new Figure(tensor, name, { spread, sums }).node);
}

// a text is read from its end: its last position has seen all of it
const firstOf = (tensor, axis) => (isText(tensor, axis) ? tensor.size(axis) - 1 : 0);

// places in a single pair of prompts have its tokens for names; those of several are called as the result calls them.
// With a target, they may be places in it
const pairsRead = () => (data.reading && !data.reading.tokens.target ? data.reading.tokens.clean ?? [] : []);

const isBare = (place) => /^\d+$/.test(place);

function withTokens(tensor) {
  const [row, ...others] = pairsRead();
  if (!row || others.length || !tensor.axes.includes("pos") || !tensor.labels("pos").some(isBare)) return tensor;
  const pos = tensor.labels("pos").map((place) => (isBare(place) && row[place] !== undefined ? `${place}:${row[place]}` : place));
  return new Tensor({ ...tensor, coords: { ...tensor.coords, pos } });
}

const FEW_MAPS = 4, NARROW = 16; // so many maps of so few columns stand beside each other

class Figure {
  constructor(tensor, name, { spread = null, sums = false } = {}) {
    const named = withTokens(tensor);
    Object.assign(this, { tensor: named, spread, sums, name, scale: tensor.range(), content: el("div", { class: "stack" }), smallMaps: el("div", {}) }, arranged(tensor));
    this.at = Object.fromEntries([...this.averaged.map((axis) => [axis, -1]), ...this.chosen.map((axis) => [axis, firstOf(tensor, axis)])]);
    const last = this.drawn.at(-1);
    this.mapped = this.drawn.length === 2 && ![UNITS, CURVES, SHARES].some((kind) => kind.has(last));
    this.pictured = this.mapped ? this.chosen.filter((axis) => !UNITS.has(axis) && tensor.size(axis) <= THUMBS).at(-1) : undefined;
    this.beside = this.pictured && tensor.size(this.pictured) <= FEW_MAPS && tensor.size(last) <= NARROW;
    const maps = this.beside ? tensor.labels(this.pictured) : [null];
    this.maps = this.mapped ? maps.map((label) => new HeatMap(label === null ? name : `${name}, ${labelText(this.pictured, label)}`)) : [];
    this.legend = el("div", {});
    if (this.mapped) {
      this.content.append(this.legend, el("div", { class: this.beside ? "columns maps" : "stack" }, this.maps.map((map, i) =>
        el("div", {}, this.beside ? el("h4", { class: "mono" }, labelText(this.pictured, maps[i], 40)) : null, map.node))));
    }
    this.draw();
    this.drawSmall();
  }

  // the tensor at what is chosen, without the axes that are averaged; `kept` axes stay
  now(kept = []) {
    return [...this.averaged, ...this.chosen].filter((axis) => !kept.includes(axis))
      .reduce((t, axis) => (this.at[axis] < 0 ? t.mean(axis) : t.pick(axis, Math.min(this.at[axis], t.size(axis) - 1))), this.tensor);
  }

  // a spread over one averaged axis; over two it would not be one number; of a mean, what came with it
  error(kept = []) {
    if (this.spread) return this.chosen.filter((axis) => !kept.includes(axis)).reduce((t, axis) => t.pick(axis, this.at[axis]), this.spread);
    const mean = this.averaged.filter((axis) => this.at[axis] < 0);
    return mean.length === 1 ? this.now([...kept, mean[0]]).error(mean[0]) : null;
  }

  // entries of one unit share a scale
  shared() {
    const units = this.chosen.filter((axis) => UNITS.has(axis));
    return units.length ? units.reduce((t, axis) => t.pick(axis, this.at[axis]), this.tensor).range() : this.scale;
  }

  draw() {
    const last = this.drawn.at(-1);
    if (this.mapped) {
      const scale = this.averaged.length ? this.now(this.beside ? [this.pictured] : []).range() : this.shared();
      const pick = (t, i) => (this.beside ? t?.pick(this.pictured, i) ?? null : t);
      const kept = this.beside ? [this.pictured] : [];
      const [now, error] = [this.now(kept), this.error(kept)];
      this.maps.forEach((map, i) => map.show(pick(now, i), pick(error, i), scale));
      const pale = this.maps.some((map) => map.hasNoise) ? spoken("; pale: within two standard errors of zero") : "";
      this.legend.replaceChildren(legend(scale.limit, scale.isSigned, spoken("a row for each {rows}, a column for each {columns}", { rows: axisName(this.drawn[0]), columns: axisName(last) }) + pale));
      return;
    }
    const now = this.now();
    const drawing = this.drawn.length === 1 ? oneAxis(now, this.error(), now.range(), this.name, this.sums)
      : CURVES.has(last) ? curves(now, this.name) : SHARES.has(last) ? shareBars(now, this.name) : unitTable(now, this.error(), this.name);
    this.content.replaceChildren(...[drawing].flat());
  }

  drawSmall() {
    if (!this.pictured || this.beside) return;
    this.at[this.pictured] = firstOf(this.tensor, this.pictured);
    const small = this.now([this.pictured]);
    this.smallMaps.replaceChildren(pictures(small, this.pictured, small.range(), (i) => { this.at[this.pictured] = i; this.draw(); }));
    this.draw();
  }

  get node() {
    const chosen = (axis) => (i) => { this.at[axis] = i; this.draw(); this.drawSmall(); };
    const lists = [
      ...this.averaged.map((axis) => choice(axis, this.tensor.labels(axis), spoken("mean of {n}", { n: this.tensor.size(axis) }), chosen(axis))),
      ...this.chosen.filter((axis) => axis !== this.pictured).map((axis) => choice(axis, this.tensor.labels(axis), null, chosen(axis), this.at[axis])),
    ];
    return el("div", { class: "stack" }, lists.length ? el("div", { class: "choices" }, lists) : null, this.smallMaps, this.content);
  }
}
