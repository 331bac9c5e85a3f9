// Graphs as SVG, coloured by the style sheet: routes of tokens through layers, and circuits of heads and MLPs. A slider
// says how much of the graph is drawn; a table beside it says the same in numbers.

// a slider over numbers from low to high; `said` puts its value in words, `changed` draws
function slider(name, { low, high, value, step, said, changed }) {
  const output = el("output", {}, said(value));
  const input = el("input", { type: "range", min: low, max: high, step, value,
    oninput: (event) => { const now = Number(event.target.value); output.textContent = said(now); changed(now); } });
  return el("label", { class: "choice slider" }, el("span", {}, name), input, output);
}

const titled = (node, words) => { node.append(svg("title", {}, words)); return node; };

// ---- routes: tokens across, places in the model upwards

const depthOf = (place) => {
  const layer = /(\d+)/.exec(place);
  return layer ? 2 * Number(layer[1]) + 1 + (/ /.test(place) ? 1 : 0) : 0;
};

// where routes start
function topsOf(routes) {
  const tops = routes.nodes.filter((n) => !routes.edges.some((e) => e.below === n.label)).map((n) => n.label);
  return tops.length ? tops : [routes.nodes[0].label];
}

// "L0 mlp | 3: Peter" is a place and the token at it
function nodeText(label) {
  const at = label.indexOf(" | ");
  return at < 0 ? spokenLabel(label) : `${spokenLabel(label.slice(0, at))} ${labelText("key", label.slice(at + 3))}`;
}

// what can still be reached from the top by edges above a threshold
function reached(routes, threshold) {
  const below = new Set(routes.edges.map((e) => e.below));
  const open = topsOf(routes);
  const found = new Set(open);
  const edges = [];
  const leaving = new Map();
  for (const edge of routes.edges) leaving.set(edge.above, [...(leaving.get(edge.above) ?? []), edge]);
  while (open.length) {
    for (const edge of leaving.get(open.pop()) ?? []) {
      if (edge.whole_share < threshold - 1e-9) continue;
      edges.push(edge);
      if (!found.has(edge.below) && below.has(edge.below)) open.push(edge.below);
      found.add(edge.below);
    }
  }
  return { found, edges };
}

const MOST_TOKENS = 40, MOST_NAMED = 10; // columns for tokens without a route; edges that bear the name of their head

function routesPicture(routes, threshold) {
  const { found, edges } = reached(routes, threshold);
  const nodes = routes.nodes.filter((n) => found.has(n.label));
  const byLabel = new Map(routes.nodes.map((n) => [n.label, n]));
  const order = routes.inputs.coords.key ?? [];
  const column = (node) => node.label.slice(node.label.indexOf("| ") + 2);
  const rank = (name) => { const i = order.indexOf(name); return i < 0 ? order.length : i; };
  // as far as there is room, tokens without a route keep their places
  const columns = order.length && order.length <= MOST_TOKENS ? order : [...new Set(nodes.map(column))].sort((a, b) => rank(a) - rank(b));
  const places = [...new Set(nodes.map((n) => n.place))].sort((a, b) => depthOf(a) - depthOf(b));
  const gap = Math.max(30, Math.min(80, 820 / columns.length)), rowGap = places.length > 14 ? 38 : 50, left = 76, bottom = 104;
  const width = Math.max(360, left + gap * columns.length + 20), height = rowGap * places.length + bottom;
  const carriedBy = (e) => byLabel.get(e.above).importance * e.share;
  const x = (node) => left + gap * (columns.indexOf(column(node)) + 0.5);
  const y = (node) => height - bottom - rowGap * (places.indexOf(node.place) + 0.5);
  const lines = edges.filter((e) => byLabel.has(e.below)).sort((a, b) => a.share - b.share).map((e) => {
    const [above, below] = [byLabel.get(e.above), byLabel.get(e.below)];
    const carried = Math.min(1, carriedBy(e));
    const kind = e.via === "stream" ? "stream" : / /.test(e.via) ? "mlp" : "head";
    const bend = (y(below) - y(above)) * 0.5;
    const side = { stream: 0, mlp: 5, head: -3 }[kind] * (x(above) === x(below) ? 1 : 0);
    const d = `M${x(below) + side} ${y(below)}C${x(below) + side} ${y(below) - bend} ${x(above) + side} ${y(above) + bend} ${x(above) + side} ${y(above)}`;
    return titled(svg("path", { d, class: `edge via-${kind}`, "stroke-width": (0.8 + 6 * carried).toFixed(2) }),
      spoken("{below} → {above} by {via}: {share} of it", { below: nodeText(e.below), above: nodeText(e.above), via: e.via, share: percent(e.share) }));
  });
  // names stand on the middle of the strongest edges, where none stands already
  const named = [];
  for (const e of edges.filter((e) => e.via !== "stream" && byLabel.has(e.below)).sort((a, b) => carriedBy(b) - carriedBy(a))) {
    const [above, below] = [byLabel.get(e.above), byLabel.get(e.below)];
    const at = { x: (x(above) + x(below)) / 2, y: (y(above) + y(below)) / 2 + 4, via: e.via };
    if (named.length < MOST_NAMED && named.every((n) => n.y !== at.y || Math.abs(n.x - at.x) > 36)) named.push(at);
  }
  const heads = named.map((n) => svg("text", { x: n.x, y: n.y, class: "middle via" }, n.via));
  const dots = nodes.map((n) => titled(svg("circle", { cx: x(n), cy: y(n), r: (2.5 + 5 * Math.sqrt(Math.min(1, n.importance))).toFixed(1), class: "stop" }),
    spoken("{place}: importance {n}", { place: nodeText(n.label), n: compact(n.importance) })));
  const names = places.map((p, i) => svg("text", { x: left - 12, y: height - bottom - rowGap * (i + 0.5) + 4, class: "end" }, spokenLabel(p)));
  const rules = places.map((p, i) => { const at = height - bottom - rowGap * (i + 0.5); return svg("line", { x1: left, x2: width - 8, y1: at, y2: at, class: "rule" }); });
  const tokens = columns.map((name, i) => {
    const at = [left + gap * (i + 0.5) + 4, height - bottom + 8];
    return svg("text", { x: at[0], y: at[1], class: "end code", transform: `rotate(-55 ${at[0]} ${at[1]})` }, labelText("key", name, 18));
  });
  const words = spoken("Routes of at least {share}: {edges} edges between {places} places; the table below says which", { share: percent(threshold), edges: edges.length, places: nodes.length });
  return picture(width, height, words, rules, lines, dots, heads, names, tokens);
}

const VIAS = [["stream", spoken("stays in the stream")], ["head", spoken("through a head")], ["mlp", spoken("through an MLP")]];

function routesGraph(routes) {
  if (!routes.nodes.length) return null;
  const graph = room(spoken("routes graph"), routesPicture(routes, routes.threshold));
  // any higher, and nothing would leave the top
  const most = Math.max(...routes.edges.filter((e) => topsOf(routes).includes(e.above)).map((e) => e.whole_share), routes.threshold);
  const changed = (t) => graph.replaceChildren(routesPicture(routes, t));
  const places = new Map(routes.nodes.map((n) => [n.label, n]));
  const carried = (e) => (places.get(e.above)?.importance ?? 0) * e.share;
  const split = (label) => { const at = label.indexOf(" | "); return at < 0 ? [label] : [`${spokenLabel(label.slice(0, at))} `, labelNode("position", label.slice(at + 3)).slice(1)]; };
  const rows = routes.edges.filter((e) => e.via !== "stream").sort((a, b) => carried(b) - carried(a)).slice(0, 12).map((e) => ({
    name: [el("span", { class: "mono" }, e.via), " ← ", split(e.below)].flat(), value: carried(e), cells: [percent(e.share), compact(carried(e))],
  }));
  return el("div", { class: "stack" },
    el("div", { class: "choices" }, slider(spoken("draw edges from"), {
      low: routes.threshold, high: most, step: "any", value: routes.threshold, said: percent, changed })),
    el("p", { class: "key" }, VIAS.map(([kind, words]) => el("span", {}, el("span", { class: `swatch via-${kind}` }), words))),
    graph,
    rows.length ? el("details", {}, el("summary", {}, spoken("What comes in by heads and MLPs, most important first")),
      room(spoken("edges by importance"), bars({ heads: [spoken("edge"), spoken("share of what it enters"), spoken("importance")], rows }))) : null);
}

// ---- circuits: senders below, receivers above

const SLOTS = { q: "Q", k: "K", v: "V" };

// the part a receiver belongs to, and which of its inputs: "L1H6.k" is the key of L1H6
function partOf(receiver) {
  const dot = receiver.lastIndexOf(".");
  return dot < 0 ? [receiver, ""] : [receiver.slice(0, dot), receiver.slice(dot + 1)];
}

function rowOf(label) {
  if (label === "logits") return 1e6;
  const layer = /L(\d+)/.exec(label);
  return layer ? 1 + 3 * Number(layer[1]) + (/X/.test(label) ? 1 : /mlp|part/.test(label) ? 2 : 0) : label.startsWith("source") ? -1 : 0;
}

const joins = (e) => `${spokenLabel(e.sender)} → ${spokenLabel(e.receiver)}`;

const signsDiffer = (edges) => edges.some((e) => e.value > 0) && edges.some((e) => e.value < 0);

// edges: {sender, receiver, value}, the strongest first
function circuitPicture(edges, words) {
  const drawn = edges.map((e) => ({ ...e, to: partOf(e.receiver)[0], slot: partOf(e.receiver)[1] }));
  const labels = [...new Set(drawn.flatMap((e) => [e.sender, e.to]))];
  const byRow = new Map();
  for (const label of labels) byRow.set(rowOf(label), [...(byRow.get(rowOf(label)) ?? []), label]);
  const rows = [...byRow.keys()].sort((a, b) => a - b);
  const head = (label) => Number(/[HX](\d+)/.exec(label)?.[1] ?? 0);
  const most = Math.max(...rows.map((row) => byRow.get(row).length));
  const gap = Math.max(66, Math.min(110, 840 / most)), rowGap = rows.length > 10 ? 74 : 96;
  const width = Math.max(360, most * gap + 40), height = rows.length * rowGap + 16;
  const at = new Map();
  rows.forEach((row, i) => {
    const inRow = byRow.get(row).sort((a, b) => head(a) - head(b));
    inRow.forEach((label, j) => at.set(label, [(width - inRow.length * gap) / 2 + gap * (j + 0.5), height - 8 - rowGap * (i + 0.5)]));
  });
  const both = signsDiffer(edges);
  const strongest = Math.max(1e-9, ...drawn.map((e) => Math.abs(e.value ?? 0)));
  const lines = drawn.map((e) => {
    const [x1, y1] = at.get(e.sender), [x2, y2] = at.get(e.to);
    const bend = (y1 - y2) * 0.45, side = { q: -12, k: 0, v: 12 }[e.slot] ?? 0;
    const d = `M${x1} ${y1 - 14}C${x1} ${y1 - 14 - bend} ${x2 + side} ${y2 + 14 + bend} ${x2 + side} ${y2 + 14}`;
    const size = e.value === null ? 1.8 : 1 + (5 * Math.abs(e.value)) / strongest;
    return titled(svg("path", { d, class: `edge kind-${SLOTS[e.slot] ?? "other"}`, "stroke-width": size.toFixed(2), "stroke-dasharray": both && e.value > 0 ? "5 4" : null }),
      `${joins(e)}${e.value === null ? "" : `: ${compact(e.value, true)}`}`);
  });
  const nodes = labels.map((label) => {
    const [x, y] = at.get(label), half = Math.max(26, 4 * label.length + 6);
    return svg("g", { class: "node" }, svg("rect", { x: x - half, y: y - 14, width: 2 * half, height: 28, rx: 8 }),
      svg("text", { x, y: y + 4.5, class: "middle" }, spokenLabel(label)));
  });
  return picture(width, height, words, lines, nodes);
}

const INPUTS = [["Q", spoken("into a query")], ["K", spoken("into a key")], ["V", spoken("into a value")], ["other", spoken("into an MLP or the logits")]];
const FIRST_EDGES = 24, MOST_EDGES = 200;

function circuitGraph(edges) {
  if (!edges.length) return el("p", {}, spoken("There is no edge in it."));
  const valued = edges.some((e) => e.value !== null);
  const ordered = [...edges].sort((a, b) => Math.abs(b.value ?? 0) - Math.abs(a.value ?? 0)).slice(0, MOST_EDGES);
  const words = (n) => spoken("The {n} strongest edges of {all}: parts of the model by layer, joined where a later one reads an earlier one", { n, all: edges.length });
  const first = valued ? Math.min(FIRST_EDGES, ordered.length) : ordered.length;
  const graph = room(spoken("circuit graph"), circuitPicture(ordered.slice(0, first), words(first)));
  const changed = (n) => graph.replaceChildren(circuitPicture(ordered.slice(0, n), words(n)));
  const rows = ordered.slice(0, 40).map((e) => ({ name: el("span", { class: "mono" }, joins(e)), value: e.value ?? 0, cells: [compact(e.value, true)] }));
  return el("div", { class: "stack" },
    ordered.length > 1 ? el("div", { class: "choices" }, slider(spoken("edges drawn"), { low: 1, high: ordered.length, step: 1, value: first, said: String, changed })) : null,
    el("p", { class: "key" }, INPUTS.map(([kind, meaning]) => el("span", {}, el("span", { class: `swatch kind-${kind}` }), meaning)),
      signsDiffer(ordered) ? el("span", {}, spoken("dashed: a positive number")) : null),
    graph,
    valued ? el("details", {}, el("summary", {}, spoken("The {n} strongest edges in numbers", { n: rows.length })),
      room(spoken("edges in numbers"), bars({ heads: [spoken("edge"), spoken("number")], rows, isSigned: true })))
      : el("details", {}, el("summary", {}, spoken("All {n} edges", { n: edges.length })), el("ul", { class: "edges mono" }, edges.map((e) => el("li", {}, joins(e))))));
}
