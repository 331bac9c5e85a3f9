// Maps of numbers: large ones with a cursor, and small ones to choose among.

// ---- a row of cells for every entry of one axis, a column for every entry of another

const PALE = 0.02; // of its number, what the colour of a cell shows that is no surer than noise

class HeatMap {
  constructor(name) {
    this.name = name;
    [this.r, this.c] = [0, 0];
    this.canvas = el("canvas", {
      class: "map", tabindex: 0, role: "application", "aria-roledescription": spoken("map of numbers"),
      onkeydown: (event) => this.key(event), onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event),
    });
    this.readout = el("p", { class: "told", "aria-live": "polite" });
    this.text = el("div", {});
    this.room = room(name, this.canvas);
    this.node = el("div", { class: "heatmap" }, this.room, this.readout, this.text);
    painters.push(() => this.draw());
    new ResizeObserver(() => { if (this.room.clientWidth !== this.drawnAt) this.draw(); }).observe(this.room);
  }

  // tensor: two axes; error: the same, or null; scale: {limit, isSigned}
  show(tensor, error, scale) {
    Object.assign(this, { tensor, error, ...scale });
    [this.rowAxis, this.columnAxis] = tensor.axes;
    [this.rows, this.columns] = [tensor.labels(this.rowAxis), tensor.labels(this.columnAxis)];
    [this.r, this.c] = this.largest();
    this.told = null;
    this.draw();
  }

  // where to begin: the largest entry, of the last query if rows are queries
  largest() {
    const { values } = this.tensor;
    const first = this.rowAxis === "query" ? values.length - this.columns.length : 0;
    let best = first;
    for (let i = first; i < values.length; i++) if (Math.abs(values[i]) > Math.abs(values[best]) || Number.isNaN(values[best])) best = i;
    return [Math.floor(best / this.columns.length), best % this.columns.length];
  }

  layout(context, room) {
    const [rows, columns] = [this.rows.length, this.columns.length];
    const texts = TOKENS.has(this.rowAxis) && TOKENS.has(this.columnAxis);
    const wide = (axis, labels) => Math.max(...labels.map((label) => context.measureText(labelText(axis, label)).width));
    const rowRoom = wide(this.rowAxis, this.rows);
    const columnRoom = wide(this.columnAxis, this.columns);
    const few = rows <= 60;
    this.left = few ? Math.min(132, rowRoom) + 10 : 34;
    const fit = (room - this.left - 4) / columns;
    this.width = texts ? Math.min(Math.max(fit, 3), 22) : Math.min(Math.max(fit, 4), 72);
    this.height = texts ? this.width : rows <= 12 ? 24 : rows <= 40 ? 19 : Math.max(3, Math.min(14, 620 / rows));
    if (texts && few && columns > 2 * rows) this.height = Math.max(this.height, 14);
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
    this.drawTrained(context, style);
    this.drawLabels(context, style);
    this.drawCursor(context, style);
    this.tell();
  }

  drawCells(context, style) {
    const [w, h] = [this.width, this.height];
    context.fillStyle = style.getPropertyValue("--undefined");
    context.fillRect(this.left, this.top, w * this.columns.length, h * this.rows.length);
    const gap = Math.min(w, h) >= 9 ? 1 : 0;
    const numbers = w >= 42 && h >= 16;
    context.textAlign = "center";
    for (let r = 0; r < this.rows.length; r++) {
      for (let c = 0; c < this.columns.length; c++) {
        const value = this.tensor.at(r, c);
        if (value === null) continue;
        const isPale = this.isNoise(r, c);
        const fill = colour(isPale ? value * PALE : value, this.limit, this.isSigned);
        context.fillStyle = css(fill);
        // without gaps, cells overlap by a fraction of a pixel: seams would show as a grid
        context.fillRect(this.left + c * w, this.top + r * h, w - gap + (gap ? 0 : 0.4), h - gap + (gap ? 0 : 0.4));
        if (!numbers) continue;
        context.fillStyle = isPale ? style.getPropertyValue("--soft") : ink(fill);
        context.fillText(beside(value, this.limit, this.isSigned), this.left + (c + 0.5) * w - 0.5, this.top + (r + 0.5) * h);
      }
    }
  }

  // whether a mean is nearer to zero than two of its standard errors
  isNoise(r, c) {
    const spread = this.error?.at(r, c) ?? null;
    return spread !== null && Math.abs(this.tensor.at(r, c)) < 2 * spread;
  }

  get hasNoise() { return this.rows.some((_, r) => this.columns.some((_, c) => this.isNoise(r, c))); }

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

  // lines where the text goes beyond the rows that the model was trained on
  drawTrained(context, style) {
    const at = (axis, labels) => (TRAINED !== null && TOKENS.has(axis)
      ? labels.findIndex((label) => Number(typeof label === "number" ? label : placed(label)?.[2] ?? -1) >= TRAINED) : -1);
    const [r, c] = [at(this.rowAxis, this.rows), at(this.columnAxis, this.columns)];
    context.fillStyle = style.getPropertyValue("--trained");
    if (r > 0) context.fillRect(this.left, this.top + r * this.height - 1, this.width * this.columns.length, 1.5);
    if (c > 0) context.fillRect(this.left + c * this.width - 1, this.top, 1.5, this.height * this.rows.length);
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
    this.readout.replaceChildren(...labelNode(this.rowAxis, row), spoken(", "), ...labelNode(this.columnAxis, column), spoken(": "),
      el("strong", { class: "number" }, value === null ? spoken("not defined") : words));
    const said = (axis, label) => `${axisName(axis)} ${labelText(axis, label, 24)}`;
    this.canvas.setAttribute("aria-label", [this.name, spoken(". "), said(this.rowAxis, row), spoken(", "), said(this.columnAxis, column), spoken(": "), words].join(""));
    const told = `${this.r} ${theme}`;
    if (!isText(this.tensor, this.columnAxis) || this.told === told) return;
    this.told = told;
    const columns = this.columns.filter(placed); // those behind the first of several texts have no token
    const weights = columns.map((_, c) => this.tensor.at(this.r, c));
    this.text.replaceChildren(strip(columns.map(textOfToken), {
      weights, limit: this.limit, isSigned: this.isSigned, once: true, format: (x) => compact(x, this.isSigned),
      here: this.rowAxis === "query" && this.columnAxis === "key" ? this.columns.indexOf(row) : null,
    }));
  }
}

// ---- small maps

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
    type: "button", class: "thumb", "aria-pressed": String(i === firstOf(tensor, axis)),
    onclick: () => { buttons.forEach((b, j) => b.setAttribute("aria-pressed", String(i === j))); chosen(i); },
  }, el("span", { class: "label" }, typeof label === "number" ? `${axisName(axis)} ${label}` : labelText(axis, label, 24)), smallMap(tensor.pick(axis, i), scale)));
  return el("div", { class: "thumbs", role: "group", "aria-label": spoken("choose the {axis}", { axis: axisName(axis) }) }, buttons);
}
