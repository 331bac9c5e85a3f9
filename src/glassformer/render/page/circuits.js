// The sections of the circuits page, in reading order, each from one part of the report's document.

const data = JSON.parse(document.getElementById("report").textContent);
const headByLabel = new Map(data.heads.map((head) => [head.label, head]));
const score = (x, digits = 2) => (x === null || x === undefined ? "–" : plain(x, digits));

const ROLES = {
  previous_token: [spoken("previous token"), spoken("looks at the token just before")],
  prefix_matching: [spoken("prefix matching"), spoken("looks at what followed an earlier copy of the present token")],
  duplicate_token: [spoken("duplicate token"), spoken("looks at earlier copies of the present token")],
  first_token: [spoken("first token"), spoken("rests on the first token")],
  current_token: [spoken("current token"), spoken("looks at the present token itself")],
};

const WORDS = [
  [spoken("head, L1H6"), spoken("One attention head: layer 1, head 6, both counted from 0. L1X6 is a head of cross-attention.")],
  [spoken("QK circuit"), spoken("Where a head looks: the score it gives each key token for each query token.")],
  [spoken("OV circuit"), spoken("What a head moves: the logits it raises when it attends to a token.")],
  [spoken("composition"), spoken("A later head reading, in its query, key or value, what an earlier head wrote.")],
  [spoken("ablation"), spoken("The head’s output is set to zero; everything after it reacts.")],
  [spoken("in-context-learning score"), spoken("Loss late in a text less loss early in it.")],
  [spoken("effective dimensions"), spoken("Participation ratio of the singular values: how many directions share the work.")],
  [spoken("nat"), spoken("Unit of loss: the natural logarithm of how many equally likely tokens there might have been.")],
];
const GLOSSARY = new Glossary(WORDS);
const told = (id, title, gloss, ...content) => section(id, title, GLOSSARY.linked(gloss), ...content);

// as on the terminal
const SHORT = { previous_token: spoken("prev"), prefix_matching: spoken("prefix"), duplicate_token: spoken("dup"), first_token: spoken("first"), current_token: spoken("curr") };

const roleColumn = (role, words) => [SHORT[role], spoken("Seen on repeated random tokens: {words}", { words })];
const COLUMNS = new Glossary([], [
  roleColumn("previous_token", spoken("the share of attention on the token just before.")),
  roleColumn("prefix_matching", spoken("the share of attention on what followed earlier copies of the present token (prefix matching).")),
  roleColumn("duplicate_token", spoken("the share of attention on earlier copies of the present token.")),
  roleColumn("first_token", spoken("the share of attention on the first token.")),
  roleColumn("current_token", spoken("the share of attention on the present token itself.")),
  [spoken("copies"), spoken("Seen on repeated random tokens: {words}", { words: spoken("how many times as much the head raises the token it attends to as the average one.") })],
  [spoken("OV"), spoken("By weights, whether the head raises the token it attends to: Σλ / Σ|λ| of the eigenvalues of its token-to-logit circuit, from −1 to 1.")],
  [spoken("behind"), spoken("OV for tokens as they reach the head, behind the layers before it.")],
  [spoken("offset"), spoken("By weights, how many tokens back position alone would send the head.")],
  [spoken("share"), spoken("How much of its attention position alone would send to that offset.")],
  [spoken("loss"), spoken("By ablation: how much the loss on text rises without the head, in nats.")],
  [spoken("ICL"), spoken("By ablation: how much the in-context-learning score, loss late in a text less loss early, rises without the head, in nats: above zero, the head helps to learn from context.")],
  [spoken("reads"), spoken("By weights: how many dimensions of the stream its queries, keys and values share the work of reading.")],
  [spoken("writes"), spoken("By weights: how many dimensions of the stream it writes to, as effective dimensions.")],
  [spoken("chance"), spoken("What random matrices of the same shapes score.")],
  [spoken("spreads above"), spoken("How far the score is above chance, in standard deviations of random matrices.")],
  [spoken("role"), spoken("By weights: how much of the earlier head’s attention position alone sends one token back; of kind Q, whether it looks at copies, as an eigenvalue ratio.")],
  [spoken("match"), spoken("By weights: whether the later head looks for what the earlier one brings, as an eigenvalue ratio from −1 to 1.")],
  [spoken("copy"), spoken("By weights: whether the later head raises what it finds, as an eigenvalue ratio from −1 to 1.")],
  [spoken("comp."), spoken("The composition score of the two heads.")],
  [spoken("role seen"), spoken("How much of the earlier head’s attention plays that role on repeated random tokens.")],
  [spoken("prefix seen"), spoken("How much of the later head’s attention went to what followed earlier copies, on repeated random tokens.")],
]);

const cell = (text, attributes = {}) => el("td", { class: "number", ...attributes }, text);
// `texts`: how many columns, from the left, hold no numbers
const heading = (names, texts = 1) => el("thead", {}, el("tr", {}, names.map((name, i) => el("th", { scope: "col", class: i < texts ? "" : "number" }, COLUMNS.term(name)))));

function shadedCell(value, limit, isSigned) {
  if (value === null || value === undefined) return el("td", { class: "none" }, "–");
  return shaded(el("td", {}, plain(value)), value, limit, isSigned);
}

// ---- the top

function header() {
  const m = data.model;
  const rows = [
    [spoken("parameters"), count(m.parameters)], [spoken("layers"), m.n_layers], [spoken("heads"), m.n_heads], [spoken("width"), m.d_model],
    [spoken("vocabulary"), vocabularies(m)], [spoken("context"), contextOf(m)], [spoken("attention"), m.mechanisms.join(spoken(", "))],
  ];
  return el("header", { class: "top" },
    el("p", { class: "brand" }, el("strong", {}, "glassformer"), spoken(" · circuits, from weights and from activations")),
    el("h1", {}, spoken("The circuits of {model}", { model: m.name })),
    el("dl", { class: "facts" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))),
    data.findings.length ? el("ul", { class: "findings card" }, data.findings.map((line) => el("li", {}, spoken(line)))) : null,
    notesCard(data.notes), ofCard(data.provenance));
}

// ---- heads

function headTable() {
  const roles = Object.keys(ROLES).filter((role) => data.heads.some((h) => h.roles[role] !== undefined));
  const columns = [spoken("head"), ...roles.map((r) => SHORT[r]), spoken("copies"), spoken("OV"), spoken("behind"), spoken("offset"), spoken("share"), spoken("loss"), spoken("ICL"), spoken("reads"), spoken("writes")];
  const rows = data.heads.map((h) => el("tr", { class: h.verdict.length ? "current" : "" },
    el("th", { scope: "row", class: "mono" }, h.label),
    roles.map((r) => shadedCell(h.roles[r], 1, data.heads.some((other) => other.reading === "signed"))),
    cell(h.copying_measured === null ? "–" : `${plain(h.copying_measured, 1)}×`), shadedCell(h.copying, 1, true), shadedCell(h.copying_through, 1, true),
    cell(h.offset === null ? "–" : String(h.offset)), cell(score(h.offset_score)),
    cell(h.ablation_loss === null ? "–" : signed(h.ablation_loss, 3)), cell(h.ablation_icl === null ? "–" : signed(h.ablation_icl, 3)),
    cell(score(h.read_dimensions, 1)), cell(score(h.write_dimensions, 1))));
  return told("heads", spoken("Heads by role"),
    spoken("One row for each head, with evidence of three kinds: where its attention goes on repeated random tokens and what it raises there, what its weights say, and what the model loses without it. Point at the name of a column for what it holds.")
      + (data.heads.some((h) => h.reading === "signed") ? spoken(" Where rows of a pattern do not sum to one, a share of attention is signed mass over absolute mass.") : ""),
    scroller(spoken("table of heads"), el("table", { class: "grid heads-table" }, heading(columns), el("tbody", {}, rows))),
    el("ul", { class: "findings later" }, data.heads.filter((h) => h.verdict.length || h.doubts.length).map((h) =>
      el("li", {}, el("span", { class: "mono" }, h.label), spoken(": "), [...h.verdict, ...h.doubts].map((words) => spoken(words)).join(spoken("; "))))));
}

// ---- composition

const DRAWN = 14; // more edges than this hide each other

function composition() {
  const layers = new Map(); // a row for every layer of attention, in the order the model runs them
  for (const h of data.heads) {
    const row = `${h.stack} ${h.layer} ${h.part}`;
    if (!layers.has(row)) layers.set(row, { heads: [] });
    layers.get(row).heads.push({ label: h.label, role: h.verdict.length ? "named" : "" });
  }
  const rows = data.edges.map((e) => ({
    name: el("span", { class: "mono" }, `${e.earlier} → ${e.later} `, el("span", { class: `kind-${e.kind}` }, e.kind)),
    value: e.excess, cells: [plain(e.score, 3), plain(e.baseline, 3), plain(e.excess / e.spread, 1)],
  }));
  return told("composition", spoken("What heads read of earlier heads"),
    spoken("How much of a later head’s query, key or value circuit lies in what an earlier head writes: the norm of the product over the product of norms. Shown are the strongest edges above chance, which is what random matrices score. Weights alone: an edge says what could be used, not what is."),
    headGraph([...layers.values()], data.edges.slice(0, DRAWN), spoken("The {n} strongest edges: heads by layer, joined where a later one reads what an earlier one writes", { n: Math.min(DRAWN, data.edges.length) })),
    el("details", { open: true }, el("summary", {}, spoken("Strongest edges")),
      scroller(spoken("strongest edges"), bars({ heads: [spoken("edge"), spoken("score"), spoken("chance"), spoken("spreads above")].map((name) => COLUMNS.term(name)), rows }))));
}

function induction() {
  const rows = data.induction.map((c) => el("tr", {},
    el("th", { scope: "row", class: "mono" }, `${c.previous} → ${c.induction} `, el("span", { class: `kind-${c.kind}` }, c.kind)),
    cell(score(c.role)), cell(score(c.match)), cell(score(c.copy)), cell(score(c.composition, 3)), cell(score(c.role_seen)), cell(score(c.prefix_matching))));
  return told("induction", spoken("Wired for induction"),
    spoken("From weights alone: an earlier head that looks one token back by position (K; or Q, one that looks at copies), and a later head whose query-key circuit matches what the earlier one brings and which copies what it finds. Match and copy are eigenvalue ratios from −1 to 1; an induction circuit has both near 1. What the two were seen to do stands beside."),
    scroller(spoken("induction circuits"), el("table", { class: "data" },
      heading([spoken("circuit"), spoken("role"), spoken("match"), spoken("copy"), spoken("comp."), spoken("role seen"), spoken("prefix seen")]), el("tbody", {}, rows))));
}

// ---- spectra and tables

function spectra() {
  const largest = Math.max(...data.eigenvalues.flatMap((e) => e.values.map(([re, im]) => Math.hypot(re, im))));
  return told("eigenvalues", spoken("Copying, as eigenvalues"),
    spoken("Each head’s token-to-logit circuit (OV) as eigenvalues in the complex plane; the radius is logarithmic over three decades. Points on the right raise the token itself, points on the left lower it. Non-normal matrices can mislead: the measured columns above decide."),
    el("div", { class: "planes" }, data.eigenvalues.map((e) => planeChart(e.label, e.values, largest, score(e.ratio)))));
}

function pairTable(head, caption, names, rows) {
  return scroller(`${head}, ${spoken(caption)}`, el("table", { class: "data" }, el("caption", {}, spoken(caption)), heading(names, 2),
    el("tbody", {}, rows.map((r) => el("tr", {}, el("th", { scope: "row" }, chip(r.first)), el("td", {}, chip(r.second)), cell(signed(r.value)))))));
}

function pairs() {
  return told("pairs", spoken("What heads look for, and what they then raise"),
    spoken("Largest entries of the full circuits over the vocabulary, rows centred: OV, source token to output logit; QK, query token to key token, in units of the score."),
    data.pairs.map((p, i) => el("details", { open: i < 2 }, el("summary", {}, el("span", { class: "mono" }, p.label)),
      el("div", { class: "columns" },
        p.ov.length ? pairTable(p.label, p.ov_caption, [spoken("source token"), spoken("raises"), "logits"], p.ov) : el("p", { class: "soft" }, spoken(p.ov_caption)),
        p.qk.length ? pairTable(p.label, p.qk_caption, [spoken("query"), spoken("looks for"), spoken("score")], p.qk) : el("p", { class: "soft" }, spoken(p.qk_caption))))));
}

function trigrams() {
  const rows = data.trigrams.map((t) => el("tr", {},
    el("th", { scope: "row", class: "mono" }, t.head), el("td", {}, chip(t.source)), el("td", {}, "… ", chip(t.destination)), el("td", {}, "→ ", chip(t.out)),
    cell(percent(t.attention)), cell(signed(t.effect)), cell(signed(t.score, 3))));
  return told("trigrams", spoken("Skip-trigrams"),
    spoken("Rules “source … destination → out” that single heads of the first layer implement: attention on the source against a reference context, times the logit it raises. One head cannot choose: every out of a source goes with every destination that looks for it."),
    scroller(spoken("table of skip-trigrams"), el("table", { class: "data" }, heading([spoken("head"), spoken("source token"), spoken("destination"), spoken("out"), spoken("attention"), "logit", spoken("score")], 4), el("tbody", {}, rows))));
}

// ---- terms, losses, training

function importance() {
  const rows = data.importance.map((o) => ({
    name: spoken(o.name), value: Math.max(0, o.marginal), cells: [plain(o.loss, 3), signed(o.marginal, 3), count(o.terms)],
  }));
  return told("importance", spoken("How much each order of paths matters"),
    spoken("Loss in nats with only paths through at most so many heads, patterns frozen as in the real run; each row’s gain over the row before."),
    scroller(spoken("table of term importance"), bars({ heads: [spoken("paths through"), spoken("loss"), spoken("gain"), spoken("paths")], rows })));
}

function losses() {
  return told("losses", spoken("Loss by position"),
    spoken("Mean loss at each place of the text, in nats: how much a longer context helps. The in-context-learning score is the late mean less the early one; negative is good."),
    el("div", { class: "charts" }, data.losses.map((l) => curveChart({
      series: [{ name: "", x: l.positions, y: l.loss }], x: spoken("position"), y: spoken("{name}: in-context-learning score {icl} nats (95 %: {low} to {high})", { name: spoken(l.name), icl: signed(l.icl, 3), low: signed(l.low, 3), high: signed(l.high, 3) }), words: spoken("loss by position on {name}", { name: spoken(l.name) }) }))));
}

function phase() {
  const p = data.training;
  const marks = p.change ? [p.change] : [];
  return told("phase", spoken("While it was trained"),
    p.change ? spoken("The steepest fall of the in-context-learning score lies at {n} tokens (dashed).", { n: count(p.change) }) : spoken("No phase change was located."),
    el("div", { class: "charts" }, p.charts.map((c) => curveChart({ ...c, series: c.series.map((s) => ({ ...s, name: spoken(s.name) })), x: spoken("tokens seen"), y: spoken(c.y), marks, words: spoken(c.y) }))));
}

function unavailable() {
  return told("unavailable", spoken("What could not be said"),
    spoken("Analyses that are not defined for this model, or that weights and one run cannot answer."),
    el("ul", { class: "findings" }, data.unavailable.map((u) => el("li", {}, el("strong", {}, u.analysis), spoken(": "), u.why))));
}

const words = () => section("words", spoken("Words on this page"), spoken("One line for each term, and for each column of a table."),
  GLOSSARY.list(), el("h3", { class: "later" }, spoken("Columns")), COLUMNS.list());

frame(header(), [
  [spoken("Heads"), headTable()],
  data.edges.length ? [spoken("Composition"), composition()] : null,
  data.induction.length ? [spoken("Induction"), induction()] : null,
  data.eigenvalues.length ? [spoken("Eigenvalues"), spectra()] : null,
  data.pairs.length ? [spoken("Token pairs"), pairs()] : null,
  data.trigrams.length ? [spoken("Skip-trigrams"), trigrams()] : null,
  data.importance.length ? [spoken("Term importance"), importance()] : null,
  data.losses.length ? [spoken("Loss by position"), losses()] : null,
  data.training ? [spoken("Training"), phase()] : null,
  data.unavailable.length ? [spoken("Not available"), unavailable()] : null,
  [spoken("Words"), words()],
], spoken("Drawn from the weights and runs of {model}.", { model: data.model.name }));
