// Pictures made of lines and points: curves, points in the complex plane, a graph of heads. SVG, coloured by the style
// sheet, so that themes and print need no repainting.

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== undefined && value !== null) node.setAttribute(name, value);
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

const picture = (width, height, words, ...children) =>
  svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": words, style: `max-width:${width}px` }, children);

// about five round numbers from low to high
function ticksOf(low, high) {
  const span = high - low || 1;
  const rough = span / 4;
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= rough);
  const found = [];
  // multiples of the step, as sums of it miss zero
  for (let i = Math.ceil(low / step); i * step <= high + 1e-9 * span; i++) found.push(Number((i * step).toPrecision(10)));
  return found;
}

const short = (x) => {
  const size = Math.abs(x);
  if (size >= 1e9) return `${Number((x / 1e9).toPrecision(3))}G`;
  if (size >= 1e6) return `${Number((x / 1e6).toPrecision(3))}M`;
  if (size >= 1e4) return `${Number((x / 1e3).toPrecision(3))}k`;
  return String(Number(x.toPrecision(3))).replace("-", "−");
};

// the powers of ten from low to high and, where they are few, their doubles and fives
function decadesOf(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const within = (factors) => Array.from({ length: last - first + 1 }, (_, i) => factors.map((f) => f * 10 ** (first + i))).flat()
    .filter((t) => t >= low * 0.999 && t <= high * 1.001);
  return within([1]).length > 2 ? within([1]) : within([1, 2, 5]);
}

// series: {name, x: [numbers], y: [numbers or null]}; marks: x values to point out; isPower: both axes are logarithmic
function curveChart({ series, x, y, words, marks = [], height = 220, low, high, isPower = false }) {
  const width = 460, left = 46, right = 12, top = 10, bottom = 34;
  const xs = series.flatMap((s) => s.x), ys = series.flatMap((s) => s.y).filter((v) => v !== null);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const [y0, y1] = [low ?? Math.min(...ys), high ?? Math.max(...ys)];
  const along = isPower ? Math.log10 : (v) => v;
  const share = (v, from, to) => (along(v) - along(from)) / (along(to) - along(from) || 1);
  const px = (v) => left + share(v, x0, x1) * (width - left - right);
  const py = (v) => height - bottom - share(v, y0, y1) * (height - top - bottom);
  const lines = isPower ? decadesOf(y0, y1) : ticksOf(y0, y1);
  const places = isPower ? [...new Set(xs)] : ticksOf(x0, x1);
  const paths = series.map((s, i) => {
    let pen = "M";
    const points = s.x.map((v, j) => {
      if (s.y[j] === null) { pen = "M"; return ""; }
      const step = `${pen}${px(v).toFixed(1)} ${py(s.y[j]).toFixed(1)}`;
      pen = "L";
      return step;
    });
    return svg("path", { d: points.join(""), class: `line series-${i % 6}` });
  });
  const chart = picture(width, height, words,
    marks.map((m) => svg("line", { x1: px(m), x2: px(m), y1: top, y2: height - bottom, class: "mark" })),
    lines.map((t) => [
      svg("line", { x1: left, x2: width - right, y1: py(t), y2: py(t), class: "rule" }),
      svg("text", { x: left - 6, y: py(t) + 4, class: "tick end" }, short(t))]),
    places.map((t) => svg("text", { x: px(t), y: height - bottom + 15, class: "tick middle" }, isPower ? count(t) : short(t))),
    svg("text", { x: (left + width - right) / 2, y: height - 3, class: "tick middle" }, x),
    paths);
  const names = series.length > 1 || series[0].name
    ? el("p", { class: "key" }, series.map((s, i) => el("span", {}, el("span", { class: `swatch series-${i % 6}` }), s.name)))
    : null;
  return el("figure", { class: "card" }, el("figcaption", {}, y), names, chart);
}

// eigenvalues as points: the radius grows with the logarithm, so that small ones show beside large ones
function planeChart(label, values, largest, note) {
  const size = 132, middle = size / 2, decades = 3;
  const place = ([re, im]) => {
    const r = Math.hypot(re, im);
    if (r === 0) return [middle, middle];
    const far = Math.max(0, 1 + Math.log10(r / largest) / decades) * (middle - 6);
    return [middle + (far * re) / r, middle - (far * im) / r];
  };
  return el("figure", { class: "plane" },
    picture(size, size, spoken("{head}: {n} eigenvalues in the complex plane, {note}", { head: label, n: values.length, note }),
      svg("circle", { cx: middle, cy: middle, r: middle - 6, class: "rim" }),
      svg("line", { x1: middle, x2: middle, y1: 4, y2: size - 4, class: "rule" }),
      svg("line", { x1: 4, x2: size - 4, y1: middle, y2: middle, class: "rule" }),
      values.map((v) => { const [cx, cy] = place(v); return svg("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r: 2, class: v[0] >= 0 ? "dot positive" : "dot negative" }); })),
    el("figcaption", {}, el("span", { class: "mono" }, label), " ", el("span", { class: "soft" }, note)));
}

// heads as nodes, one row per layer from the bottom up; edges from earlier heads to later ones
function headGraph(layers, edges, words) {
  const columns = Math.max(...layers.map((l) => l.heads.length));
  const gap = Math.min(84, 860 / columns), rowGap = 120, width = Math.max(380, columns * gap + 60);
  const height = layers.length * rowGap + 10;
  const at = new Map();
  layers.forEach((layer, row) => layer.heads.forEach((head, i) => {
    const free = (width - layer.heads.length * gap) / 2;
    at.set(head.label, [free + gap * (i + 0.5), height - rowGap * (row + 0.5) - 5]);
  }));
  const drawn = edges.filter((e) => at.has(e.earlier) && at.has(e.later));
  const strongest = Math.max(1e-9, ...drawn.map((e) => e.excess));
  const lines = drawn.map((e) => {
    const [x1, y1] = at.get(e.earlier), [x2, y2] = at.get(e.later);
    const bend = (y1 - y2) * 0.45;
    // the three kinds leave side by side, so that none hides another
    const side = { Q: -5, K: 0, V: 5 }[e.kind];
    const d = `M${x1 + side} ${y1 - 15}C${x1 + side} ${y1 - 15 - bend} ${x2 + side} ${y2 + 15 + bend} ${x2 + side} ${y2 + 15}`;
    const line = svg("path", { d, class: `edge kind-${e.kind}`, "stroke-width": (1 + (4 * e.excess) / strongest).toFixed(2) });
    line.append(svg("title", {}, spoken("{kind}-composition {earlier} → {later}: {score}", { ...e, score: e.score.toFixed(3) })));
    return line;
  });
  const nodes = layers.flatMap((l) => l.heads).map((head) => {
    const [x, y] = at.get(head.label), half = Math.max(25, 4.2 * head.label.length + 4);
    return svg("g", { class: `node ${head.role ?? ""}` },
      svg("rect", { x: x - half, y: y - 15, width: 2 * half, height: 30, rx: 8 }),
      svg("text", { x, y: y + 4.5, class: "middle" }, head.label));
  });
  const kinds = [["Q", spoken("into the query")], ["K", spoken("into the key")], ["V", spoken("into the value")]];
  return el("div", {},
    el("p", { class: "key" }, kinds.map(([k, meaning]) => el("span", {}, el("span", { class: `swatch kind-${k}` }), `${k}: ${meaning}`))),
    scroller(spoken("composition graph"), picture(width, height, words, lines, nodes)));
}
