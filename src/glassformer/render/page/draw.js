// What every page draws with: nodes, tokens, numbers, colour ramps, bars, strips, and the frame around the sections.
// Text from the payload only ever becomes a text node, so no token can turn into markup.

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// ---- words in the language of the page: DICTIONARY stands before this script, and is empty on an English page

// English words with a slot in braces for each value, said; with a node among the values a list, as `el` takes it
function spoken(english, values) {
  const said = DICTIONARY.get(english) ?? english;
  if (!values) return said;
  const parts = said.split(/\{(\w+)\}/).map((part, i) => (i % 2 ? values[part] : part));
  return parts.some((part) => typeof part === "object" && part !== null) ? parts : parts.join("");
}

// the names of components and of places in the model are said word by word
const LABELS = new Map(Object.entries({
  enc: spoken("enc"), embed: spoken("embed"), block: spoken("block"), token: spoken("token"), position: spoken("position"), attn: spoken("attn"),
  cross: spoken("cross"), mlp: spoken("mlp"), "norm bias": spoken("norm bias"), bias: spoken("bias"), final: spoken("final"), readout: spoken("readout"),
  unembed: spoken("unembed"),
}));
const spokenLabel = (label) => String(label).replace(/norm bias|\b[a-z]+\b/g, (word) => LABELS.get(word) ?? word);

const listed = (parts) => parts.flatMap((part, i) => [i ? spoken(", ") : "", part]);

// ---- tokens: white space and control characters get a visible mark

const MARKS = { " ": "·", "\n": "⏎", "\r": "␍", "\t": "⇥" };
const UNSEEN = /[\p{C}\p{Z}]/u; // controls, formats (such as the ones that turn the direction of text), other spaces

function marked(character) {
  if (MARKS[character] || !UNSEEN.test(character)) return MARKS[character] ?? null;
  return `⟨${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`;
}

const visible = (text) => (text === "" ? "∅" : [...text].map((c) => marked(c) ?? c).join(""));

function token(text, attributes = {}) {
  const node = el("span", { ...attributes, class: `token ${attributes.class ?? ""}`.trim() });
  if (text === "") node.append(el("span", { class: "mark" }, "∅"));
  let seen = "";
  for (const character of text) {
    const mark = marked(character);
    if (mark === null) {
      seen += character;
      continue;
    }
    node.append(seen, el("span", { class: "mark" }, mark));
    seen = "";
  }
  node.append(seen);
  return node;
}

const chip = (text) => token(text, { class: "chip" });

function shortened(text, most) {
  const characters = [...visible(text)];
  return characters.length <= most ? characters.join("") : characters.slice(0, most - 1).join("") + "…";
}

// ---- numbers

const fixed = (x, digits = 2) => Math.abs(x).toFixed(digits);
const plain = (x, digits = 2) => (x < 0 && Number(fixed(x, digits)) !== 0 ? "−" : "") + fixed(x, digits);
const signed = (x, digits = 2) => (Number(fixed(x, digits)) === 0 ? "" : x < 0 ? "−" : "+") + fixed(x, digits);
const count = (n) => Math.round(n).toLocaleString("en-US");
const vocabularies = (m) => m.output_vocab_size == null ? count(m.vocab_size)
  : spoken("{read} read, {predicted} predicted", { read: count(m.vocab_size), predicted: count(m.output_vocab_size) });
const number = (text, attributes = {}) => el("span", { class: "number", ...attributes }, text);

function percent(p) {
  if (p === 0) return "0 %";
  const value = 100 * p;
  if (value < 0.001) return "<0.001 %";
  return `${value >= 10 ? value.toFixed(1) : value >= 0.1 ? value.toFixed(2) : value.toPrecision(2)} %`;
}

// ---- colour: ramps whose lightness never turns back, so that they read in grey and with any colour vision

const DARK = matchMedia("(prefers-color-scheme: dark)");
const PRINT = matchMedia("print");
const currentTheme = () => (DARK.matches && !PRINT.matches ? "dark" : "light");
let theme = currentTheme();

const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);

// `RAMPS` stands before this script: every colour of each ramp, six hexadecimal digits after six
const unpackedRamp = (digits) => digits.match(/.{6}/g).map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
const TABLES = Object.fromEntries(
  Object.entries(RAMPS).map(([name, ramps]) => [
    name, { sequential: unpackedRamp(ramps.sequential), diverging: unpackedRamp(ramps.diverging) },
  ]),
);

// the square root spreads small weights: 0.01 is a tenth of the way up, 0.25 half of it
const stretch = (x) => Math.sign(x) * Math.sqrt(Math.min(1, Math.abs(x)));

function colour(value, limit, isSigned) {
  const t = limit > 0 ? stretch(value / limit) : 0;
  const table = TABLES[theme];
  return isSigned ? table.diverging[Math.round(128 + 128 * t)] : table.sequential[Math.round(256 * Math.max(0, t))];
}

const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

// black or white, whichever contrasts more: at least 4.58 : 1 on any colour
function ink([r, g, b]) {
  const luminance = 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  return luminance > 0.179 ? "#000000" : "#ffffff";
}

const painters = [];

// colours depend on the theme: paint now, and again whenever it changes
function painted(node, paint) {
  painters.push(() => paint(node));
  paint(node);
  return node;
}

function repaint() {
  theme = currentTheme();
  painters.forEach((paint) => paint());
}

DARK.addEventListener("change", repaint);
PRINT.addEventListener("change", repaint);

function shade(node, value, limit, isSigned) {
  const fill = colour(value, limit, isSigned);
  node.style.backgroundColor = css(fill);
  node.style.color = ink(fill);
}

const shaded = (node, value, limit, isSigned) => painted(node, () => shade(node, value, limit, isSigned));

const TICK_ROOM = 8; // characters from one tick to the next

function legend(limit, isSigned, words) {
  const canvas = el("canvas", { width: 256, height: 1, "aria-hidden": "true" });
  painted(canvas, () => {
    const table = TABLES[theme][isSigned ? "diverging" : "sequential"];
    const context = canvas.getContext("2d");
    for (let x = 0; x < 256; x++) {
      context.fillStyle = css(table[x]);
      context.fillRect(x, 0, 1, 1);
    }
  });
  const marks = isSigned ? [-1, -0.25, 0, 0.25, 1] : [0, 0.05, 0.25, 0.5, 1];
  const size = (m) => String(Number((Math.abs(m) * limit).toPrecision(2)));
  const name = (m) => (!isSigned || m === 0 ? size(m) : `${m < 0 ? "−" : "+"}${size(m)}`);
  // the first and last begin and end with the scale, those between are centred: long ones would touch
  const [outer, inner] = [name(marks[0]), name(marks[1])];
  const isRoomy = outer.length + inner.length / 2 <= TICK_ROOM;
  const ticks = marks.filter((m) => isRoomy || [-1, 0, 1].includes(m)).map((m) => {
    const left = isSigned ? 50 + 50 * stretch(m) : 100 * stretch(m);
    return el("span", { style: `left:${left}%` }, name(m));
  });
  return el("div", { class: "legend" },
    el("div", { class: "scale" }, canvas, el("div", { class: "ticks", "aria-hidden": "true" }, ticks)),
    el("span", {}, words));
}

// ---- bars: a table whose last column is the drawing

// rows: {name: node | text, value, cells: [text], className}
function bars({ caption, heads, rows, isSigned = false, limit }) {
  const low = isSigned ? Math.min(0, ...rows.map((r) => r.value)) : 0;
  const high = limit ?? Math.max(0, ...rows.map((r) => r.value));
  const span = high - low || 1;
  const zero = (-low / span) * 100;
  const drawing = (row) => {
    const width = (Math.abs(row.value) / span) * 100;
    const left = row.value < 0 ? zero - width : zero;
    const kind = row.bar ?? (isSigned ? (row.value < 0 ? "negative" : "positive") : "");
    const bar = el("span", { class: `bar ${kind}`.trim(), style: isSigned ? `left:${left}%;width:${width}%` : `width:${width}%` });
    return isSigned ? el("span", { class: "axis", style: `--zero:${zero}%` }, bar) : bar;
  };
  return el("table", { class: "bars" },
    caption && el("caption", {}, caption),
    el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, heads[0]),
      heads.slice(1).map((head) => el("th", { scope: "col", class: "number" }, head)),
      el("td", { "aria-hidden": "true" }))),
    el("tbody", {}, rows.map((row) => el("tr", { class: row.className },
      el("th", { scope: "row" }, row.name),
      row.cells.map((cell) => el("td", { class: "number" }, cell)),
      el("td", { class: "track", "aria-hidden": "true" }, drawing(row))))));
}

const scroller = (label, ...children) => el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, children);

// ---- a text as a strip of tokens, shaded by weight; lines break where the text breaks.
// `once` leaves repainting after a change of theme to the caller; `format` says a weight in words

// what is odd about tokens, by the list of their texts: words a model does not know, bytes of one character
const oddities = new WeakMap();

function marking(texts, marks) {
  if (marks.length) oddities.set(texts, new Map(marks.map((mark) => [mark.index, mark])));
  return texts;
}

// the tokens that are one character, together under it
function grouped(pieces, odd) {
  const found = [];
  pieces.forEach((piece, i) => {
    const mark = odd.get(i);
    if (piece === null) return;
    if (mark?.character && mark.part === 0) {
      found.push(el("span", { class: "spelled" }, el("span", { class: "character" }, mark.character), el("span", { class: "bytes" })));
    }
    if (mark?.character) found.at(-1).lastChild.append(...[piece].flat());
    else found.push(piece);
  });
  return found;
}

// the spaces of a token that holds a new line belong to the line after it
const atBreak = (text) => { const end = text.lastIndexOf("\n") + 1; return [text.slice(0, end), text.slice(end)]; };

// of a long text, the tokens around those of the largest weights; all of a short one
const WHOLE = 120, TELLING = 8, AROUND = 4;

function tellingPlaces(tokens, weights, here) {
  if (tokens.length <= WHOLE) return null;
  const odd = oddities.get(tokens);
  const largest = [...weights.keys()].sort((i, j) => Math.abs(weights[j]) - Math.abs(weights[i])).slice(0, TELLING);
  const places = new Set();
  for (const i of here === null ? largest : [...largest, here]) {
    let [first, last] = [Math.max(0, i - AROUND), Math.min(tokens.length - 1, i + AROUND)];
    while (odd?.get(first)?.part > 0) first--; // no part of a character without the others
    while (odd?.get(last + 1)?.part > 0) last++;
    for (let at = first; at <= last; at++) places.add(at);
  }
  return places;
}

// a strip of what tells, and behind a heading the whole of a long text
function tellingStrip(tokens, options) {
  const places = tellingPlaces(tokens, options.weights, options.here ?? null);
  if (places === null) return strip(tokens, options);
  return [strip(tokens, { ...options, places }), waiting(spoken("All {n} tokens", { n: count(tokens.length) }), () => strip(tokens, options))];
}

// drawn when it is first opened: a page may carry dozens of them
function waiting(title, make) {
  const room = el("div", { class: "waiting" });
  const draw = (event) => {
    if (!event.target.open || !room.classList.contains("waiting")) return;
    room.append(make());
    room.classList.remove("waiting");
  };
  return el("details", { ontoggle: draw }, el("summary", {}, title), room);
}

function strip(tokens, { places = null, weights = null, limit = 1, isSigned = false, here = null, ahead = false, once = false, format = null } = {}) {
  const pieces = tokens.map((text, i) => {
    if (places && !places.has(i)) return null;
    const gap = places && !places.has(i - 1) ? el("span", { class: "gap" }, i ? "… " : "", i ? `${i}` : "") : null;
    const weight = weights ? weights[i] ?? 0 : null;
    const value = weight === null ? "" : `: ${format ? format(weight) : isSigned ? signed(weight, 3) : percent(weight)}`;
    const unknown = oddities.get(tokens)?.get(i)?.unknown;
    const classes = [i === here && "here", unknown && "unknown", ahead && i > here && "ahead"].filter(Boolean).join(" ");
    const [line, indent] = atBreak(text);
    const node = token(line || text, { class: classes, title: `${i} “${visible(text)}”${unknown ? spoken(", unknown to the model") : ""}${value}` });
    if (line && indent) {
      node.append(el("br"), ...token(indent).childNodes);
      node.classList.add("broken");
    }
    if (weight !== null) {
      node.classList.add("shaded");
      (once ? shade : shaded)(node, weight, limit, isSigned);
    }
    const breaks = line && !indent && !(tokens[i + 1] ?? "\n").startsWith("\n"); // blank lines take no room
    return gap || breaks ? [gap, node, breaks ? el("br") : null].filter(Boolean) : node;
  });
  return el("div", { class: `strip${weights ? "" : " plain"}${tokens.length > 100 && !places ? " long" : ""}` }, oddities.has(tokens) ? grouped(pieces, oddities.get(tokens)) : pieces, places && !places.has(tokens.length - 1) ? el("span", { class: "gap" }, "…") : null);
}

// the largest entries of a mixture in words, and what is left over; `rest: false` where a sum means nothing
function inWords(tokens, weights, { isSigned = false, most = 4, rest: summed = true } = {}) {
  const order = [...weights.keys()].sort((i, j) => Math.abs(weights[j]) - Math.abs(weights[i])).slice(0, most);
  const named = order.filter((i) => Math.abs(weights[i]) >= 0.005);
  const rest = weights.reduce((sum, w) => sum + w, 0) - named.reduce((sum, i) => sum + weights[i], 0);
  const value = (w) => number(isSigned ? signed(w, 3) : percent(w));
  const parts = named.map((i, n) => [chip(tokens[i]), " ", el("span", { class: "soft" }, spoken("at {place} ", { place: i })), value(weights[i]), summed || n < named.length - 1 ? spoken(", ") : spoken(".")]);
  if (!summed) return el("p", {}, parts);
  return el("p", {}, parts, spoken("{n} others ", { n: weights.length - named.length }), value(Math.max(isSigned ? rest : 0, rest)), spoken("."));
}

// how many tokens a model takes, and how many its training gave it at once
const contextOf = (model) => (model.trained_length
  ? spoken("{n} tokens, trained on {trained}", { n: count(model.max_len), trained: count(model.trained_length) }) : spoken("{n} tokens", { n: count(model.max_len) }));

// ---- what must be known, and what everything is of

// what the line on maps is, where a text goes beyond the rows that the model was trained on
const trainedWords = (trained, longest) => (trained !== null && longest > trained
  ? [[spoken("red line"), spoken("On maps over tokens, before position {place}: from there on the text is longer than any in training.", { place: count(trained) })]] : []);

// `shown` makes what `el` takes of the words of a note
const notesCard = (notes, shown = (words) => words) => (notes?.length ? el("ul", { class: "card notes" },
  notes.map(({ seen, meaning, advice }) => el("li", {}, shown([seen, meaning, advice].filter(Boolean).map((words) => spoken(words)).join(spoken(" ")))))) : null);

function ofCard(of) {
  if (!of) return null;
  const weights = of.digest || (of.why ? spoken("not known: {why}", { why: spoken(of.why) }) : null);
  const rows = [[spoken("analysis"), of.analysis], [spoken("model"), of.model], [spoken("weights"), weights],
    [spoken("trained on"), of.trained_length ? spoken("{n} tokens", { n: count(of.trained_length) }) : null],
    [spoken("dtype"), of.dtype], [spoken("device"), of.device], [spoken("seed"), of.seed], ["glassformer", of.version], ["PyTorch", of.torch],
    ...(of.input ?? []).map(({ shown, size, sha256 }) => [spoken("input"), `${visible(spoken(shown))} (${spoken(size)}${sha256 ? `, sha256 ${sha256.slice(0, 16)}` : ""})`])];
  return el("details", { class: "of" }, el("summary", {}, spoken("Model, weights and versions behind these numbers")),
    el("dl", { class: "facts" }, rows.filter(([, value]) => value !== null && value !== undefined && value !== "")
      .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value))))));
}

// ---- a note that follows the pointer

const tip = el("div", { class: "tip", "aria-hidden": "true" });

function showTip(event, ...content) {
  tip.replaceChildren(...content);
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - box.width - 8)}px`;
  tip.style.top = `${Math.max(8, event.clientY - box.height - 10)}px`;
  tip.style.visibility = "visible";
}

const hideTip = () => { tip.style.visibility = "hidden"; };

// ---- the frame: a section under its heading, and the page around all sections

function section(id, title, gloss, ...content) {
  return el("section", { id, "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title), el("p", { class: "gloss" }, gloss), content);
}

// sections: [name among the links, node], or null where there is nothing to show; source: what they were drawn from.
// `data` is the document, which the page's own script reads
function frame(header, sections, source) {
  const present = sections.filter(Boolean);
  const links = present.map(([name, node]) => el("li", {}, el("a", { href: `#${node.id}` }, name)));
  document.body.append(
    el("a", { class: "skip", href: "#main" }, spoken("Skip to the sections")),
    el("div", { class: "frame" }, header,
      el("nav", { "aria-label": spoken("Sections") }, el("div", {}, el("p", { class: "title" }, "glassformer"), el("ul", {}, links))),
      el("main", { id: "main" }, present.map(([, node]) => node)),
      el("footer", {}, source, spoken(" Everything shown is in this file, as the JSON document “{format}”, version {version}.", { format: data.format, version: data.version }))));
}
