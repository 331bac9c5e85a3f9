// Results that have a picture of their own besides the maps and bars of their numbers.

// ---- the lens

const LENS_TENSORS = ["top", "top_probability", "answers", "probability", "rank", "entropy_bits", "kl_bits"];

// what the model answers at a place; documents were once without it
const LENS_ANSWERS = { next_token: spoken("Next token"), token: spoken("The token there"), text_class: spoken("Class of the text"), token_class: spoken("Class of this token") };

function lensView(result) {
  if (!result.top) return null;
  const rows = new Tensor(result.top).size("batch");
  const table = (row) => new LensTable(result.words, Object.fromEntries(LENS_TENSORS.filter((name) => result[name])
    .map((name) => [name, new Tensor(result[name]).pick("batch", row)]))).node;
  const shown = el("div", {}, table(0));
  const which = rows > 1 ? choice("text", Array.from({ length: rows }, (_, i) => i), null, (i) => shown.replaceChildren(table(i))) : null;
  const answer = el("strong", {}, LENS_ANSWERS[result.logits_of ?? "next_token"]);
  return el("div", { class: "stack" }, el("p", { class: "gloss" }, spoken("Likeliest at each place: {answer}", { answer })), which ? el("div", { class: "choices" }, which) : null, shown);
}

// ---- contributions of components, by layer

// a tensor over components as one over layers and parts of a layer
function byLayer(tensor, components) {
  const inBlocks = components.filter((c) => c.layer !== null);
  const layers = [...new Set(inBlocks.map((c) => c.layer))].sort((a, b) => a - b);
  const part = (c) => (c.kind === "head" ? `H${c.head}` : c.kind === "cross_head" ? `X${c.head}` : c.kind === "mlp" ? "MLP" : c.kind.replaceAll("_", " "));
  const order = (name) => (/^[HX]\d/.test(name) ? Number(name.slice(1)) + (name[0] === "X" ? 1e3 : 0) : 1e6);
  const parts = [...new Set(inBlocks.map(part))].sort((a, b) => order(a) - order(b));
  const n = components.length, cells = layers.length * parts.length, rows = tensor.values.length / n;
  const values = new Float32Array(rows * cells).fill(NaN);
  components.forEach((c, i) => {
    if (c.layer === null) return;
    const cell = layers.indexOf(c.layer) * parts.length + parts.indexOf(part(c));
    for (let r = 0; r < rows; r++) values[r * cells + cell] = (Number.isNaN(values[r * cells + cell]) ? 0 : values[r * cells + cell]) + tensor.values[r * n + i];
  });
  const axes = tensor.axes.slice(0, -1);
  return new Tensor({ axes: [...axes, "layer", "part of it"], coords: { ...tensor.coords, layer: layers, "part of it": parts }, rows: tensor.rows,
    shape: [...tensor.shape.slice(0, -1), layers.length, parts.length], values, signed: tensor.signed });
}

function componentsView(result) {
  const tensor = new Tensor(result.contributions);
  if (tensor.axes.at(-1) !== "component" || !result.components.some((c) => c.layer !== null)) return null;
  return tensorFigure(byLayer(tensor, result.components), spoken("By layer"), { words: spoken("The same contributions, heads and MLPs laid out by layer; what lies outside the blocks is left out.") });
}

// ---- circuits

const unpackedEdges = (entry) => {
  const tensor = new Tensor(entry);
  const [receivers, senders] = [tensor.labels("receiver"), tensor.labels("sender")];
  return receivers.flatMap((receiver, r) => senders.map((sender, s) => ({ sender, receiver, value: tensor.at(r, s) })))
    .filter((e) => e.value !== null && e.value !== 0);
};

// what cutting an edge changed, where it was tried
function circuitEdges(result) {
  const tried = new Map((result.log ?? []).map((p) => [p.edge.join(" → "), p.change]));
  return result.edges.map(([sender, receiver]) => ({ sender, receiver, value: tried.get(`${sender} → ${receiver}`) ?? null }));
}

// ---- what heads join: lists of tokens with a number, head by head

// columns: [ids, names] of the tokens of an entry, in the order they are read in
function rankedTokens(result, name, columns) {
  const values = new Tensor(result[name]);
  const ids = columns.map(([field, words]) => [new Tensor(result[field]), result[words]]);
  const row = (head, rank) => ({
    name: ids.flatMap(([tensor, words], i) => [i ? (i === ids.length - 1 ? " → " : " … ") : "", chip(words[tensor.at(head, rank)] ?? String(tensor.at(head, rank)))]),
    value: values.at(head, rank) ?? 0, cells: [compact(values.at(head, rank), true)],
  });
  const list = (head) => {
    const ranks = Array.from({ length: values.shape.at(-1) }, (_, rank) => rank).filter((rank) => values.at(head, rank) !== null);
    return room(name, bars({ heads: [spoken("tokens"), factName(name)], rows: ranks.slice(0, MOST_BARS).map((rank) => row(head, rank)), isSigned: true }));
  };
  const shown = el("div", {}, list(0));
  return el("div", { class: "stack" }, el("h3", {}, sentence(name)),
    el("div", { class: "choices" }, choice("head", values.labels("head"), null, (head) => shown.replaceChildren(list(head)))), shown);
}

const VIEWS = {
  AttentionCosts: costsView,
  TokenPairs: (result) => rankedTokens(result, "values", [["rows", "names"], ["columns", result.circuit === "OV" ? "output_names" : "names"]]),
  SkipTrigrams: (result) => rankedTokens(result, "contribution", [["sources", "names"], ["destinations", "names"], ["outputs", "output_names"]]),
  TokenCircuits: (result) => el("div", { class: "stack" }, [["raised", "output_names"], ["lowered", "output_names"], ["sought", "names"]]
    .filter(([name]) => new Tensor(result[name]).values.length).map(([name, words]) => rankedTokens(result, name, [[`${name}_tokens`, words]]))),
  LensGrid: lensView,
  FlowRoutes: routesGraph,
  DirectLogitAttribution: componentsView,
  EdgeAttribution: (result) => circuitGraph(unpackedEdges(result.effect)),
  Acdc: (result) => circuitGraph(circuitEdges(result)),
};
