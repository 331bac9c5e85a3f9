// Attention patterns: decoding, small pictures, and one picture large with its numbers.

const THUMB = 102; // longest side of a small picture, in CSS pixels
const LABEL_ROOM = 96; // CSS pixels beside and above a large picture for its token labels

// whole numbers from bytes of seven bits, lowest first, the eighth set where another follows; signed ones fold at zero
function wholeNumbers(bytes, isSigned) {
  const found = [];
  for (let i = 0, at = 0, value = 0; i < bytes.length; i++) {
    const byte = bytes.charCodeAt(i);
    value += (byte & 127) << at;
    at += 7;
    if (byte > 127) continue;
    found.push(!isSigned ? value : value % 2 ? -(value + 1) / 2 : value / 2);
    at = value = 0;
  }
  return Int32Array.from(found);
}

class Pattern {
  constructor(entry) {
    Object.assign(this, entry);
    this.counts = wholeNumbers(atob(entry.data), entry.signed); // of steps
    this.step = entry.scale / entry.steps;
    // a weight is a share of 1 where rows are mixtures; elsewhere the head's own largest weight is the measure
    this.limit = !entry.signed && entry.scale <= 1.0001 ? 1 : entry.scale;
  }

  // whether the mask forbids some keys to some queries
  get masks() { return this.layout === "lower" && this.columns > 1; }

  // weight of key k for query q; null where the mask forbids looking
  at(q, k) {
    const lower = this.layout === "lower";
    if (lower && k > q) return null;
    return this.step * this.counts[lower ? (q * (q + 1)) / 2 + k : q * this.columns + k];
  }

  row(q) {
    return Array.from({ length: this.columns }, (_, k) => this.at(q, k) ?? 0);
  }

  // the query and key of the largest weight, either sign
  peak() {
    let best = 0;
    this.counts.forEach((count, i) => {
      if (Math.abs(count) > Math.abs(this.counts[best])) best = i;
    });
    if (this.layout === "full") return [Math.floor(best / this.columns), best % this.columns];
    const q = Math.floor((Math.sqrt(8 * best + 1) - 1) / 2);
    return [q, best - (q * (q + 1)) / 2];
  }

  // the entry of largest size in a square of cells
  strongest(q0, k0, size) {
    let found = null;
    for (let q = q0; q < Math.min(q0 + size, this.rows); q++) {
      for (let k = k0; k < Math.min(k0 + size, this.columns); k++) {
        const weight = this.at(q, k);
        if (weight !== null && (found === null || Math.abs(weight) > Math.abs(found))) found = weight;
      }
    }
    return found;
  }

  format(weight) {
    return this.signed ? signed(weight, 3) : weight.toFixed(3);
  }

  told(weight) { return weight === null ? spoken("masked") : this.format(weight); }
}

// draw a pattern into a canvas, one pixel per cell, or per square of `size` cells, which then shows the strongest
function drawPixels(canvas, pattern, size) {
  const [height, width] = [Math.ceil(pattern.rows / size), Math.ceil(pattern.columns / size)];
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const weight = pattern.strongest(y * size, x * size, size);
      if (weight === null) continue;
      const at = 4 * (y * width + x);
      [image.data[at], image.data[at + 1], image.data[at + 2]] = colour(weight, pattern.limit, pattern.signed);
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// where the text goes beyond the rows that the model was trained on, as shares of a picture's width and height
const trainedAt = (pattern) => [pattern.columns, pattern.rows].map((n) => (TRAINED !== null && TRAINED < n ? TRAINED / n : null));

const TRAINED_LINE = 1.5; // CSS pixels
const HATCH = 7; // CSS pixels between the lines over masked cells

// oblique lines over the cells that the mask forbids: a weight of zero has none
function drawMasked(context, { left, top, width, height }, pattern) {
  if (!pattern.masks) return;
  const [across, down] = [width / pattern.columns, height / pattern.rows];
  context.save();
  context.beginPath();
  for (let q = 0; q < pattern.rows; q++) context.rect(left + (q + 1) * across, top + q * down, width - (q + 1) * across, down);
  context.clip();
  context.beginPath();
  for (let x = left - height; x < left + width; x += HATCH) {
    context.moveTo(x, top + height);
    context.lineTo(x + height, top);
  }
  context.strokeStyle = getComputedStyle(document.body).getPropertyValue("--edge");
  context.lineWidth = 0.75;
  context.stroke();
  context.restore();
}

// lines between cells, so that they hide no weight
function drawTrained(context, { left, top, width, height }, pattern) {
  context.fillStyle = getComputedStyle(document.body).getPropertyValue("--trained");
  const [across, down] = trainedAt(pattern);
  if (across !== null) context.fillRect(left + across * width - TRAINED_LINE / 2, top, TRAINED_LINE, height);
  if (down !== null) context.fillRect(left, top + down * height - TRAINED_LINE / 2, width, TRAINED_LINE);
}

// the same over a small picture, whose pixels are as large as its cells
function trainedLines(pattern) {
  const [across, down] = trainedAt(pattern);
  return [across !== null && el("span", { class: "trained down", style: `left:${100 * across}%` }),
    down !== null && el("span", { class: "trained across", style: `top:${100 * down}%` })].filter(Boolean);
}

function drawThumb(canvas, pattern) {
  const longest = Math.max(pattern.rows, pattern.columns);
  drawPixels(canvas, pattern, Math.ceil(longest / (THUMB * Math.max(1, devicePixelRatio))));
  canvas.style.width = `${(THUMB * pattern.columns) / longest}px`;
  canvas.style.height = `${(THUMB * pattern.rows) / longest}px`;
}

// the cell of a pattern under a pointer, cells being `width` by `height` CSS pixels from (left, top) of the canvas
function cellUnder(event, pattern, { width, height, left = 0, top = 0 }) {
  const box = event.target.getBoundingClientRect();
  const q = Math.floor((event.clientY - box.top - top) / height);
  const k = Math.floor((event.clientX - box.left - left) / width);
  return q >= 0 && k >= 0 && q < pattern.rows && k < pattern.columns ? [q, k] : null;
}

// a small picture that opens large; `texts` are the token texts of the pattern's rows and columns
function thumb(pattern, texts, notes, open) {
  const peak = pattern.peak();
  const canvas = el("canvas", {
    role: "img",
    "aria-label": spoken("attention pattern, {rows} queries by {columns} keys, strongest from {q} “{query}” to {k} “{key}”", {
      rows: pattern.rows, columns: pattern.columns, q: peak[0], query: visible(texts.query[peak[0]]), k: peak[1], key: visible(texts.key[peak[1]]),
    }),
  });
  painted(canvas, () => drawThumb(canvas, pattern));
  canvas.addEventListener("pointermove", (event) => {
    const size = { width: canvas.clientWidth / pattern.columns, height: canvas.clientHeight / pattern.rows };
    const cell = cellUnder(event, pattern, size);
    if (cell === null) return hideTip();
    const weight = pattern.at(...cell);
    showTip(event, `${spokenLabel(pattern.label)}: ${cell[0]} `, token(texts.query[cell[0]]), ` → ${cell[1]} `, token(texts.key[cell[1]]),
      ` ${pattern.told(weight)}`);
  });
  canvas.addEventListener("pointerleave", hideTip);
  return el("button", { type: "button", class: "thumb", "data-label": pattern.label, onclick: () => { hideTip(); open(pattern.label); } },
    el("span", { class: "label" }, spokenLabel(pattern.label)), el("span", { class: "picture" }, canvas, trainedLines(pattern)), notes.map((note) => el("span", { class: "label" }, note)));
}

// ---- all heads: by stack, and layer by layer

const STACKS = {
  attn: { "": "", encoder: spoken("Encoder: the source looks at itself"), decoder: spoken("Decoder: the target looks at itself") },
  cross: spoken("Cross-attention: the target looks at the source"),
};

const patternGloss = (patterns) => [spoken("One picture per head: a row for every query token, a column for every key token, shaded by weight. "),
  patterns.some((p) => Math.max(p.rows, p.columns) > THUMB) ? spoken("Every pixel is a value of this forward pass; where tokens outnumber pixels, a pixel shows the largest weight under it. ") : spoken("Every pixel is a value of this forward pass. "),
  spoken("Choose a picture to see it large, with its numbers.")];

function patternLegends(patterns) {
  const measured = patterns.filter((p) => p.limit !== 1);
  return [
    patterns.some((p) => p.limit === 1) ? legend(1, false, spoken("attention weight; colour follows its square root, so small weights show")) : null,
    measured.some((p) => p.signed) ? legend(1, true, spoken("signed weight, as a share of the head’s largest")) : null,
    measured.some((p) => !p.signed) ? legend(1, false, spoken("heads whose rows do not sum to one: share of the head’s largest weight")) : null,
  ];
}

// `picture` makes what stands for one head
function patternGroups(patterns, picture) {
  const groups = [...new Set(patterns.map((p) => `${p.stack}|${p.part}`))].map((key) => key.split("|"));
  return groups.map(([stack, part]) => {
    const chosen = patterns.filter((p) => p.stack === stack && p.part === part);
    const name = part === "cross" ? STACKS.cross : groups.length > 1 || stack ? STACKS.attn[stack] ?? stack : "";
    return [
      name ? el("h3", { class: "later" }, name) : null,
      [...new Set(chosen.map((p) => p.layer))].map((layer) => el("div", { class: "layer" }, el("p", { class: "name" }, spoken("Layer {layer}", { layer })),
        el("div", { class: "thumbs" }, chosen.filter((p) => p.layer === layer).map(picture)))),
    ];
  });
}

// ---- one pattern, large: a dialog with the map, the cell under the cursor, and its query's whole row

class Viewer {
  constructor(patterns, textsOf, firstQuery, describe) {
    Object.assign(this, { patterns, textsOf, firstQuery, describe, index: 0, q: 0, k: 0 });
    this.canvas = el("canvas", {
      class: "map", tabindex: 0, role: "application", "aria-roledescription": spoken("attention map"),
      onkeydown: (event) => this.key(event),
      onpointermove: (event) => this.point(event), onpointerdown: (event) => this.point(event),
    });
    this.title = el("h2", { id: "viewer-title" });
    this.about = el("p", { class: "gloss" });
    this.readout = el("div", { class: "readout", "aria-live": "polite" });
    this.strip = el("div", {});
    this.legends = {
      weight: legend(1, false, spoken("weight")),
      share: legend(1, false, spoken("share of the head’s largest weight")),
      signed: legend(1, true, spoken("share of the head’s largest weight")),
    };
    this.masked = el("p", { class: "key" }, el("span", {}, el("span", { class: "hatched" }), spoken("masked: not to be looked at")));
    const button = (words, label, act) => el("button", { type: "button", "aria-label": label, onclick: act }, words);
    this.dialog = el("dialog", { "aria-labelledby": "viewer-title" },
      el("div", { class: "bar-top" }, this.title,
        button(spoken("← previous"), spoken("← previous head"), () => this.step(-1)), button(spoken("next →"), spoken("next → head"), () => this.step(1)),
        button(spoken("close"), spoken("close"), () => this.dialog.close())),
      this.about,
      el("div", { class: "large" },
        el("div", {}, scroller(spoken("Attention map"), this.canvas), Object.values(this.legends), this.masked),
        el("div", {}, this.readout, this.strip,
          el("p", { class: "hint" }, spoken("Rows are queries, columns keys. Move with the pointer, or focus the map and use the arrow keys (with Shift: ten at a time); page up and page down change the head.")))));
    painters.push(() => this.dialog.open && this.draw());
    addEventListener("resize", () => this.dialog.open && this.draw());
  }

  get pattern() { return this.patterns[this.index]; }

  open(label) {
    this.show(this.patterns.findIndex((p) => p.label === label));
    if (!this.dialog.open) this.dialog.showModal();
    this.draw();
    this.canvas.focus({ preventScroll: true });
  }

  step(by) {
    this.show((this.index + by + this.patterns.length) % this.patterns.length);
    this.draw();
  }

  show(index) {
    this.index = index;
    const p = this.pattern;
    this.q = Math.min(p.query === "tokens" ? this.firstQuery : p.rows - 1, p.rows - 1);
    const row = p.row(this.q).map(Math.abs);
    this.k = row.indexOf(Math.max(...row));
    this.title.textContent = spokenLabel(p.label);
    this.about.replaceChildren(...this.describe(p));
    this.masked.hidden = !p.masks;
    for (const [kind, node] of Object.entries(this.legends)) node.hidden = kind !== (p.signed ? "signed" : p.limit === 1 ? "weight" : "share");
  }

  move(q, k) {
    if (q === this.q && k === this.k) return;
    [this.q, this.k] = [q, k];
    this.draw();
  }

  key(event) {
    const far = event.shiftKey ? 10 : 1;
    const by = { ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far] }[event.key];
    const heads = { PageUp: -1, PageDown: 1 }[event.key];
    if (!by && !heads) return;
    event.preventDefault();
    if (heads) return this.step(heads);
    const clamp = (x, n) => Math.min(Math.max(x, 0), n - 1);
    this.move(clamp(this.q + by[0], this.pattern.rows), clamp(this.k + by[1], this.pattern.columns));
  }

  point(event) {
    const cell = cellUnder(event, this.pattern, { width: this.cell, height: this.cell, left: this.left, top: this.top });
    if (cell) this.move(...cell);
  }

  draw() {
    const p = this.pattern;
    const room = Math.min(760, this.dialog.clientWidth - 60, Math.max(320, innerHeight - 220));
    const longest = Math.max(p.rows, p.columns);
    const labelled = (room - LABEL_ROOM) / longest >= 11;
    const fit = Math.max(1, Math.min(40, (room - (labelled ? LABEL_ROOM : 34)) / longest));
    const cell = fit >= 8 ? Math.floor(fit) : fit;
    [this.left, this.top, this.cell] = [labelled ? LABEL_ROOM : 34, labelled ? LABEL_ROOM : 20, cell];
    const [width, height] = [this.left + cell * p.columns + (labelled ? 2 : 14), this.top + cell * p.rows + 2];
    const sharp = devicePixelRatio || 1;
    Object.assign(this.canvas, { width: width * sharp, height: height * sharp });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = this.canvas.getContext("2d");
    context.scale(sharp, sharp);
    this.drawCells(context, p);
    this.drawLabels(context, p, labelled);
    this.drawCursor(context, p);
    this.tell(p);
  }

  drawCells(context, p) {
    const pixels = drawPixels(el("canvas"), p, 1);
    context.imageSmoothingEnabled = false;
    const box = { left: this.left, top: this.top, width: this.cell * p.columns, height: this.cell * p.rows };
    context.drawImage(pixels, box.left, box.top, box.width, box.height);
    drawMasked(context, box, p);
    drawTrained(context, box, p);
  }

  drawLabels(context, p, labelled) {
    const style = getComputedStyle(this.dialog);
    const texts = this.textsOf(p);
    context.font = `${labelled ? Math.min(13, this.cell) : 10}px ${style.getPropertyValue("--mono")}`;
    context.textBaseline = "middle";
    const every = labelled ? 1 : 2 ** Math.ceil(Math.log2(28 / this.cell));
    const name = (list, i) => (labelled ? shortened(list[i], 11) : String(i));
    const tint = (chosen) => { context.fillStyle = style.getPropertyValue(chosen ? "--pick" : "--soft"); };
    context.textAlign = "right";
    for (let q = 0; q < p.rows; q += every) {
      tint(q === this.q);
      context.fillText(name(texts.query, q), this.left - 6, this.top + (q + 0.5) * this.cell);
    }
    for (let k = 0; k < p.columns; k += every) {
      tint(k === this.k);
      context.save();
      context.translate(this.left + (k + 0.5) * this.cell, this.top - 6);
      if (labelled) context.rotate(-Math.PI / 2);
      context.textAlign = labelled ? "left" : "center";
      context.fillText(name(texts.key, k), 0, labelled ? 0 : -4);
      context.restore();
    }
  }

  drawCursor(context, p) {
    const style = getComputedStyle(this.dialog);
    context.strokeStyle = style.getPropertyValue("--line");
    context.strokeRect(this.left - 0.5, this.top - 0.5, this.cell * p.columns + 1, this.cell * p.rows + 1);
    context.strokeStyle = style.getPropertyValue("--pick");
    context.lineWidth = 1;
    context.strokeRect(this.left - 0.5, this.top + this.q * this.cell - 0.5, this.cell * p.columns + 1, this.cell + 1);
    context.lineWidth = 2;
    const grow = Math.max(0, 5 - this.cell);
    context.strokeRect(this.left + this.k * this.cell - grow, this.top + this.q * this.cell - grow,
      this.cell + 2 * grow, this.cell + 2 * grow);
  }

  tell(p) {
    const texts = this.textsOf(p);
    const weight = p.at(this.q, this.k);
    const words = spoken("query {q} {query} → key {k} {key}", { q: this.q, query: chip(texts.query[this.q]), k: this.k, key: chip(texts.key[this.k]) });
    this.readout.replaceChildren(
      el("p", {}, words),
      el("p", { class: "weight" }, p.told(weight)));
    this.canvas.setAttribute("aria-label", spoken("Attention map of {head}, query {q}, key {k}, weight {weight}", { head: spokenLabel(p.label), q: this.q, k: this.k, weight: p.told(weight) }));
    if (this.told === `${p.label} ${this.q} ${theme}`) return;
    this.told = `${p.label} ${this.q} ${theme}`;
    const row = p.row(this.q);
    this.strip.replaceChildren(
      el("h3", {}, spoken("Where query {q} looks", { q: this.q })),
      inWords(texts.key, row, { isSigned: p.limit !== 1 }),
      strip(texts.key, { weights: row, limit: p.limit, isSigned: p.signed, here: p.query === p.key ? this.q : null, once: true }));
  }
}
