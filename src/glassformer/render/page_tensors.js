// Labelled tensors, drawn by their axes: none is a number, one is bars or a text, two are a map, more are maps to choose
// from. Axes over prompts and samples are averaged; axes whose entries have different units never share a colour scale.

const TOKENS = new Set(["pos", "query", "key", "position"]);
const AVERAGED = new Set(["batch", "sample", "prompt", "pair"]);
const UNITS = new Set(["metric", "measure", "outcome"]);
const CHOSEN_FIRST = ["metric", "weights", "bound", "kind", "variant"]; // read one at a time, where there are too many axes
const CURVES = new Set(["count", "threshold", "depth"]);
const SHARES = new Set(["class", "distance"]);

class Tensor {
  constructor({ axes, coords, shape, float32, values }) {
    Object.assign(this, { axes, coords, shape });
    // base64 of little-endian numbers, as every machine with a browser keeps them
    this.values = values ?? new Float32Array(Uint8Array.from(atob(float32), (c) => c.charCodeAt(0)).buffer);
  }

  size(axis) { return this.shape[this.axes.indexOf(axis)]; }
  labels(axis) { return this.coords[axis] ?? Array.from({ length: this.size(axis) }, (_, i) => i); }

  // the number at an index per axis; null where there is none
  at(...index) {
    const value = this.values[index.reduce((flat, i, d) => flat * this.shape[d] + i, 0)];
    return Number.isNaN(value) ? null : value;
  }

  // without an axis: each entry is made of the numbers along it
  reduced(axis, make) {
    const d = this.axes.indexOf(axis);
    const n = this.shape[d];
    const inner = this.shape.slice(d + 1).reduce((a, b) => a * b, 1);
    const values = new Float32Array(this.values.length / n);
    for (let i = 0; i < values.length; i++) {
      const start = Math.floor(i / inner) * inner * n + (i % inner);
      values[i] = make((j) => this.values[start + j * inner], n);
    }
    const without = (list) => list.filter((_, i) => i !== d);
    return new Tensor({ axes: without(this.axes), coords: this.coords, shape: without(this.shape), values });
  }

  pick(axis, i) { return this.reduced(axis, (entry) => entry(i)); }
  mean(axis) { return this.reduced(axis, (entry, n) => moments(entry, n)[0]); }
  error(axis) { return this.reduced(axis, (entry, n) => moments(entry, n)[1]); }

  // largest size, and whether anything is negative beyond rounding
  range() {
    let [most, least] = [0, 0];
    for (const x of this.values) {
      if (Math.abs(x) > most) most = Math.abs(x);
      if (x < least) least = x;
    }
    return { limit: most || 1, isSigned: least < -1e-6 * most };
  }
}

// mean and standard error of the entries that are numbers
function moments(entry, n) {
  let [sum, square, counted] = [0, 0, 0];
  for (let j = 0; j < n; j++) {
    const x = entry(j);
    if (Number.isNaN(x)) continue;
    sum += x;
    square += x * x;
    counted++;
  }
  const mean = sum / counted;
  const variance = Math.max(0, square / counted - mean * mean) * (counted / (counted - 1));
  return counted ? [mean, counted > 1 ? Math.sqrt(variance / counted) : NaN] : [NaN, NaN];
}

// about three digits, whatever the size
function compact(x, isSigned = false) {
  if (x === null || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (size !== 0 && (size < 0.0005 || size >= 1e5)) return x.toExponential(1).replace(/-/g, "−");
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return isSigned ? signed(x, digits) : plain(x, digits);
}

// ---- labels: a place in a text is its index and its token

const placed = (label) => /^(\D*?)(\d+):([\s\S]*)$/.exec(String(label));

function labelText(axis, label, most = 16) {
  const match = TOKENS.has(axis) ? placed(label) : null;
  return match ? `${match[1]}${match[2]} ${shortened(match[3], most - 4)}` : shortened(String(label), most);
}

function labelNode(axis, label) {
  const match = TOKENS.has(axis) ? placed(label) : null;
  if (match) return [`${axis} ${match[1]}${match[2]} `, chip(match[3])];
  return [typeof label === "number" ? `${axis.replaceAll("_", " ")} ${label}` : token(label)];
}

const textOfToken = (label) => placed(label)?.[3] ?? String(label);
const isText = (tensor, axis) => TOKENS.has(axis) && placed(tensor.labels(axis)[0]) !== null;

// ---- a map: a row of cells for every entry of one axis, a column for every entry of another

class HeatMap {
  constructor(name) {
    this.name = name;
    [this.r, this.c] = [0, 0];
    this.canvas = el("canvas", {
      class: "map", tabindex: 0, role: "application", "aria-roledescription": "map of numbers",
      onkeydown: (event) => this.key(event), onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event),
    });
    this.readout = el("p", { class: "told", "aria-live": "polite" });
    this.text = el("div", {});
    this.room = scroller(name, this.canvas);
    this.node = el("div", { class: "heatmap" }, this.room, this.readout, this.text);
    painters.push(() => this.draw());
    new ResizeObserver(() => { if (this.room.clientWidth !== this.drawnAt) this.draw(); }).observe(this.room);
  }

  // tensor: two axes; error: the same, or null; scale: {limit, isSigned}
  show(tensor, error, scale) {
    Object.assign(this, { tensor, error, ...scale });
    [this.rowAxis, this.columnAxis] = tensor.axes;
    [this.rows, this.columns] = [tensor.labels(this.rowAxis), tensor.labels(this.columnAxis)];
    const best = this.largest(1)[0];
    if (best) [this.r, this.c] = best;
    this.told = null;
    this.draw();
  }

  largest(n) {
    const order = [...this.tensor.values.keys()].filter((i) => !Number.isNaN(this.tensor.values[i]))
      .sort((a, b) => Math.abs(this.tensor.values[b]) - Math.abs(this.tensor.values[a]));
    return order.slice(0, n).map((i) => [Math.floor(i / this.columns.length), i % this.columns.length]);
  }

  layout(context, room) {
    const [rows, columns] = [this.rows.length, this.columns.length];
    const texts = TOKENS.has(this.rowAxis) && TOKENS.has(this.columnAxis);
    const wide = (axis, labels) => Math.max(...labels.map((label) => context.measureText(labelText(axis, label)).width));
    const rowRoom = wide(this.rowAxis, this.rows);
    const columnRoom = wide(this.columnAxis, this.columns);
    const named = rows <= 60;
    this.left = named ? Math.min(132, rowRoom) + 10 : 34;
    const fit = (room - this.left - 4) / columns;
    this.width = texts ? Math.min(Math.max(fit, 3), 22) : Math.min(Math.max(fit, 4), 72);
    this.height = texts ? this.width : rows <= 12 ? 24 : rows <= 40 ? 19 : Math.max(3, Math.min(14, 620 / rows));
    if (texts && named && columns > 2 * rows) this.height = Math.max(this.height, 14);
    if (this.height >= 11) this.left = Math.min(132, rowRoom) + 10;
    this.upright = columnRoom + 8 <= this.width;
    this.turned = !this.upright && (this.width >= 11 || !texts && !TOKENS.has(this.columnAxis));
    this.top = this.turned ? Math.min(118, columnRoom) + 8 : 20;
    if (this.width >= 8) this.width = Math.floor(this.width);
    if (this.height >= 8) this.height = Math.floor(this.height);
  }

  draw() {
    const room = this.room.clientWidth;
    if (!room || !this.tensor) return;
    this.drawnAt = room;
    const style = getComputedStyle(this.canvas);
    const context = this.canvas.getContext("2d");
    const font = `12px ${style.getPropertyValue("--mono")}`;
    context.font = font;
    this.layout(context, room);
    const sharp = devicePixelRatio || 1;
    const [width, height] = [this.left + this.width * this.columns.length + 3, this.top + this.height * this.rows.length + 3];
    Object.assign(this.canvas, { width: Math.ceil(width * sharp), height: Math.ceil(height * sharp) });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    context.scale(sharp, sharp);
    context.font = font;
    context.textBaseline = "middle";
    this.drawCells(context, style);
    this.drawLabels(context, style);
    this.drawCursor(context, style);
    this.tell();
  }

  drawCells(context, style) {
    const [w, h] = [this.width, this.height];
    context.fillStyle = style.getPropertyValue("--sunken");
    context.fillRect(this.left, this.top, w * this.columns.length, h * this.rows.length);
    const gap = Math.min(w, h) >= 9 ? 1 : 0;
    const numbers = w >= 42 && h >= 16;
    context.textAlign = "center";
    for (let r = 0; r < this.rows.length; r++) {
      for (let c = 0; c < this.columns.length; c++) {
        const value = this.tensor.at(r, c);
        if (value === null) continue;
        const fill = colour(value, this.limit, this.isSigned);
        context.fillStyle = css(fill);
        // without gaps, cells overlap by a fraction of a pixel: seams would show as a grid
        context.fillRect(this.left + c * w, this.top + r * h, w - gap + (gap ? 0 : 0.4), h - gap + (gap ? 0 : 0.4));
        if (!numbers) continue;
        context.fillStyle = ink(fill);
        context.fillText(compact(value, this.isSigned), this.left + (c + 0.5) * w - 0.5, this.top + (r + 0.5) * h);
      }
    }
  }

  drawLabels(context, style) {
    const tint = (chosen) => { context.fillStyle = style.getPropertyValue(chosen ? "--pick" : "--soft"); };
    const short = (axis, labels, i, whole) => {
      const match = TOKENS.has(axis) ? placed(labels[i]) : null;
      return whole || !match ? labelText(axis, labels[i]) : match[2];
    };
    const every = (size, least) => (size >= least ? 1 : 2 ** Math.ceil(Math.log2(least / size)));
    context.textAlign = "right";
    const rowStep = every(this.height, 11);
    for (let r = 0; r < this.rows.length; r += rowStep) {
      tint(r === this.r);
      context.fillText(short(this.rowAxis, this.rows, r, rowStep === 1), this.left - 6, this.top + (r + 0.5) * this.height, this.left - 8);
    }
    const columnStep = this.upright ? 1 : this.turned ? every(this.width, 11) : every(this.width, 30);
    for (let c = 0; c < this.columns.length; c += columnStep) {
      tint(c === this.c);
      context.save();
      context.translate(this.left + (c + 0.5) * this.width, this.top - 5);
      if (this.turned) context.rotate(-Math.PI / 2);
      context.textAlign = this.turned ? "left" : "center";
      context.fillText(short(this.columnAxis, this.columns, c, this.turned || this.upright), 0, this.turned ? 0 : -4);
      context.restore();
    }
  }

  drawCursor(context, style) {
    const [w, h] = [this.width, this.height];
    context.strokeStyle = style.getPropertyValue("--pick");
    context.lineWidth = 2;
    const grow = Math.max(0, 2 - Math.min(w, h) / 2);
    context.strokeRect(this.left + this.c * w - grow - 0.5, this.top + this.r * h - grow - 0.5, w + 2 * grow, h + 2 * grow);
  }

  key(event) {
    const far = event.shiftKey ? 10 : 1;
    const by = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] }[event.key];
    if (!by) return;
    event.preventDefault();
    const clamp = (x, n) => Math.min(Math.max(x, 0), n - 1);
    this.move(clamp(this.r + by[0], this.rows.length), clamp(this.c + by[1], this.columns.length));
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const r = Math.floor((event.clientY - box.top - this.top) / this.height);
    const c = Math.floor((event.clientX - box.left - this.left) / this.width);
    if (r >= 0 && c >= 0 && r < this.rows.length && c < this.columns.length) this.move(r, c);
  }

  move(r, c) {
    if (r === this.r && c === this.c) return;
    [this.r, this.c] = [r, c];
    this.draw();
  }

  tell() {
    const [row, column] = [this.rows[this.r], this.columns[this.c]];
    const value = this.tensor.at(this.r, this.c);
    const spread = this.error?.at(this.r, this.c) ?? null;
    const words = `${compact(value, this.isSigned)}${spread === null ? "" : ` ± ${compact(spread)}`}`;
    this.readout.replaceChildren(...labelNode(this.rowAxis, row), ", ", ...labelNode(this.columnAxis, column), ": ",
      el("strong", { class: "number" }, value === null ? "not defined" : words));
    const said = (axis, label) => `${axis} ${labelText(axis, label, 24)}`;
    this.canvas.setAttribute("aria-label", `${this.name}. ${said(this.rowAxis, row)}, ${said(this.columnAxis, column)}: ${words}`);
    const told = `${this.r} ${theme}`;
    if (!isText(this.tensor, this.columnAxis) || this.told === told) return;
    this.told = told;
    const weights = this.columns.map((_, c) => this.tensor.at(this.r, c));
    this.text.replaceChildren(strip(this.columns.map(textOfToken), {
      weights, limit: this.limit, isSigned: this.isSigned, once: true, format: (x) => compact(x, this.isSigned),
      here: this.rowAxis === "query" && this.columnAxis === "key" ? this.columns.indexOf(row) : null,
    }));
  }
}

// ---- choosing among entries of an axis

function choice(name, labels, first, chosen) {
  const list = el("select", { onchange: (event) => chosen(Number(event.target.value)) },
    first === null ? null : el("option", { value: -1 }, first),
    labels.map((label, i) => el("option", { value: i }, visible(labelText(name, label, 40)))));
  return el("label", { class: "choice" }, el("span", {}, name.replaceAll("_", " ")), list);
}

const THUMBS = 48, THUMB_SIDE = 64; // more pictures than this are a list; the longest side of one in CSS pixels

// a small picture of two axes: one pixel per cell, or per square of cells, which then shows the strongest
function smallMap(tensor, scale) {
  const [rows, columns] = tensor.shape;
  const step = Math.ceil(Math.max(rows, columns) / (THUMB_SIDE * Math.max(1, devicePixelRatio)));
  const canvas = el("canvas", { width: Math.ceil(columns / step), height: Math.ceil(rows / step), "aria-hidden": "true" });
  const longest = Math.max(rows, columns);
  canvas.style.width = `${Math.max(10, (THUMB_SIDE * columns) / longest)}px`;
  canvas.style.height = `${Math.max(10, (THUMB_SIDE * rows) / longest)}px`;
  return painted(canvas, () => {
    const context = canvas.getContext("2d");
    const strongest = new Map();
    for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
      const [value, at] = [tensor.at(r, c), Math.floor(r / step) * canvas.width + Math.floor(c / step)];
      if (value !== null && Math.abs(value) >= Math.abs(strongest.get(at) ?? 0)) strongest.set(at, value);
    }
    context.clearRect(0, 0, canvas.width, canvas.height);
    for (const [at, value] of strongest) {
      context.fillStyle = css(colour(value, scale.limit, scale.isSigned));
      context.fillRect(at % canvas.width, Math.floor(at / canvas.width), 1, 1);
    }
  });
}

function pictures(tensor, axis, scale, chosen) {
  const labels = tensor.labels(axis);
  const buttons = labels.map((label, i) => el("button", {
    type: "button", class: "thumb", "aria-pressed": String(i === 0),
    onclick: () => { buttons.forEach((b, j) => b.setAttribute("aria-pressed", String(i === j))); chosen(i); },
  }, el("span", { class: "label" }, typeof label === "number" ? `${axis.replaceAll("_", " ")} ${label}` : labelText(axis, label, 24)), smallMap(tensor.pick(axis, i), scale)));
  return el("div", { class: "thumbs", role: "group", "aria-label": `choose the ${axis}` }, buttons);
}

// ---- one axis

const MOST_BARS = 24;

function oneAxis(tensor, error, scale, name) {
  const [axis] = tensor.axes;
  const labels = tensor.labels(axis);
  const values = labels.map((_, i) => tensor.at(i));
  if (CURVES.has(axis)) return curves(tensor, name);
  const order = labels.map((_, i) => i).filter((i) => values[i] !== null);
  const shown = order.length <= MOST_BARS ? order
    : [...order].sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, MOST_BARS).sort((a, b) => a - b);
  const spread = error?.values.some((x) => !Number.isNaN(x));
  const row = (i) => ({
    name: labelNode(axis, labels[i]), value: values[i],
    cells: [compact(values[i], scale.isSigned), ...(spread ? [`± ${compact(error.at(i))}`] : [])],
  });
  const draw = (indices) => bars({ heads: [axis.replaceAll("_", " "), "", ...(spread ? [""] : [])], rows: indices.map(row), isSigned: scale.isSigned });
  const text = isText(tensor, axis)
    ? strip(labels.map(textOfToken), { weights: values, ...scale, format: (x) => compact(x, scale.isSigned) }) : null;
  const hidden = order.length - shown.length;
  const table = scroller(name, order.length ? draw(shown) : el("p", {}, "Nothing here is defined."));
  return el("div", { class: "stack" }, text,
    hidden ? el("p", { class: "soft small" }, `the ${shown.length} largest of ${order.length}`) : null,
    text ? el("details", {}, el("summary", {}, "As bars"), table) : table);
}

function curves(tensor, name) {
  const axis = tensor.axes.at(-1);
  const labels = tensor.labels(axis);
  const numeric = labels.every((x) => typeof x === "number" || (x !== "" && Number.isFinite(Number(x))));
  const x = labels.map((label, i) => (numeric ? Number(label) : i));
  const title = numeric ? axis : `${axis}: ${labels.map((label, i) => `${i} ${label}`).join(", ")}`;
  if (tensor.axes.length === 1) return curveChart({ series: [{ name: "", x, y: labels.map((_, i) => tensor.at(i)) }], x: shortened(title, 70), y: name, words: name });
  const rows = tensor.labels(tensor.axes[0]);
  const all = rows.map((row, r) => ({ name: String(row), x, y: labels.map((_, c) => tensor.at(r, c)) }));
  const present = all.filter((s) => s.y.some((y) => y !== null));
  const groups = []; // the first row is what the others are compared with
  for (let i = present.length <= 6 ? 0 : 1; i < present.length; i += 5) groups.push(present.length <= 6 ? present : [present[0], ...present.slice(i, i + 5)]);
  const values = present.flatMap((s) => s.y).filter((y) => y !== null);
  const span = { low: Math.min(0, ...values), high: Math.max(...values) };
  return el("div", { class: "charts" }, (present.length <= 6 ? groups.slice(0, 1) : groups).map((series) =>
    curveChart({ series, x: shortened(title, 70), y: name, words: `${name}, by ${axis}`, ...span })));
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
    const node = el("td", { class: "number", title: spread === null ? null : `± ${compact(spread)}` }, compact(value));
    return shaded(node, value, scales[c].limit, scales[c].isSigned);
  };
  return el("div", { class: "scroll scroll-both", tabindex: 0, role: "region", "aria-label": name }, el("table", { class: "grid fixed" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, rowAxis.replaceAll("_", " ")),
      columns.map((label) => el("th", { scope: "col" }, String(label).replaceAll("_", " "))))),
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
    el("div", { class: "scroll scroll-both", tabindex: 0, role: "region", "aria-label": name }, el("table", { class: "bars" }, el("tbody", {}, rows)))];
}

// ---- any number of axes

// which axes are averaged, which are chosen from, and which are drawn
function arranged(tensor) {
  const averaged = tensor.axes.filter((axis) => AVERAGED.has(axis));
  const free = tensor.axes.filter((axis) => !AVERAGED.has(axis));
  const last = free.at(-1);
  const most = free.includes("measure") || free.includes("outcome") || !UNITS.has(last) ? 2 : 1;
  const chosen = [];
  const take = (axis) => { chosen.push(axis); free.splice(free.indexOf(axis), 1); };
  for (const axis of CHOSEN_FIRST) if (free.includes(axis) && (free.length > most || (axis === "metric" && free.length > 1))) take(axis);
  while (free.length > most) take(free[0]);
  return { averaged, chosen, drawn: free };
}

// a figure of any labelled tensor; `words` say what it is
function tensorFigure(entry, name, words = "") {
  let tensor = entry instanceof Tensor ? entry : new Tensor(entry);
  const caption = el("figcaption", {}, el("h3", {}, name), words ? el("p", { class: "soft" }, inCode(words)) : null);
  const alone = [];
  for (const axis of [...tensor.axes]) {
    if (tensor.size(axis) === 0) return el("figure", { class: "result" }, caption, el("p", { class: "soft" }, `There is no ${axis} here.`));
    if (tensor.size(axis) !== 1) continue;
    if (!AVERAGED.has(axis)) alone.push(labelNode(axis, tensor.labels(axis)[0]));
    tensor = tensor.pick(axis, 0);
  }
  if (alone.length) caption.append(el("p", { class: "soft small" }, alone.map((node, i) => [i ? ", " : "", node])));
  const scale = tensor.range();
  if (!tensor.axes.length) return el("figure", { class: "result" }, caption, el("p", { class: "alone number" }, compact(tensor.at(), scale.isSigned)));
  const { averaged, chosen, drawn } = arranged(tensor);
  const at = Object.fromEntries([...averaged.map((axis) => [axis, -1]), ...chosen.map((axis) => [axis, 0])]);
  const picked = (axes, from) => axes.reduce((t, axis) => (at[axis] < 0 ? t.mean(axis) : t.pick(axis, at[axis])), from);
  const figure = el("div", { class: "stack" });
  const map = drawn.length === 2 && !UNITS.has(drawn[1]) && !CURVES.has(drawn[1]) && !SHARES.has(drawn[1]) ? new HeatMap(name) : null;
  const scaleOf = () => (chosen.some((axis) => UNITS.has(axis)) ? picked(chosen.filter((axis) => UNITS.has(axis)), tensor).range() : scale);
  const legendRoom = el("div", {});
  const draw = () => {
    const now = picked([...averaged, ...chosen], tensor);
    // a spread over one averaged axis; over two it would not be one number
    const mean = averaged.filter((axis) => at[axis] < 0);
    const error = mean.length === 1 ? picked([...averaged, ...chosen].filter((axis) => axis !== mean[0]), tensor).error(mean[0]) : null;
    const here = scaleOf();
    if (map) {
      map.show(now, error, here);
      legendRoom.replaceChildren(legend(here.limit, here.isSigned, `rows: ${drawn[0].replaceAll("_", " ")}, columns: ${drawn[1].replaceAll("_", " ")}`));
      return;
    }
    const [axis] = drawn.slice(-1);
    const content = drawn.length === 1 ? oneAxis(now, error, now.range(), name)
      : CURVES.has(axis) ? curves(now, name) : SHARES.has(axis) ? shareBars(now, name) : unitTable(now, error, name);
    figure.replaceChildren(...[content].flat());
  };
  const redraw = (axis) => (i) => { at[axis] = i; draw(); };
  const pictured = map ? chosen.filter((axis) => !UNITS.has(axis) && tensor.size(axis) <= THUMBS).at(-1) : undefined;
  const lists = [
    averaged.map((axis) => choice(axis, tensor.labels(axis), `mean of ${tensor.size(axis)}`, redraw(axis))),
    chosen.filter((axis) => axis !== pictured).map((axis) => choice(axis, tensor.labels(axis), null, (i) => { redraw(axis)(i); rowOfPictures(); })),
  ].flat();
  const pictureRoom = el("div", {});
  const rowOfPictures = () => {
    if (!pictured) return;
    const others = [...averaged, ...chosen.filter((axis) => axis !== pictured)];
    at[pictured] = 0;
    pictureRoom.replaceChildren(pictures(picked(others, tensor), pictured, scaleOf(), redraw(pictured)));
    draw();
  };
  if (map) figure.append(legendRoom, map.node);
  draw();
  rowOfPictures();
  return el("figure", { class: "result" }, caption, lists.length ? el("div", { class: "choices" }, lists) : null, pictureRoom, figure);
}

// words with `code` in backticks
const inCode = (words) => words.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));
