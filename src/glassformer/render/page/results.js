// The sections of a page of results: what each result says of itself, its own picture if it has one, and its tensors.

const data = JSON.parse(document.getElementById("results").textContent);

const TRAINED = data.model?.trained_length ?? data.provenance?.trained_length ?? null;

const NAMES = { Acdc: spoken("ACDC: the circuit that is left"), Patched: spoken("Activation patching"), Patching: spoken("Activation patching"),
  FlowRoutes: spoken("Information flow routes"), AcdcCurve: spoken("ACDC over thresholds"), EdgeAttribution: spoken("Edge attribution patching"),
  NodeAttribution: spoken("Attribution patching"), DirectLogitAttribution: spoken("Direct logit attribution") };

// tensors that a picture of its own shows already, or that are ids
const SHOWN = { AttentionCosts: ["ratio", "ratio_low", "ratio_high", "ratio_least", "ratio_largest", "same_low", "same_high", "memory_ratio", "growth", "growth_low", "growth_high"],
   LensGrid: ["top", "top_probability", "answers"], DirectLogitAttribution: ["answer", "against", "position"], Acdc: ["in_circuit"],
  InputGradients: ["answers", "against"], TokenPairs: ["values", "rows", "columns"], SkipTrigrams: ["contribution", "sources", "destinations", "outputs"],
  TokenCircuits: ["raised", "lowered", "sought", "raised_tokens", "lowered_tokens", "sought_tokens"] };

const isTensor = (value) => value !== null && typeof value === "object" && "float32" in value;
const isResult = (value) => value !== null && typeof value === "object" && "result" in value;
const capitalised = (words) => words.charAt(0).toUpperCase() + words.slice(1);
const factName = (name) => spoken(name.replaceAll("_", " "));
const sentence = (name) => capitalised(factName(name).replace(/^kl /, "KL ").replace(/^n /, "number of "));
const kindName = (kind) => NAMES[kind] ?? sentence(kind.replace(/([a-z])([A-Z])/g, (_, a, b) => `${a} ${b.toLowerCase()}`));
const manner = (result) => result.method ?? result.direction ?? (result.tuned ? "tuned" : null);
const titleOf = (result) => {
  const title = `${kindName(result.result)}${manner(result) ? `${spoken(": ")}${spoken(manner(result).replaceAll("_", " "))}` : ""}`;
  return result.denied ? spoken("{title}: nothing found", { title }) : title;
};
// what an analysis answers, in a sentence for readers where there is one
const answers = (result) => READERS[result.result]?.[0] ?? inCode(data.about[result.result]?.summary ?? "");
const numbersSaid = (result, name) => READERS[result.result]?.[1][name] ?? "";
const meaning = (result, field) => capitalised((data.about[result.result]?.fields[field] ?? "").replaceAll("`", ""));
const entriesOf = (result) => Object.entries({ ...result.derived, ...Object.fromEntries(Object.entries(result).filter(([name]) => !["derived", "result", "denied", "notes", "provenance"].includes(name))) });

// what was asked stands above already, or in the title, and what is nothing need not be said
const isSaid = (result) => ([name, value]) => {
  const asked = data.given?.[name] ?? data.given?.[name.replace(/s$/, "")];
  const inTitle = ["method", "direction", "tuned"].includes(name);
  const isNothing = value === false || (value === 0 && ["constants", "dropped"].includes(name));
  const isSum = name === "sum" && SUMS[result.result];
  return isNothing || inTitle || isSum || (asked !== undefined && SHOWN[result.result]?.includes(name)) || JSON.stringify(data.given?.[name]) === JSON.stringify(value);
};

// what the code says of every field that there is
function fieldsOf(result) {
  const fields = Object.entries(data.about[result.result]?.fields ?? {}).filter(([name]) => (result.derived?.[name] ?? result[name] ?? null) !== null);
  if (!fields.length) return null;
  return el("details", { class: "fields" }, el("summary", {}, spoken("What the numbers are called in code")), el("p", { class: "soft" }, inCode(data.about[result.result].summary)),
    el("dl", { class: "words" }, fields.map(([name, words]) => el("div", {}, el("dt", {}, el("code", {}, name)), el("dd", {}, inCode(words))))));
}

// ---- numbers and words that come with a result

// settings whose values are words of ours; other strings may be tokens, which are never translated
const SETTINGS = new Set(["norm", "mlps", "order"]);

function brief(value) {
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : compact(value);
  if (typeof value === "boolean") return value ? spoken("yes") : spoken("no");
  if (typeof value === "string") return value.startsWith(" ") || value.endsWith(" ") ? visible(value) : readable(value);
  return null;
}

function factsOf(entries, explained = () => "", labels = FACTS) {
  const rows = entries.map(([name, value]) => {
    const list = Array.isArray(value) && value.length && value.length <= 8 ? value.map(brief) : null;
    const words = list ? (list.includes(null) ? null : list.join(spoken(", "))) : brief(SETTINGS.has(name) ? spoken(value) : value);
    return words === null || words === "" ? null : el("div", { title: explained(name) || null }, el("dt", {}, labels[name] ?? factName(name)), el("dd", {}, cut(words, 240)));
  }).filter(Boolean);
  return rows.length ? el("dl", { class: "facts" }, rows) : null;
}

// mappings from names to words, such as what was left out and why
function wordLists(result) {
  return entriesOf(result).filter(([name, value]) => value && typeof value === "object" && !Array.isArray(value) && !isTensor(value) && !isResult(value)
    && !["words", "names", "output_names"].includes(name) && Object.keys(value).length && Object.values(value).every((v) => typeof v === "string"))
    .map(([name, value]) => el("details", { open: name === "left_out" }, el("summary", {}, `${sentence(name)} (${Object.keys(value).length})`),
      el("ul", { class: "findings" }, Object.entries(value).map(([key, words]) => el("li", {}, el("strong", {}, key.split(": ").map(readable).map((words) => spoken(words)).join(spoken(": "))), spoken(": "), inCode(spoken(words)))))));
}

// ---- tensors

const figureOf = (result, name, said = true) => tensorFigure(result.derived[name] ?? result[name], sentence(name), {
  words: said ? numbersSaid(result, name) : "", error: result.derived[`${name}_error`], sums: SUMS[result.result]?.includes(name),
});

// what the class of a result draws first is drawn at once; the others wait behind a heading
const MOST_MAIN = 4;

// a result without a tensor draws the numbers that say what it says
function numbersOf(result) {
  const names = data.about[result.result].headline.filter((name) => typeof result[name] === "number");
  return names.length ? tensorFigure({ axes: ["number"], coords: { number: names.map(sentence) }, values: names.map((name) => result[name]) }, spoken("Numbers")) : null;
}

// `said`: whether main figures tell what they are, or something above them does
function tensorsOf(result, said = true) {
  const names = entriesOf(result).filter(([, value]) => isTensor(value)).map(([name]) => name);
  // a view of its own shows some, but for what is denied
  const free = (name) => names.includes(name) && (result.denied || !SHOWN[result.result]?.includes(name));
  const main = data.about[result.result].headline.filter(free).slice(0, MOST_MAIN);
  const isBeside = (name) => name.endsWith("_error") && names.includes(name.slice(0, -"_error".length));
  const rest = names.filter((name) => free(name) && !main.includes(name) && !isBeside(name));
  if (!names.length) return numbersOf(result);
  return [main.map((name) => figureOf(result, name, said)), rest.length
    ? waiting(spoken("Other numbers: {names}", { names: rest.map(factName).join(spoken(", ")) }), () => el("div", {}, rest.map((name) => figureOf(result, name)))) : null];
}

// where nothing can be called found, numbers stand behind a heading and are not ranked
const withheld = (draw) => [el("p", { class: "soft" }, spoken("Nothing here is called found: the notes above say why.")), waiting(spoken("The numbers"), () => el("div", {}, draw()))];

const content = (result) => {
  if (result.denied) return withheld(() => [tensorsOf(result), fieldsOf(result)]);
  const own = VIEWS[result.result]?.(result);
  return [factsOf(entriesOf(result).filter((entry) => !isSaid(result)(entry)), (name) => meaning(result, name)), own === null || own === undefined || own.matches("figure") ? own : el("figure", { class: "result" }, own), tensorsOf(result), wordLists(result), fieldsOf(result), inside(result)];
};

// results within a result: tables of a sweep, circuits of a range of thresholds
function inside(result) {
  const found = entriesOf(result).flatMap(([name, value]) => (isResult(value) ? [[name, value]]
    : value && typeof value === "object" && !isTensor(value) ? Object.entries(value).filter(([, v]) => isResult(v)).map(([key, v]) => [Array.isArray(value) ? `${name} ${Number(key) + 1}${v.threshold === undefined ? "" : spoken(": threshold {threshold}", { threshold: v.threshold })}` : key, v]) : []));
  return found.map(([name, value], i) => (i < 2 ? el("div", { class: "nested" }, el("h3", {}, sentence(name)), content(value))
    : waiting(sentence(name), () => el("div", {}, content(value)))));
}

// ---- patching: both directions beside each other, family by family

function patchingSection(id, sweeps) {
  const families = [...new Set(sweeps.flatMap((sweep) => Object.keys(sweep.tables)))];
  const one = (sweep, family) => {
    const table = sweep.tables[family];
    return table ? el("div", {}, sweeps.length > 1 ? el("h4", {}, sentence(sweep.direction)) : null, tensorsOf(table, false)) : null;
  };
  const facts = sweeps.map((sweep) => el("p", { class: "soft small" }, spoken("{direction}: {n} cells, for {work} of the work of one whole run each.",
    { direction: sentence(sweep.direction), n: count(sweep.rows), work: percent(sweep.work) })));
  const tables = Object.values(sweeps[0].tables);
  const maps = () => families.map((family) => el("div", { class: "family" }, el("h3", { class: "mono" }, family),
    el("div", { class: sweeps.length > 1 ? "columns pairs" : "stack" }, sweeps.map((sweep) => one(sweep, family)))));
  return section(id, sweeps[0].denied ? spoken("{title}: nothing found", { title: kindName("Patching") }) : kindName("Patching"),
    [READERS.Patched[0], " ", spoken("Denoising puts clean values into the corrupt run: what is enough. Noising puts corrupt values into the clean run: what is needed."), " ", READERS.Patched[1].carried],
    facts, sweeps[0].denied ? withheld(maps) : maps(), tables.length ? fieldsOf(tables[0]) : null);
}

// ---- the page

// a place in the text that was read, counted from its end or its beginning: its index and its token
function placeAsked(place) {
  const row = Object.values(data.reading?.tokens ?? {}).at(-1)?.[0] ?? [];
  const at = place < 0 ? row.length + place : place;
  return row[at] === undefined ? place : `${at} ${visible(row[at])}`;
}

const heading = (names, model) => (model ? spoken("{names} in {model}", { names, model: model.name }) : names);

function header() {
  const model = data.model;
  const names = [...new Set(data.results.map((result) => kindName(result.result)))];
  const facts = model ? [["parameters", model.parameters], ["layers", model.n_layers], ["heads", model.n_heads], ["width", model.d_model], ["context", contextOf(model)], ["attention", (model.mechanisms ?? []).join(spoken(", "))]] : [];
  // a text stands below as its tokens; what was not asked for need not be said
  const asked = Object.entries(data.given ?? {}).map(([name, value]) => [name, ["position", "positions", "query", "key"].includes(name) ? [value].flat().map(placeAsked) : value]).filter(([name, value]) => value !== false && !(data.reading && ["text", "target"].includes(name)));
  return el("header", { class: "top" },
    el("p", { class: "brand" }, el("strong", {}, "glassformer"), data.command ? ` ${data.command}` : spoken(" · results of analyses")),
    el("h1", {}, heading(names.length > 3 ? spoken("{names} and more", { names: names.slice(0, 3).join(spoken(", ")) }) : names.join(spoken(", ")), model)),
    notesCard(data.notes?.filter((note) => note.denies)), factsOf(facts.filter(([, value]) => value !== undefined && value !== null)),
    asked.length ? el("div", { class: "card given" }, el("h2", {}, spoken("What was asked")), factsOf(asked, undefined, ASKED)) : null,
    data.reading ? readingCard(data.reading) : null, notesCard(data.notes?.filter((note) => !note.denies)), ofCard(data.provenance));
}

// the first row of each side; a token's index shows when it is pointed at
function readingCard({ tokens, marks }) {
  return el("div", { class: "card" }, el("h2", {}, spoken("What it read")),
    Object.entries(tokens).map(([name, rows]) => el("div", {}, name === "reads" && rows.length === 1 && Object.keys(tokens).length === 1 ? null
      : el("p", { class: "soft small" }, rows.length > 1 ? spoken("{name}, the first of {n}", { name: spoken(name), n: rows.length }) : spoken(name)), strip(marking([...(rows[0] ?? [])], marks?.[name] ?? [])))));
}

const READING = [
  [spoken("colour"), spoken("Blue is below zero and orange above where numbers have a sign; otherwise darker (on a dark page: lighter) is more. Colour follows the square root of size, so small numbers show.")],
  [spoken("empty cells"), spoken("Grey cells and dashes are not defined: a position after the query, a layer with fewer heads.")],
  [spoken("±"), spoken("Standard error of the mean over prompts or samples; a single one is chosen from the list above a picture.")],
  [spoken("pale cells"), spoken("No surer than noise: nearer to zero than two standard errors. Their numbers are grey.")],
  [spoken("maps"), spoken("Point at a cell, or focus the map and use the arrow keys (with Shift: ten at a time); its number stands below, with the row as a text where columns are tokens.")],
];

const longestRead = () => Math.max(0, ...Object.values(data.reading?.tokens ?? {}).flat().map((row) => row.length));

const reading = () => section("reading", spoken("How to read this page"), spoken("One line for each convention."),
  el("dl", { class: "words" }, [...READING, ...trainedWords(TRAINED, longestRead())].map(([term, words]) => el("div", {}, el("dt", {}, term), el("dd", {}, words)))));

function build() {
  const sections = [];
  const sweeps = data.results.filter((result) => result.result === "Patching");
  const titles = data.results.map(titleOf);
  data.results.forEach((result, i) => {
    if (result.result !== "Patching") {
      const same = titles.slice(0, i).filter((t) => t === titles[i]).length;
      const title = same ? `${titles[i]} (${same + 1})` : titles[i];
      sections.push([title, section(`result-${i + 1}`, title, answers(result), content(result))]);
    } else if (result === sweeps[0]) {
      sections.push([kindName("Patching"), patchingSection(`result-${i + 1}`, sweeps)]);
    }
  });
  frame(header(), [...sections, [spoken("How to read"), reading()]], data.model ? spoken("Drawn from results of {model}.", { model: data.model.name }) : spoken("Drawn from results of analyses."));
}

build();
