// The sections of the page, in reading order, each from one part of the explanation's document.

const data = JSON.parse(document.getElementById("explanation").textContent);
const TRAINED = data.model.trained_length ?? null;
const textsIn = (list) => marking((data[list] ?? []).map((t) => t.text), (data[list] ?? []).filter((t) => t.unknown || t.character));
const TARGETS = { logit: spoken("logit"), difference: spoken("logit difference"), "raw logit": spoken("raw logit"), "raw difference": spoken("raw logit difference"), slope: spoken("slope of the log-probability") };
const target = TARGETS[data.attribution.target];
const GLOSSARY = new Glossary(WORDS, PARTS);
const told = (id, title, gloss, ...content) => section(id, title, GLOSSARY.linked(gloss), ...content);
const patterns = data.patterns.map((entry) => new Pattern(entry));
const headByLabel = new Map(data.heads.map((head) => [head.label, head]));
const textsOf = (pattern) => ({ query: textsIn(pattern.query), key: textsIn(pattern.key) });

const ROLES = {
  previous_token: [spoken("previous token"), spoken("Looks at the token just before: raw material for induction and for joining pieces of words."), spoken("previous")],
  induction: [spoken("induction"), spoken("Finds the earlier place where the present token stood and looks at what came next, to say it again.")],
  duplicate_token: [spoken("duplicate token"), spoken("Looks at earlier copies of the present token."), spoken("duplicate")],
  first_token: [spoken("first token"), spoken("Rests on the first token, as heads do when they find nothing to move."), spoken("first")],
  current_token: [spoken("current token"), spoken("Looks at the present token itself."), spoken("current")],
};
const KINDS = {
  token: spoken("token embedding"), position: spoken("position embedding"), head: spoken("attention heads"), cross_head: spoken("cross-attention heads"),
  attn_bias: spoken("attention biases"), mlp: spoken("MLPs"), norm_bias: spoken("norm biases"), final_bias: spoken("final norm bias"),
  readout_bias: spoken("readout biases"), unembed_bias: spoken("unembedding bias"), part: spoken("other parts"),
};
const MODELS = { decoder: spoken("decoder"), encoder: spoken("encoder"), encoder_decoder: spoken("encoder-decoder") };
const STEPS = { logits: "logits", temperature: spoken("temperature"), repetition_penalty: spoken("repetition-penalty"), seed: spoken("seed") };
const stepName = (name) => STEPS[name] ?? name.replaceAll("_", "-");

const roleName = (role) => (ROLES[role] ?? [role.replaceAll("_", " ")])[0];
const knownRoles = (head) => head.roles.filter((r) => r.score !== null).sort((a, b) => b.score - a.score);

// ---- what is explained

// what it is called, by what logits are of
const SAYS = {
  next_token: {
    why: (told) => spoken("Why {model} says {answer} next", told), weighed: (told) => spoken("What {model} thinks of {answer} as the next token", told),
    explained: (told) => spoken("Explained: what follows token {position} {token} (outlined). ", told),
    way: spoken("From text to next token, in numbers"), may: spoken("What may come next"), name: spoken("Next token"),
  },
  token: {
    why: (told) => spoken("Why {model} says {answer} there", told), weighed: (told) => spoken("What {model} thinks of {answer} as the token there", told),
    explained: (told) => spoken("Explained: what is token {position} {token} (outlined). ", told),
    way: spoken("From text to the token there, in numbers"), may: spoken("What may stand there"), name: spoken("Token there"),
  },
  text_class: {
    why: (told) => spoken("Why {model} calls the text {answer}", told), weighed: (told) => spoken("What {model} thinks of {answer} as the class of the text", told),
    explained: (told) => spoken("Explained: the class of the text, read at token {position} {token} (outlined). ", told),
    way: spoken("From text to its class, in numbers"), may: spoken("Class of the text"), name: spoken("Class of the text"),
  },
  token_class: {
    why: (told) => spoken("Why {model} calls this token {answer}", told), weighed: (told) => spoken("What {model} thinks of {answer} as the class of this token", told),
    explained: (told) => spoken("Explained: the class of token {position} {token} (outlined). ", told),
    way: spoken("From text to the class of a token, in numbers"), may: spoken("Class of this token"), name: spoken("Class of this token"),
  },
};
// documents were once without it
const LOGITS_OF = data.model.logits_of ?? (data.model.kind === "encoder" ? "token" : "next_token");
const ASKED = SAYS[LOGITS_OF];
const CLASSES = LOGITS_OF.endsWith("_class");

function title() {
  const answer = chip(data.answer.text);
  const model = data.model.name;
  if (data.against) return spoken("{answer} or {other}: how {model} decides", { answer, other: chip(data.against.text), model });
  if (data.answer.rank === 1) return ASKED.why({ model, answer });
  return ASKED.weighed({ model, answer });
}

function facts() {
  const m = data.model;
  const rows = [
    [spoken("kind"), MODELS[m.kind] ?? m.kind], [spoken("parameters"), count(m.parameters)], [spoken("layers"), m.n_layers], [spoken("heads"), m.n_heads],
    [spoken("width"), m.d_model], [spoken("vocabulary"), vocabularies(m)], [spoken("context"), contextOf(m)], [spoken("attention"), (m.mechanisms ?? []).join(spoken(", "))],
  ];
  return el("dl", { class: "facts" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
}

function outcome(o) {
  return spoken("{token} {probability} (logit {logit}, rank {rank})",
    { token: chip(o.text), probability: el("strong", { class: "number" }, percent(o.probability)), logit: plain(o.logit), rank: count(o.rank) });
}

function header() {
  const tokens = textsIn("tokens");
  const source = data.source_tokens && el("div", { class: "card" }, el("h2", {}, spoken("The encoder reads")), strip(textsIn("source_tokens")));
  const bits = data.next_token.entropy_bits;
  return el("header", { class: "top" },
    el("p", { class: "brand" }, el("strong", {}, "glassformer"), spoken(" · one forward pass, taken apart")),
    el("h1", {}, title()),
    facts(),
    el("div", { class: "columns" }, source,
      el("div", { class: "card" }, el("h2", {}, data.source_tokens ? spoken("The decoder has so far") : spoken("The text, as tokens")), strip(tokens, { here: data.position, ahead: data.source_tokens !== null && data.source_tokens !== undefined }))),
    el("p", { class: "gloss" },
      ASKED.explained({ position: data.position, token: chip(tokens[data.position]) }),
      data.against ? spoken("The model gives {outcome} and {other}. ", { outcome: outcome(data.answer), other: outcome(data.against) }) : spoken("The model gives {outcome}. ", { outcome: outcome(data.answer) }),
      spoken("Its whole distribution holds {bits} bits of uncertainty.", { bits: bits.toFixed(2) })),
    notesCard(data.notes, (words) => GLOSSARY.linked(words)), ofCard(data.provenance));
}

// ---- the pipeline

const SIZES = { character: spoken("character"), batch: spoken("batch"), pos: spoken("pos"), vocab: spoken("vocab") };
const shapeText = (shape) => Object.entries(shape).map(([axis, size]) => `${SIZES[axis] ?? axis} ${count(size)}`).join(" × ");
const capital = (words) => words.charAt(0).toUpperCase() + words.slice(1);
const quantity = (x) => (Number.isInteger(x) ? count(x) : plain(x, Math.abs(x) < 10 ? 3 : 1));

function stageCard(stage) {
  const numbers = Object.entries(stage.numbers);
  return el("li", {}, el("h3", {}, GLOSSARY.linked(capital(spoken(stage.name)))), el("span", { class: "shape" }, shapeText(stage.shape)),
    numbers.length ? el("p", {}, listed(numbers.map(([name, x]) => [GLOSSARY.linked(spoken(name)), " ", number(quantity(x))]))) : null,
    stage.note ? el("p", {}, GLOSSARY.linked(spoken(stage.note))) : null);
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
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, spoken("stage")), names.map((n) => el("th", { scope: "col" }, GLOSSARY.linked(spoken(n)))))),
    el("tbody", {}, stages.map((s) => el("tr", {}, el("th", { scope: "row" }, spoken(s.name)), names.map((n, i) => cell(s, n, i))))));
  const heading = stages[0].stage === "encoder" ? spoken("Encoder blocks") : data.source_tokens ? spoken("Decoder blocks") : spoken("Blocks");
  const notes = [...new Set(stages.map((s) => s.note).filter(Boolean))];
  return el("li", { class: "wide" }, el("h3", {}, heading, ` × ${stages.length}`), el("span", { class: "shape" }, shapeText(stages[0].shape)),
    scroller(spoken("{blocks} in numbers", { blocks: heading }), table), notes.length <= 2 ? notes.map((note) => el("p", {}, GLOSSARY.linked(spoken(note)))) : null);
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
      el("thead", {}, el("tr", {}, [spoken("index"), spoken("token"), spoken("id")].map((h) => el("th", { scope: "col" }, h)))),
      el("tbody", {}, list.map((t) => el("tr", {}, el("td", { class: "number" }, t.index), el("th", { scope: "row" }, chip(t.text), t.unknown ? spoken(" unknown") : "", t.character ? spoken(" byte {n} of {character}", { n: t.part + 1, character: chip(t.character) }) : ""),
        el("td", { class: "number" }, t.id))))));
  return el("details", {}, el("summary", {}, spoken("Every token and its id")),
    el("div", { class: "columns" }, data.source_tokens ? table(spoken("source tokens"), data.source_tokens) : null, table(spoken("tokens"), data.tokens)));
}

function samplingStep(step, i) {
  const { draw, steps } = data.sampling;
  const last = i === steps.length - 1;
  const rows = step.candidates.map((c) => ({
    name: chip(c.text), value: c.probability, cells: [percent(c.probability)],
    className: c.probability === 0 ? "out" : "", bar: c.probability === 0 ? "hollow" : last && draw && c.id === draw.id ? "drawn" : "",
  }));
  const setting = step.setting === null || step.setting === undefined ? "" : ` = ${step.setting}`;
  return el("li", {}, el("h3", {}, GLOSSARY.linked(`${capital(stepName(step.name))}${setting}`)),
    el("p", {}, spoken("still possible {n}, entropy {entropy}", { n: number(count(step.kept)), entropy: number(spoken("{n} bits", { n: step.entropy_bits.toFixed(2) })) })),
    scroller(spoken("{step} candidates", { step: stepName(step.name) }), bars({ heads: [spoken("token"), spoken("probability")], rows, limit: 1 })));
}

const RARE = 0.01; // probability below which a draw is called rare

function sampling() {
  const { settings, steps, draw } = data.sampling;
  const on = Object.entries(settings).filter(([, v]) => v !== null).map(([k, v]) => `${stepName(k)} ${v}`);
  return [
    el("h3", { class: "later" }, spoken("Sampling, step by step")),
    el("p", { class: "gloss" }, spoken("Each step reshapes or cuts the distribution left by the one before; bars show probability, from 0 to 1. "),
      on.length ? spoken("Settings: {settings}.", { settings: on.join(spoken(", ")) }) : ""),
    el("ol", { class: "flow steps" }, steps.map(samplingStep),
      draw ? el("li", {}, el("h3", {}, spoken("Draw")), el("p", { class: "drawn" }, settings.seed === null || settings.seed === undefined
        ? spoken("{token} drawn at {probability}.", { token: chip(draw.text), probability: number(percent(draw.probability)) })
        : spoken("{token} drawn at {probability} with seed {seed}.", { token: chip(draw.text), probability: number(percent(draw.probability)), seed: settings.seed }),
        draw.probability < RARE ? spoken(" A rare draw: it comes up about once in {n}.", { n: count(Math.round(1 / draw.probability)) }) : null)) : null),
  ];
}

const pipeline = () => told("pipeline", ASKED.way,
  spoken("What the model computes, in order, with the shape of what each stage hands on. Norms are lengths of the vector at the explained position."),
  flow(), tokenTable(), CLASSES ? null : sampling());

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
  const heads = [spoken("step"), spoken("decoder reads"), spoken("decoder says"), spoken("probability"), ...(source ? [spoken("looks most at")] : [])];
  const rows = steps.map((s) => el("tr", { class: s.index === data.position ? "current" : "" },
    el("td", {}, number(s.index)), el("td", {}, chip(s.input)), el("th", { scope: "row" }, chip(s.output)),
    el("td", {}, number(percent(s.probability)), el("span", { class: "bar", style: `width:${100 * s.probability}%` })),
    source ? el("td", {}, source(s.index)) : null));
  return told("translation", spoken("The translation, step by step"),
    spoken("The decoder reads what it has so far and says the next token, which becomes its next input. ") +
      (source ? spoken("The last column averages the heads of the last cross-attention layer.") : ""),
    el("p", { class: "result-line" }, el("span", { lang: "und" }, data.text ?? ""), " → ", el("strong", {}, text), el("span", { class: "soft" }, generated ? spoken(" (generated)") : spoken(" (given)"))),
    el("div", { class: "card" }, scroller(spoken("Translation steps"), el("table", { class: "data stages" },
      el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)))), el("tbody", {}, rows)))));
}

// ---- the likeliest answers, and lens

function answers() {
  const picked = [data.answer, data.against].filter(Boolean);
  const listed = new Set(data.next_token.candidates.map((c) => c.id));
  const more = picked.filter((o) => !listed.has(o.id)).sort((a, b) => b.probability - a.probability);
  const rows = [...data.next_token.candidates, ...more].map((c, i) => ({
    name: chip(c.text), value: c.probability, cells: [count(c.rank ?? i + 1), percent(c.probability), plain(c.logit)],
    className: picked.some((o) => o.id === c.id) ? "picked" : "",
  }));
  return told("next", ASKED.may,
    spoken(CLASSES ? "The likeliest classes; probability is the softmax of the logits. The class explained is outlined." : "The likeliest tokens; probability is the softmax of the logits. The token explained is outlined."),
    el("div", { class: "card" }, bars({ heads: [spoken(CLASSES ? "class" : "token"), spoken("rank"), spoken("probability"), "logit"], rows, limit: 1 })));
}

function lensRow(row, width) {
  const cells = row.candidates.slice(0, width).map((c) => {
    const cell = el("td", { class: c.id === data.answer.id ? "lens answer" : "lens" }, token(c.text), el("span", { class: "p" }, percent(c.probability)));
    return shaded(cell, c.probability, 1, false);
  });
  const rated = (o) => (o ? [el("td", { class: "aside number" }, percent(o.probability)), el("td", { class: "aside number" }, count(o.rank))] : []);
  return el("tr", {}, el("th", { scope: "row" }, spokenLabel(row.label)), cells, rated(row.answer), rated(row.against),
    el("td", { class: "aside number" }, row.entropy_bits.toFixed(2)), el("td", { class: "aside number" }, plain(row.kl_bits)));
}

function lens() {
  const width = Math.min(5, ...data.lens.map((row) => row.candidates.length));
  const rated = (o) => (o ? [spoken("{token} prob.", { token: chip(o.text) }), spoken("rank")] : []);
  const heads = [..."12345".slice(0, width)].map((n) => spoken("top {n}", { n }));
  const all = [spoken("after"), ...heads, ...rated(data.lens[0].answer && data.answer), ...rated(data.lens[0].against && data.against), spoken("entropy, bits"), spoken("KL, bits")];
  const settled = data.lens.findIndex((_, i) => data.lens.slice(i).every((row) => row.answer && row.answer.rank === 1));
  return told("lens", spoken("Logit lens: the prediction, layer by layer"),
    spoken("What the model would say if it stopped here: the stream after each layer, read through the final norm and the unembedding. KL is the distance, in bits, of the final distribution from the row’s."),
    legend(1, false, spoken("probability; colour follows its square root, so small ones show")),
    scroller(spoken("Logit lens"), el("table", { class: "grid" },
      el("thead", {}, el("tr", {}, all.map((h) => el("th", { scope: "col" }, h)))), el("tbody", {}, data.lens.map((row) => lensRow(row, width))))),
    settled >= 0 ? el("p", { class: "gloss" }, spoken(CLASSES ? "The class explained {token} is first from {place} on." : "The token explained {token} is first from {place} on.", { token: chip(data.answer.text), place: spokenLabel(data.lens[settled].label) })) : null,
    data.lens_map ? lensMap() : null);
}

function lensMap() {
  const { labels, positions, words, ...found } = data.lens_map;
  const coords = { site: labels, pos: positions.map((i) => `${i}:${data.tokens[i].text}`) };
  const tensor = (values, ...more) => new Tensor({ axes: ["site", "pos", ...more], coords, values });
  const tensors = { top: tensor(found.top, "k"), top_probability: tensor(found.probability, "k"), entropy_bits: tensor(found.entropy_bits), kl_bits: tensor(found.kl_bits) };
  return [el("h3", { class: "later" }, spoken("At every position")),
    el("p", { class: "gloss" }, spoken(ASKED === SAYS.next_token ? "The same for each token of the text: what would follow it, if the model stopped after a layer. Choose a cell for its likeliest tokens."
      : "The same at each token of the text: what the model would say there, if it stopped after a layer. Choose a cell for what is likeliest.")),
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
  for (const [kind, name] of [["attn_bias", spoken("attn bias")], ["mlp", "MLP"], ["norm_bias", spoken("norm bias")], ["part", spoken("other")]]) {
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
    legend(limit, true, spoken("contribution to the {target}: blue against, orange for", { target })),
    scroller(spoken("Contributions by layer"), el("table", { class: "grid" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, spoken("layer")), columns.map(([name]) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, layers.map((layer) => el("tr", {}, el("th", { scope: "row" }, spoken("layer {layer}", { layer })), columns.map(([, match]) => cell(layer, match))))))),
  ];
}

function contributionBars() {
  const { components, total } = data.attribution;
  const ordered = [...components].sort((a, b) => Math.abs(b.contribution) - Math.abs(a.contribution));
  const row = (c) => ({ name: c.kind === "token" || c.kind === "position" ? KINDS[c.kind] : spokenLabel(c.label), value: c.contribution, cells: [signed(c.contribution, 3)] });
  const rest = ordered.slice(14);
  const rows = ordered.slice(0, 14).map(row);
  if (rest.length) rows.push({ ...row({ label: "", contribution: rest.reduce((s, c) => s + c.contribution, 0) }), name: spoken("{n} others together", { n: rest.length }), className: "out" });
  rows.push({ name: spoken("sum = {target}", { target }), value: total, cells: [plain(total, 3)], className: "total" });
  return [
    el("div", { class: "card" }, bars({ caption: spoken("largest first; the bars add up to the last one"), heads: [spoken("component"), spoken("adds")], rows, isSigned: true })),
    rest.length ? el("details", {}, el("summary", {}, spoken("All {n} components", { n: components.length })),
      el("div", { class: "card" }, bars({ heads: [spoken("component"), spoken("adds")], rows: components.map(row), isSigned: true }))) : null,
  ];
}

function attribution() {
  const asked = data.against ? spoken("{token} minus {other}", { token: chip(data.answer.text), other: chip(data.against.text) }) : chip(data.answer.text);
  const { sum, total } = data.attribution;
  return told("attribution", spoken("Direct logit attribution: who argued for it"),
    [spoken("Every component adds a vector to the residual stream; with the norm scales of this pass held fixed, each adds a share to the {target} of {asked}. ", { target, asked }),
      spoken("The {n} shares sum to {sum}; the model’s {target} is {total}. ", { n: data.attribution.components.length, sum: plain(sum, 3), target, total: plain(total, 3) }),
      spoken("These are direct effects only: a part can also matter through what later parts read from it.")],
    equation(), layerGrid(), contributionBars());
}

// ---- inputs

function inputs() {
  const { values, source_values: source, target: asked } = data.inputs;
  const limit = Math.max(...values.map(Math.abs), ...(source ?? []).map(Math.abs), 1e-9);
  const card = (heading, list, numbers, here) => el("div", { class: "card" }, heading ? el("h3", {}, heading) : null,
    inWords(textsIn(list), numbers, { isSigned: true, rest: false }), tellingStrip(textsIn(list), { weights: numbers, limit, isSigned: true, here }));
  return told("inputs", spoken("What each token’s vector does for it"),
    [data.against ? spoken("Gradient of the {target} of {token} against {other} times the token’s vector, ", { target: TARGETS[asked], token: chip(data.answer.text), other: chip(data.against.text) })
      : spoken("Gradient of the {target} of {token} times the token’s vector, ", { target: TARGETS[asked], token: chip(data.answer.text) }),
      spoken("with everything behind it reacting: paths through other positions, patterns and norms count. These are local slopes: they do not add up to the logit, and a large change could do otherwise.")].flat(),
    legend(limit, true, spoken("effect on the logit: blue against, orange for")),
    el("div", { class: source ? "columns" : null }, source ? card(spoken("The encoder’s tokens"), "source_tokens", source, null) : null,
      card(source ? spoken("The decoder’s tokens") : null, "tokens", values, data.position)));
}

// ---- heads

const layerName = (stack, layer) => (stack ? spoken("{stack} layer {layer}", { stack: MODELS[stack], layer }) : spoken("layer {layer}", { layer }));

function sinks() {
  const resting = data.heads.filter((h) => h.sink);
  if (!resting.length) return null;
  const layers = [...new Set(resting.map((h) => `${h.stack}|${h.layer}`))];
  const most = 1 + Math.max(...resting.map((h) => h.head));
  const cell = (key, i) => {
    const head = resting.find((h) => `${h.stack}|${h.layer}` === key && h.head === i);
    if (!head) return el("td", { class: "none" }, "–");
    return shaded(el("td", { class: "number", title: spoken("{head}: {mass} of its attention, {moved} of what it moves", { head: spokenLabel(head.label), mass: percent(head.sink.mass), moved: percent(head.sink.moved) }) },
      head.sink.mass.toFixed(2), el("span", { class: "p" }, ` ${head.sink.moved.toFixed(2)}`)), head.sink.mass, 1, false);
  };
  // what looking evenly at all tokens up to the query gives the first
  const even = (n) => (n < 2 ? 1 : Array.from({ length: n - 1 }, (_, i) => 1 / (i + 2)).reduce((a, b) => a + b) / (n - 1));
  const shared = even(data.tokens.length);
  const above = resting.filter((h) => h.sink.mass > Math.max(0.3, 2 * shared)).length;
  return [el("h3", { class: "later" }, spoken("Resting on the first token")),
    el("p", { class: "gloss" }, spoken("The mean share of attention on the first token, and beside it the share of what the head moves (weight × size of the value) that comes from there. {above} of {all} heads give it more than {least}, where an even look at all tokens gives {shared}; a head that looks there and moves little rests.", { above, all: resting.length, least: Math.max(0.3, 2 * shared).toFixed(2), shared: shared.toFixed(2) })),
    scroller(spoken("Attention on the first token"), el("table", { class: "grid" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, spoken("layer")), Array.from({ length: most }, (_, i) => el("th", { scope: "col" }, `H${i}`)))),
      el("tbody", {}, layers.map((key) => el("tr", {}, el("th", { scope: "row" }, layerName(...key.split("|"))), Array.from({ length: most }, (_, i) => cell(key, i)))))))];
}

function bestByRole(open) {
  const rows = Object.keys(ROLES).map((role) => {
    const scored = data.heads.flatMap((h) => h.roles.filter((r) => r.role === role && r.score !== null).map((r) => [h.label, r]));
    const best = scored.sort((a, b) => b[1].score - a[1].score).slice(0, 3);
    const words = best.length ? listed(best.map(([label, r]) => [opener(label, open), " ", number(r.score.toFixed(2)), inGeneral(r)])) : spoken("undefined in this text");
    return el("tr", {}, el("th", { scope: "row" }, roleName(role)), el("td", {}, words), el("td", { class: "soft" }, ROLES[role][1]));
  });
  return el("div", { class: "card" }, scroller(spoken("Best heads by role"), el("table", { class: "data roles" },
    el("thead", {}, el("tr", {}, [spoken("role"), spoken("best heads in this text (on random tokens)"), spoken("what such a head does")].map((h) => el("th", { scope: "col" }, h)))),
    el("tbody", {}, rows))));
}

const opener = (label, open) => (patterns.some((p) => p.label === label)
  ? el("button", { type: "button", class: "link", onclick: () => open(label) }, spokenLabel(label)) : spokenLabel(label));

// a head has the roles that it plays in general, on random tokens; others it only resembles on this text
const inGeneral = (r) => (r.model_wide === null ? "" : ` (${r.model_wide.toFixed(2)})`);
const TELLING_ROLE = 0.2; // as on the terminal
const isNamed = (r) => r.named !== false;

function roleChip(r) {
  const told = spoken(r.model_wide === null ? "mean over {n} positions" : "mean over {n} positions; in brackets, on repeated random tokens", { n: r.positions });
  return el("span", { class: r.score >= 0.5 && isNamed(r) ? "role strong" : "role", title: told },
    isNamed(r) ? roleName(r.role) : spoken("resembles {role}", { role: roleName(r.role) }), ` ${r.score.toFixed(2)}${inGeneral(r)}`);
}

function headCard(top, open) {
  const head = headByLabel.get(top.label);
  const pattern = patterns.find((p) => p.label === top.label);
  const texts = textsIn(top.key);
  const roles = head ? knownRoles(head).filter((r) => Math.abs(r.score) >= TELLING_ROLE).slice(0, 4) : [];
  const adds = top.contribution === null ? null : spoken("adds {n} to the {target}", { n: number(signed(top.contribution, 3)), target });
  const role = top.because === "contribution" ? null : el("span", {}, spoken("best {role} head", { role: roleName(top.because) }));
  const basis = top.basis === "pattern" ? spoken("its row of the pattern") : spoken("absolute weight × norm of the value, normalised");
  const limit = Math.max(...top.sources.map(Math.abs), 1e-9);
  return el("article", { class: "card head", "aria-label": spoken("head {head}", { head: spokenLabel(top.label) }) },
    pattern ? thumb(pattern, textsOf(pattern), [], open) : null,
    el("div", { class: "title" }, el("h3", {}, spokenLabel(top.label)), role, adds && el("span", {}, adds), roles.map(roleChip)),
    roles.length && roles[0].score >= 0.3 && isNamed(roles[0]) && ROLES[roles[0].role] ? el("p", { class: "soft" }, ROLES[roles[0].role][1]) : null,
    el("div", {}, inWords(texts, top.weights), tellingStrip(texts, { weights: top.weights, here: top.key === "tokens" ? data.position : null }),
      el("p", { class: "soft small" }, spoken("Shade: {basis}; the {n} weights add up to 1.", { basis, n: top.weights.length }))),
    top.sources.length ? el("details", {}, el("summary", {}, spoken("What each token adds to the {target} through this head", { target })),
      legend(limit, true, spoken("adds up to {n}", { n: signed(top.contribution ?? 0, 3) })),
      inWords(texts, top.sources, { isSigned: true }), tellingStrip(texts, { weights: top.sources, limit, isSigned: true })) : null);
}

const heads = (open) => told("heads", spoken("The most telling heads, and where they look"),
  spoken("Heads that add much, or play a known role well. A role’s score is the share of attention that goes where the role says, averaged over the positions where it is defined (signed mechanisms: signed mass over absolute mass); in brackets, the same on repeated random tokens, where only a head’s habit is left: a head that does not play the role there resembles it on this text and no more. The strip shows where the head looks from the explained position."),
  bestByRole(open), legend(1, false, spoken("attention weight; colour follows its square root")),
  el("div", { class: "heads" }, data.top_heads.map((top) => headCard(top, open))), sinks());

// ---- all patterns

function patternNotes(pattern) {
  const head = headByLabel.get(pattern.label);
  if (!head) return [];
  const best = knownRoles(head)[0];
  return [head.contribution === null ? null : spoken("adds {n}", { n: signed(head.contribution) }), best && best.score >= 0.3 && isNamed(best) ? `${ROLES[best.role]?.[2] ?? roleName(best.role)} ${best.score.toFixed(2)}` : null].filter(Boolean);
}

function describe(pattern) {
  const head = headByLabel.get(pattern.label);
  const where = [spoken(pattern.part === "cross" ? "Layer {layer}, head {head} of cross-attention" : "Layer {layer}, head {head}", pattern), pattern.stack ? MODELS[pattern.stack] : null].filter(Boolean).join(spoken(", "));
  const adds = head && head.contribution !== null ? spoken("; adds {n} to the {target}", { n: signed(head.contribution, 3), target }) : "";
  return [where, adds, spoken(". "), head ? knownRoles(head).slice(0, 3).map((r) => [roleChip(r), " "]) : []].flat(2);
}

const allPatterns = (open) => told("patterns", spoken("Attention patterns of all heads"),
  patternGloss(patterns), patternLegends(patterns), patternGroups(patterns, (p) => thumb(p, textsOf(p), patternNotes(p), open)));

// ---- words

const words = () => {
  const roles = Object.values(ROLES).map(([name, line]) => [spoken("{role} head", { role: name }), line]);
  return section("words", spoken("Words on this page"), spoken("One line for each term, and the roles of heads."),
    GLOSSARY.list(...trainedWords(TRAINED, Math.max(data.tokens.length, data.source_tokens?.length ?? 0)), ...roles));
};

// ---- the page

function build() {
  const viewer = patterns.length ? new Viewer(patterns, textsOf, data.position, describe) : null;
  const open = (label) => viewer.open(label);
  frame(header(), [
    [spoken("Pipeline"), pipeline()],
    data.translation ? [spoken("Translation"), translation()] : null,
    [ASKED.name, answers()],
    data.lens.length ? [spoken("Logit lens"), lens()] : null,
    data.attribution.components.length ? [spoken("Attribution"), attribution()] : null,
    data.inputs ? [spoken("Inputs"), inputs()] : null,
    data.top_heads.length ? [spoken("Telling heads"), heads(open)] : null,
    patterns.length ? [spoken("All patterns"), allPatterns(open)] : null,
    [spoken("Words"), words()],
  ], spoken("Drawn from one pass of {model}, forwards and backwards.", { model: data.model.name }));
  document.body.append(tip);
  if (viewer) document.body.append(viewer.dialog);
}

build();
