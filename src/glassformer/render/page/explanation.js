// The sections of the page, in reading order, each from one part of the explanation's document.

const data = JSON.parse(document.getElementById("explanation").textContent);
const TRAINED = data.model.trained_length ?? null;
const textsIn = (list) => marking((data[list] ?? []).map((t) => t.text), (data[list] ?? []).filter((t) => t.unknown || t.character));
const target = data.attribution.target.replace("difference", "logit difference");
const patterns = data.patterns.map((entry) => new Pattern(entry));
const headByLabel = new Map(data.heads.map((head) => [head.label, head]));
const textsOf = (pattern) => ({ query: textsIn(pattern.query), key: textsIn(pattern.key) });

const ROLES = {
  previous_token: ["previous token", "Looks at the token just before: raw material for induction and for joining pieces of words."],
  induction: ["induction", "Finds the earlier place where the present token stood and looks at what came next, to say it again."],
  duplicate_token: ["duplicate token", "Looks at earlier copies of the present token."],
  first_token: ["first token", "Rests on the first token, as heads do when they find nothing to move."],
  current_token: ["current token", "Looks at the present token itself."],
};
const KINDS = {
  token: "token embedding", position: "position embedding", head: "attention heads", cross_head: "cross-attention heads",
  attn_bias: "attention biases", mlp: "MLPs", norm_bias: "norm biases", final_bias: "final norm bias",
  readout_bias: "readout biases", unembed_bias: "unembedding bias", part: "other parts",
};
const STACKS = {
  attn: { "": "", encoder: "Encoder: the source looks at itself", decoder: "Decoder: the target looks at itself" },
  cross: "Cross-attention: the target looks at the source",
};

const roleName = (role) => (ROLES[role] ?? [role.replaceAll("_", " ")])[0];
const knownRoles = (head) => head.roles.filter((r) => r.score !== null).sort((a, b) => b.score - a.score);

// ---- what is explained

// an encoder's logits are of the token at a position, all others' of the one that follows
const THERE = data.model.kind === "encoder";

function title() {
  const answer = chip(data.answer.text);
  if (data.against) return [answer, " or ", chip(data.against.text), `: how ${data.model.name} decides`];
  if (data.answer.rank === 1) return [`Why ${data.model.name} says `, answer, THERE ? " there" : " next"];
  return [`What ${data.model.name} thinks of `, answer, THERE ? " as the token there" : " as the next token"];
}

function facts() {
  const m = data.model;
  const rows = [
    ["kind", m.kind.replaceAll("_", "-")], ["parameters", count(m.parameters)], ["layers", m.n_layers], ["heads", m.n_heads],
    ["width", m.d_model], ["vocabulary", vocabularies(m)], ["context", contextOf(m)], ["attention", (m.mechanisms ?? []).join(", ")],
  ];
  return el("dl", { class: "facts" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
}

function outcome(o) {
  return [chip(o.text), " ", el("strong", { class: "number" }, percent(o.probability)), ` (logit ${plain(o.logit)}, rank ${count(o.rank)})`];
}

function header() {
  const tokens = textsIn("tokens");
  const source = data.source_tokens && el("div", { class: "card" }, el("h2", {}, "The encoder reads"), strip(textsIn("source_tokens")));
  const bits = data.next_token.entropy_bits;
  return el("header", { class: "top" },
    el("p", { class: "brand" }, el("strong", {}, "glassformer"), " · one forward pass, taken apart"),
    el("h1", {}, title()),
    facts(),
    el("div", { class: "columns" }, source,
      el("div", { class: "card" }, el("h2", {}, data.source_tokens ? "The decoder has so far" : "The text, as tokens"), strip(tokens, { here: data.position, ahead: data.source_tokens !== null && data.source_tokens !== undefined }))),
    el("p", { class: "gloss" }, `Explained: what ${THERE ? "is" : "follows"} token ${data.position} `, chip(tokens[data.position]),
      " (outlined). The model gives ", outcome(data.answer), data.against ? [" and ", outcome(data.against)] : [],
      `. Its whole distribution holds ${bits.toFixed(2)} bits of uncertainty.`),
    notesCard(data.notes), ofCard(data.provenance));
}

// ---- the pipeline

const shapeText = (shape) => Object.entries(shape).map(([axis, size]) => `${axis} ${count(size)}`).join(" × ");
const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);
const quantity = (x) => (Number.isInteger(x) ? count(x) : plain(x, Math.abs(x) < 10 ? 3 : 1));

function stageCard(stage) {
  const numbers = Object.entries(stage.numbers);
  return el("li", {}, el("h3", {}, capital(stage.name)), el("span", { class: "shape" }, shapeText(stage.shape)),
    numbers.length ? el("p", {}, numbers.map(([name, x], i) => [i ? ", " : "", `${name} `, number(quantity(x))])) : null,
    stage.note ? el("p", {}, stage.note) : null);
}

// blocks of one kind share a card: a table with a row each
function stagesCard(stages) {
  const names = [...new Set(stages.flatMap((s) => Object.keys(s.numbers)))];
  const peaks = names.map((name) => Math.max(...stages.map((s) => Math.abs(s.numbers[name] ?? 0))));
  const cell = (stage, name, i) => {
    const x = stage.numbers[name];
    if (x === undefined) return el("td", { class: "number" }, "");
    const bar = el("span", { class: "bar", style: `width:${(100 * Math.abs(x)) / (peaks[i] || 1)}%` });
    return el("td", {}, number(quantity(x)), bar);
  };
  const table = el("table", { class: "data stages" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "stage"), names.map((n) => el("th", { scope: "col" }, n)))),
    el("tbody", {}, stages.map((s) => el("tr", {}, el("th", { scope: "row" }, s.name), names.map((n, i) => cell(s, n, i))))));
  const heading = stages[0].stage === "encoder" ? "Encoder blocks" : data.source_tokens ? "Decoder blocks" : "Blocks";
  const notes = [...new Set(stages.map((s) => s.note).filter(Boolean))];
  return el("li", { class: "wide" }, el("h3", {}, heading, ` × ${stages.length}`), el("span", { class: "shape" }, shapeText(stages[0].shape)),
    scroller(`${heading} in numbers`, table), notes.length <= 2 ? notes.map((note) => el("p", {}, note)) : null);
}

function flow() {
  const groups = [];
  for (const stage of data.pipeline) {
    const block = stage.stage === "block" || stage.stage === "encoder";
    if (block && groups.at(-1)?.[0].stage === stage.stage) groups.at(-1).push(stage);
    else groups.push([stage]);
  }
  return el("ol", { class: "flow" }, groups.map((group) => (group.length > 1 ? stagesCard(group) : stageCard(group[0]))));
}

function tokenTable() {
  const table = (caption, list) => el("div", { class: "scroll scroll-both", tabindex: 0, role: "region", "aria-label": caption },
    el("table", { class: "data" }, el("caption", {}, caption),
      el("thead", {}, el("tr", {}, ["index", "token", "id"].map((h) => el("th", { scope: "col" }, h)))),
      el("tbody", {}, list.map((t) => el("tr", {}, el("td", { class: "number" }, t.index), el("th", { scope: "row" }, chip(t.text), t.unknown ? " unknown" : "", t.character ? [` byte ${t.part + 1} of `, chip(t.character)] : ""),
        el("td", { class: "number" }, t.id))))));
  return el("details", {}, el("summary", {}, "Every token and its id"),
    el("div", { class: "columns" }, data.source_tokens ? table("source tokens", data.source_tokens) : null, table("tokens", data.tokens)));
}

function samplingStep(step, i) {
  const { draw, steps } = data.sampling;
  const last = i === steps.length - 1;
  const rows = step.candidates.map((c) => ({
    name: chip(c.text), value: c.probability, cells: [percent(c.probability)],
    className: c.probability === 0 ? "out" : "", bar: c.probability === 0 ? "hollow" : last && draw && c.id === draw.id ? "drawn" : "",
  }));
  const setting = step.setting === null || step.setting === undefined ? "" : ` = ${step.setting}`;
  return el("li", {}, el("h3", {}, `${capital(step.name.replaceAll("_", "-"))}${setting}`),
    el("p", {}, "still possible ", number(count(step.kept)), ", entropy ", number(`${step.entropy_bits.toFixed(2)} bits`)),
    scroller(`${step.name} candidates`, bars({ heads: ["token", "probability"], rows, limit: 1 })));
}

function sampling() {
  const { settings, steps, draw } = data.sampling;
  const on = Object.entries(settings).filter(([, v]) => v !== null).map(([k, v]) => `${k.replaceAll("_", "-")} ${v}`);
  return [
    el("h3", { class: "later" }, "Sampling, step by step"),
    el("p", { class: "gloss" }, "Each step reshapes or cuts the distribution left by the one before; bars show probability, from 0 to 1. ",
      on.length ? `Settings: ${on.join(", ")}.` : ""),
    el("ol", { class: "flow steps" }, steps.map(samplingStep),
      draw ? el("li", {}, el("h3", {}, "Draw"), el("p", { class: "drawn" }, chip(draw.text), " drawn at ", number(percent(draw.probability)), settings.seed === null || settings.seed === undefined ? "" : ` with seed ${settings.seed}`, ".")) : null),
  ];
}

const pipeline = () => section("pipeline", `From text to ${THERE ? "the token there" : "next token"}, in numbers`,
  "What the model computes, in order, with the shape of what each stage hands on. Norms are lengths of the vector at the explained position.",
  flow(), tokenTable(), sampling());

// ---- translation

function alignment() {
  const cross = patterns.filter((p) => p.part === "cross" && !p.signed);
  const layer = Math.max(...cross.map((p) => p.layer));
  const last = cross.filter((p) => p.layer === layer);
  if (!last.length) return null;
  return (q) => {
    const mean = last.map((p) => p.row(q)).reduce((sum, row) => sum.map((x, k) => x + row[k])).map((x) => x / last.length);
    const k = mean.indexOf(Math.max(...mean));
    return [chip(textsIn("source_tokens")[k]), " ", number(percent(mean[k]))];
  };
}

function translation() {
  const { text, generated, steps } = data.translation;
  const source = alignment();
  const heads = ["step", "decoder reads", "decoder says", "probability", ...(source ? ["looks most at"] : [])];
  const rows = steps.map((s) => el("tr", { class: s.index === data.position ? "current" : "" },
    el("td", { class: "number" }, s.index), el("td", {}, chip(s.input)), el("th", { scope: "row" }, chip(s.output)),
    el("td", {}, number(percent(s.probability)), el("span", { class: "bar", style: `width:${100 * s.probability}%` })),
    source ? el("td", {}, source(s.index)) : null));
  return section("translation", "The translation, step by step",
    "The decoder reads what it has so far and says the next token, which becomes its next input. " +
      (source ? "The last column averages the heads of the last cross-attention layer." : ""),
    el("p", { class: "result-line" }, el("span", { lang: "und" }, data.text ?? ""), " → ", el("strong", {}, text), el("span", { class: "soft" }, generated ? " (generated)" : " (given)")),
    el("div", { class: "card" }, scroller("Translation steps", el("table", { class: "data stages" },
      el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)))), el("tbody", {}, rows)))));
}

// ---- next token and lens

function nextToken() {
  const picked = [data.answer, data.against].filter(Boolean);
  const listed = new Set(data.next_token.candidates.map((c) => c.id));
  const more = picked.filter((o) => !listed.has(o.id)).sort((a, b) => b.probability - a.probability);
  const rows = [...data.next_token.candidates, ...more].map((c, i) => ({
    name: chip(c.text), value: c.probability, cells: [count(c.rank ?? i + 1), percent(c.probability), plain(c.logit)],
    className: picked.some((o) => o.id === c.id) ? "picked" : "",
  }));
  return section("next", THERE ? "What may stand there" : "What may come next",
    "The likeliest tokens; probability is the softmax of the logits. The token explained is outlined.",
    el("div", { class: "card" }, bars({ heads: ["token", "rank", "probability", "logit"], rows, limit: 1 })));
}

function lensRow(row, width) {
  const cells = row.candidates.slice(0, width).map((c) => {
    const cell = el("td", { class: c.id === data.answer.id ? "lens answer" : "lens" }, token(c.text), el("span", { class: "p" }, percent(c.probability)));
    return shaded(cell, c.probability, 1, false);
  });
  const rated = (o) => (o ? [el("td", { class: "aside number" }, percent(o.probability)), el("td", { class: "aside number" }, count(o.rank))] : []);
  return el("tr", {}, el("th", { scope: "row" }, row.label), cells, rated(row.answer), rated(row.against),
    el("td", { class: "aside number" }, row.entropy_bits.toFixed(2)), el("td", { class: "aside number" }, plain(row.kl_bits)));
}

function lens() {
  const width = Math.min(5, ...data.lens.map((row) => row.candidates.length));
  const rated = (o) => (o ? [[chip(o.text), " prob."], "rank"] : []);
  const heads = [..."12345".slice(0, width)].map((n) => `top ${n}`);
  const all = ["after", ...heads, ...rated(data.lens[0].answer && data.answer), ...rated(data.lens[0].against && data.against), "entropy, bits", "KL, bits"];
  const settled = data.lens.findIndex((_, i) => data.lens.slice(i).every((row) => row.answer && row.answer.rank === 1));
  return section("lens", "Logit lens: the prediction, layer by layer",
    "What the model would say if it stopped here: the stream after each layer, read through the final norm and the unembedding. " +
      "KL is the distance, in bits, of the final distribution from the row’s.",
    legend(1, false, "probability; colour follows its square root, so small ones show"),
    scroller("Logit lens", el("table", { class: "grid" },
      el("thead", {}, el("tr", {}, all.map((h) => el("th", { scope: "col" }, h)))), el("tbody", {}, data.lens.map((row) => lensRow(row, width))))),
    settled >= 0 ? el("p", { class: "gloss" }, "The token explained ", chip(data.answer.text), ` is first from ${data.lens[settled].label} on.`) : null,
    data.lens_map ? lensMap() : null);
}

function lensMap() {
  const { labels, positions, words, ...found } = data.lens_map;
  const coords = { site: labels, pos: positions.map((i) => `${i}:${data.tokens[i].text}`) };
  const tensor = (values, ...more) => new Tensor({ axes: ["site", "pos", ...more], coords, values });
  const tensors = { top: tensor(found.top, "k"), top_probability: tensor(found.probability, "k"), entropy_bits: tensor(found.entropy_bits), kl_bits: tensor(found.kl_bits) };
  return [el("h3", { class: "later" }, "At every position"),
    el("p", { class: "gloss" }, "The same for each token of the text: what would follow it, if the model stopped after a layer. Choose a cell for its likeliest tokens."),
    el("div", { class: "card" }, new LensTable(words, tensors, positions.indexOf(data.position)).node)];
}

// ---- attribution

function equation() {
  const { components, total } = data.attribution;
  const parts = Object.keys(KINDS).map((kind) => [kind, components.filter((c) => c.kind === kind)]).filter(([, list]) => list.length);
  const sum = (list) => list.reduce((s, c) => s + c.contribution, 0);
  return el("p", { class: "sum" },
    parts.map(([kind, list], i) => [i ? el("span", { class: "soft" }, "+") : null,
      el("span", { class: "part" }, `${KINDS[kind]} `, number(signed(sum(list), 3)))]),
    el("span", { class: "soft" }, "="),
    el("span", { class: "part result" }, `${target} `, number(plain(total, 3))));
}

function layerGrid() {
  const inBlocks = data.attribution.components.filter((c) => c.layer !== null);
  const columns = [];
  const headKinds = [["head", "H"], ["cross_head", "X"]];
  for (const [kind, letter] of headKinds) {
    const n = 1 + Math.max(-1, ...inBlocks.filter((c) => c.kind === kind).map((c) => c.head));
    for (let h = 0; h < n; h++) columns.push([`${letter}${h}`, (c) => c.kind === kind && c.head === h]);
  }
  for (const [kind, name] of [["attn_bias", "attn bias"], ["mlp", "MLP"], ["norm_bias", "norm bias"], ["part", "other"]]) {
    if (inBlocks.some((c) => c.kind === kind)) columns.push([name, (c) => c.kind === kind]);
  }
  const layers = [...new Set(inBlocks.map((c) => c.layer))].sort((a, b) => a - b);
  const limit = Math.max(...inBlocks.map((c) => Math.abs(c.contribution)), 1e-9);
  const cell = (layer, match) => {
    const found = inBlocks.filter((c) => c.layer === layer && match(c));
    if (!found.length) return el("td", { class: "none" }, "–");
    const value = found.reduce((s, c) => s + c.contribution, 0);
    return shaded(el("td", { class: "number" }, signed(value)), value, limit, true);
  };
  return [
    legend(limit, true, `contribution to the ${target}: blue against, orange for`),
    scroller("Contributions by layer", el("table", { class: "grid" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "layer"), columns.map(([name]) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, layers.map((layer) => el("tr", {}, el("th", { scope: "row" }, `layer ${layer}`), columns.map(([, match]) => cell(layer, match))))))),
  ];
}

function contributionBars() {
  const { components, total } = data.attribution;
  const ordered = [...components].sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution));
  const row = (c) => ({ name: c.kind === "token" || c.kind === "position" ? KINDS[c.kind] : c.label, value: c.contribution, cells: [signed(c.contribution, 3)] });
  const rest = ordered.slice(14);
  const rows = ordered.slice(0, 14).map(row);
  if (rest.length) rows.push({ ...row({ label: `${rest.length} others together`, contribution: rest.reduce((s, c) => s + c.contribution, 0) }), className: "out" });
  rows.push({ name: `sum = ${target}`, value: total, cells: [plain(total, 3)], className: "total" });
  return [
    el("div", { class: "card" }, bars({ caption: "largest first; the bars add up to the last one", heads: ["component", "adds"], rows, isSigned: true })),
    rest.length ? el("details", {}, el("summary", {}, `All ${components.length} components`),
      el("div", { class: "card" }, bars({ heads: ["component", "adds"], rows: components.map(row), isSigned: true }))) : null,
  ];
}

function attribution() {
  const asked = data.against ? [chip(data.answer.text), " minus ", chip(data.against.text)] : [chip(data.answer.text)];
  const { sum, total } = data.attribution;
  return section("attribution", "Direct logit attribution: who argued for it",
    ["Every component adds a vector to the residual stream; with the norm scales of this pass held fixed, each adds a share to the ",
      target, " of ", ...asked, `. The ${data.attribution.components.length} shares sum to ${plain(sum, 3)}; the model’s ${target} is ${plain(total, 3)}. `,
      "These are direct effects only: a part can also matter through what later parts read from it."],
    equation(), layerGrid(), contributionBars());
}

// ---- inputs

function inputs() {
  const { values, source_values: source, target: asked } = data.inputs;
  const limit = Math.max(...values.map(Math.abs), ...(source ?? []).map(Math.abs), 1e-9);
  const card = (heading, list, numbers, here) => el("div", { class: "card" }, heading ? el("h3", {}, heading) : null,
    inWords(textsIn(list), numbers, { isSigned: true, rest: false }), tellingStrip(textsIn(list), { weights: numbers, limit, isSigned: true, here }));
  return section("inputs", "What each token’s vector does for it",
    [`Gradient of the ${asked === "difference" ? "logit difference" : "logit"} of `, chip(data.answer.text), data.against ? [" against ", chip(data.against.text)] : [],
      " times the token’s vector, with everything behind it reacting: paths through other positions, patterns and norms count. These are local slopes: they do not add up to the logit, and a large change could do otherwise."].flat(),
    legend(limit, true, "effect on the logit: blue against, orange for"),
    el("div", { class: source ? "columns" : null }, source ? card("The encoder’s tokens", "source_tokens", source, null) : null,
      card(source ? "The decoder’s tokens" : null, "tokens", values, data.position)));
}

// ---- heads

function sinks() {
  const resting = data.heads.filter((h) => h.sink);
  if (!resting.length) return null;
  const layers = [...new Set(resting.map((h) => `${h.stack}|${h.layer}`))];
  const most = 1 + Math.max(...resting.map((h) => h.head));
  const cell = (key, i) => {
    const head = resting.find((h) => `${h.stack}|${h.layer}` === key && h.head === i);
    if (!head) return el("td", { class: "none" }, "–");
    return shaded(el("td", { class: "number", title: `${head.label}: ${percent(head.sink.mass)} of its attention, ${percent(head.sink.moved)} of what it moves` },
      head.sink.mass.toFixed(2), el("span", { class: "p" }, ` ${head.sink.moved.toFixed(2)}`)), head.sink.mass, 1, false);
  };
  const above = resting.filter((h) => h.sink.mass > 0.3).length;
  return [el("h3", { class: "later" }, "Resting on the first token"),
    el("p", { class: "gloss" }, `The mean share of attention on the first token, and beside it the share of what the head moves (weight × size of the value) that comes from there. ${above} of ${resting.length} heads give it more than 0.3; a head that looks there and moves little rests.`),
    scroller("Attention on the first token", el("table", { class: "grid" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "layer"), Array.from({ length: most }, (_, i) => el("th", { scope: "col" }, `H${i}`)))),
      el("tbody", {}, layers.map((key) => el("tr", {}, el("th", { scope: "row" }, key.split("|").join(" ").trim().replace(/(\d+)$/, "layer $1")), Array.from({ length: most }, (_, i) => cell(key, i)))))))];
}

function bestByRole(open) {
  const rows = Object.keys(ROLES).map((role) => {
    const scored = data.heads.flatMap((h) => h.roles.filter((r) => r.role === role && r.score !== null).map((r) => [h.label, r]));
    const best = scored.sort((a, b) => b[1].score - a[1].score).slice(0, 3);
    const words = best.length ? best.map(([label, r], i) => [i ? ", " : "", opener(label, open), " ", number(r.score.toFixed(2)), inGeneral(r)]) : "undefined in this text";
    return el("tr", {}, el("th", { scope: "row" }, roleName(role)), el("td", {}, words), el("td", { class: "soft" }, ROLES[role][1]));
  });
  return el("div", { class: "card" }, scroller("Best heads by role", el("table", { class: "data roles" },
    el("thead", {}, el("tr", {}, ["role", "best heads in this text (on random tokens)", "what such a head does"].map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, rows))));
}

const opener = (label, open) => (patterns.some((p) => p.label === label)
  ? el("button", { type: "button", class: "link", onclick: () => open(label) }, label) : label);

// a head has the roles that it plays in general, on random tokens; others it only resembles on this text
const inGeneral = (r) => (r.model_wide === null ? "" : ` (${r.model_wide.toFixed(2)})`);
const TELLING_ROLE = 0.2; // as on the terminal
const isNamed = (r) => r.named !== false;

function roleChip(r) {
  const told = `mean over ${r.positions} positions${r.model_wide === null ? "" : "; in brackets, on repeated random tokens"}`;
  return el("span", { class: r.score >= 0.5 && isNamed(r) ? "role strong" : "role", title: told },
    `${isNamed(r) ? "" : "resembles "}${roleName(r.role)} ${r.score.toFixed(2)}${inGeneral(r)}`);
}

function headCard(top, open) {
  const head = headByLabel.get(top.label);
  const pattern = patterns.find((p) => p.label === top.label);
  const texts = textsIn(top.key);
  const roles = head ? knownRoles(head).filter((r) => Math.abs(r.score) >= TELLING_ROLE).slice(0, 4) : [];
  const adds = top.contribution === null ? null : ["adds ", number(signed(top.contribution, 3)), ` to the ${target}`];
  const role = top.because === "contribution" ? null : el("span", {}, `best ${roleName(top.because)} head`);
  const basis = top.basis === "pattern" ? "its row of the pattern" : "absolute weight × norm of the value, normalised";
  const limit = Math.max(...top.sources.map(Math.abs), 1e-9);
  return el("article", { class: "card head", "aria-label": `head ${top.label}` },
    pattern ? thumb(pattern, textsOf(pattern), [], open) : null,
    el("div", { class: "title" }, el("h3", {}, top.label), role, adds && el("span", {}, adds), roles.map(roleChip)),
    roles.length && roles[0].score >= 0.3 && isNamed(roles[0]) && ROLES[roles[0].role] ? el("p", { class: "soft" }, ROLES[roles[0].role][1]) : null,
    el("div", {}, inWords(texts, top.weights), tellingStrip(texts, { weights: top.weights, here: top.key === "tokens" ? data.position : null }),
      el("p", { class: "soft small" }, `Shade: ${basis}; the ${top.weights.length} weights add up to 1.`)),
    top.sources.length ? el("details", {}, el("summary", {}, `What each token adds to the ${target} through this head`),
      legend(limit, true, `adds up to ${signed(top.contribution ?? 0, 3)}`),
      inWords(texts, top.sources, { isSigned: true }), tellingStrip(texts, { weights: top.sources, limit, isSigned: true })) : null);
}

const heads = (open) => section("heads", "The most telling heads, and where they look",
  "Heads that add much, or play a known role well. A role’s score is the share of attention that goes where the role says, averaged over " +
    "the positions where it is defined (signed mechanisms: signed mass over absolute mass); in brackets, the same on repeated random tokens, " +
    "where only a head’s habit is left: a head that does not play the role there resembles it on this text and no more. " +
    "The strip shows where the head looks from the explained position.",
  bestByRole(open), legend(1, false, "attention weight; colour follows its square root"),
  el("div", { class: "heads" }, data.top_heads.map((top) => headCard(top, open))), sinks());

// ---- all patterns

function patternNotes(pattern) {
  const head = headByLabel.get(pattern.label);
  if (!head) return [];
  const best = knownRoles(head)[0];
  return [head.contribution === null ? null : `adds ${signed(head.contribution)}`, best && best.score >= 0.3 && isNamed(best) ? `${roleName(best.role).replace(" token", "")} ${best.score.toFixed(2)}` : null].filter(Boolean);
}

function describe(pattern) {
  const head = headByLabel.get(pattern.label);
  const where = `Layer ${pattern.layer}, head ${pattern.head}${pattern.part === "cross" ? " of cross-attention" : ""}${pattern.stack ? `, ${pattern.stack}` : ""}`;
  const adds = head && head.contribution !== null ? `; adds ${signed(head.contribution, 3)} to the ${target}` : "";
  return [`${where}${adds}. `, head ? knownRoles(head).slice(0, 3).map((r) => [roleChip(r), " "]) : []].flat(2);
}

function patternGroup(stack, part, open) {
  const chosen = patterns.filter((p) => p.stack === stack && p.part === part);
  const layers = [...new Set(chosen.map((p) => p.layer))];
  const name = part === "cross" ? STACKS.cross : STACKS.attn[stack];
  return [
    name ? el("h3", { class: "later" }, name) : null,
    layers.map((layer) => el("div", { class: "layer" }, el("p", { class: "name" }, `Layer ${layer}`),
      el("div", { class: "thumbs" }, chosen.filter((p) => p.layer === layer).map((p) => thumb(p, textsOf(p), patternNotes(p), open))))),
  ];
}

function allPatterns(open) {
  const groups = [...new Set(patterns.map((p) => `${p.stack}|${p.part}`))].map((key) => key.split("|"));
  const share = patterns.some((p) => p.limit === 1);
  const measured = patterns.filter((p) => p.limit !== 1);
  const pooled = patterns.some((p) => Math.max(p.rows, p.columns) > THUMB);
  return section("patterns", "Attention patterns of all heads",
    "One picture per head: a row for every query token, a column for every key token, shaded by weight. Every pixel is a value of this forward pass" +
      (pooled ? "; where tokens outnumber pixels, a pixel shows the largest weight under it. " : ". ") + "Choose a picture to see it large, with its numbers.",
    share ? legend(1, false, "attention weight; colour follows its square root, so small weights show") : null,
    measured.some((p) => p.signed) ? legend(1, true, "signed weight, as a share of the head’s largest") : null,
    measured.some((p) => !p.signed) ? legend(1, false, "heads whose rows do not sum to one: share of the head’s largest weight") : null,
    groups.map(([stack, part]) => patternGroup(stack, part, open)));
}

// ---- words

const WORDS = [
  ["token", "A piece of text the model knows by number. · is a space, ⏎ a new line, ⇥ a tab."],
  ["residual stream", "The vector each position carries through the model; every part reads it and adds to it."],
  ["head, L3H5", "One attention head: layer 3, head 5, both counted from 0. L3X5 is a head of cross-attention."],
  ["query, key", "The position that looks, and the position looked at."],
  ["attention pattern", "For every query, the weights with which the head mixes what the keys carry."],
  ["logit", "A token’s score before the softmax. A difference of two logits is the log of the ratio of their probabilities."],
  ["entropy, bits", "How uncertain a distribution is: n bits are as uncertain as 2ⁿ equally likely tokens."],
  ["gradient × input", "A token’s vector times the slope of the answer’s logit along it, everything reacting."],
  ["direct logit attribution", "A component’s own write, read through the final norm and the answer’s unembedding direction."],
];

const words = () => section("words", "Words on this page", "One line for each term, and the roles of heads.",
  el("dl", { class: "words" }, [...WORDS, ...trainedWords(TRAINED, Math.max(data.tokens.length, data.source_tokens?.length ?? 0)), ...Object.values(ROLES).map(([name, line]) => [`${name} head`, line])]
    .map(([term, meaning]) => el("div", {}, el("dt", {}, term), el("dd", {}, meaning)))));

// ---- the page

function build() {
  const viewer = patterns.length ? new Viewer(patterns, textsOf, data.position, describe) : null;
  const open = (label) => viewer.open(label);
  frame(header(), [
    ["Pipeline", pipeline()],
    data.translation ? ["Translation", translation()] : null,
    [THERE ? "Token there" : "Next token", nextToken()],
    data.lens.length ? ["Logit lens", lens()] : null,
    data.attribution.components.length ? ["Attribution", attribution()] : null,
    data.inputs ? ["Inputs", inputs()] : null,
    data.top_heads.length ? ["Telling heads", heads(open)] : null,
    patterns.length ? ["All patterns", allPatterns(open)] : null,
    ["Words", words()],
  ], `Drawn from one pass of ${data.model.name}, forwards and backwards.`);
  document.body.append(tip);
  if (viewer) document.body.append(viewer.dialog);
}

build();
