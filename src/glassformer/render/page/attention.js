// A page of attention alone: the text as tokens, and the pattern of every head. It needs no logits.

const data = JSON.parse(document.getElementById("attention").textContent);
const TRAINED = data.model.trained_length ?? null;
const patterns = data.patterns.map((entry) => new Pattern(entry));
const textsIn = (list) => marking(data[list].map((t) => t.text), data[list].filter((t) => t.unknown || t.character));
const textsOf = (pattern) => ({ query: textsIn(pattern.query), key: textsIn(pattern.key) });

function header() {
  const m = data.model;
  const rows = [[spoken("parameters"), m.parameters === undefined ? null : count(m.parameters)], [spoken("layers"), m.n_layers], [spoken("heads"), m.n_heads],
    [spoken("width"), m.d_model], [spoken("attention"), m.mechanisms?.join(spoken(", "))]].filter(([, value]) => value !== undefined && value !== null);
  const card = (title, list) => el("div", { class: "card" }, el("h2", {}, title), strip(textsIn(list)));
  return el("header", { class: "top" },
    el("p", { class: "brand" }, el("strong", {}, "glassformer"), spoken(" · attention")),
    el("h1", {}, spoken("What the heads of {model} look at", { model: m.name })),
    rows.length ? el("dl", { class: "facts" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))) : null,
    el("div", { class: "columns" }, data.source_tokens ? card(spoken("The encoder reads"), "source_tokens") : null,
      data.tokens.length ? card(data.source_tokens ? spoken("The decoder reads") : spoken("The text, as tokens"), "tokens") : null),
    notesCard(data.notes), ofCard(data.provenance));
}

const where = (p) => spoken(p.part === "cross" ? "Layer {layer}, head {head} of cross-attention" : "Layer {layer}, head {head}", p);

function build() {
  const viewer = new Viewer(patterns, textsOf, Math.max(data.tokens.length - 1, 0), (p) => [where(p)]);
  const longest = Math.max(data.tokens.length, data.source_tokens?.length ?? 0);
  const trained = trainedWords(TRAINED, longest);
  frame(header(), [
    [spoken("All patterns"), section("patterns", spoken("Attention patterns of all heads"), patternGloss(patterns), patternLegends(patterns),
      patternGroups(patterns, (p) => thumb(p, textsOf(p), [], viewer.open.bind(viewer))))],
    trained.length ? [spoken("Words"), section("words", spoken("Words on this page"), "", el("dl", { class: "words" },
      trained.map(([name, words]) => el("div", {}, el("dt", {}, name), el("dd", {}, words)))))] : null,
  ], spoken("Drawn from one pass of {model}.", { model: data.model.name }));
  document.body.append(tip, viewer.dialog);
}

build();
