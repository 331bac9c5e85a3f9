// Labelled tensors as a page holds them: unpacking, picking and averaging along axes, and how numbers and labels read.

class Tensor {
  // numbers come packed, as nested lists, or as they are kept; rows: labels that differ from row to row of `batch`
  constructor({ axes, coords, rows = {}, shape, float32, values, signed, share = false }) {
    Object.assign(this, { axes, coords, rows, share, shape: shape ?? sizesOf(values), signed });
    // base64 of little-endian numbers, as every machine with a browser keeps them
    if (float32 !== undefined) this.values = new Float32Array(Uint8Array.from(atob(float32), (c) => c.charCodeAt(0)).buffer);
    else this.values = values instanceof Float32Array ? values : Float32Array.from([values].flat(Infinity), (x) => x ?? NaN);
  }

  size(axis) { return this.shape[this.axes.indexOf(axis)]; }
  labels(axis) { return this.coords[axis] ?? Array.from({ length: this.size(axis) }, (_, i) => i); }

  // the number at an index per axis; null where there is none
  at(...index) {
    const value = this.values[index.reduce((flat, i, d) => flat * this.shape[d] + i, 0)];
    return Number.isNaN(value) ? null : value;
  }

  // without an axis: each entry is made of the numbers along it
  reduced(axis, make) {
    const d = this.axes.indexOf(axis);
    const n = this.shape[d];
    const inner = this.shape.slice(d + 1).reduce((a, b) => a * b, 1);
    const values = new Float32Array(this.values.length / n);
    for (let i = 0; i < values.length; i++) {
      const start = Math.floor(i / inner) * inner * n + (i % inner);
      values[i] = make((j) => this.values[start + j * inner], n);
    }
    const without = (list) => list.filter((_, i) => i !== d);
    const rows = axis === "batch" ? {} : Object.fromEntries(Object.entries(this.rows).filter(([name]) => name !== axis));
    return new Tensor({ ...this, axes: without(this.axes), rows, shape: without(this.shape), values });
  }

  // one row of a batch brings its own labels, and leaves its padding behind
  pick(axis, i) {
    const picked = this.reduced(axis, (entry) => entry(i));
    return axis !== "batch" ? picked : Object.entries(this.rows).reduce((t, [name, byRow]) => t.named(name, byRow[i]), picked);
  }

  // with labels along an axis, and without the entries that have none
  named(axis, labels) {
    const d = this.axes.indexOf(axis);
    const real = labels.flatMap((label, i) => (label === null ? [] : [i]));
    const inner = this.shape.slice(d + 1).reduce((a, b) => a * b, 1);
    const shape = this.shape.map((n, i) => (i === d ? real.length : n));
    const values = Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, (_, flat) => {
      const [outer, at] = [Math.floor(flat / (inner * real.length)), Math.floor(flat / inner) % real.length];
      return this.values[(outer * labels.length + real[at]) * inner + (flat % inner)];
    });
    return new Tensor({ ...this, coords: { ...this.coords, [axis]: real.map((i) => labels[i]) }, shape, values });
  }

  mean(axis) { return this.reduced(axis, (entry, n) => moments(entry, n)[0]); }
  error(axis) { return this.reduced(axis, (entry, n) => moments(entry, n)[1]); }

  // largest size, and whether numbers have a sign: by what the result says, or because one is negative beyond rounding
  range() {
    let [most, least] = [0, 0];
    for (const x of this.values) {
      if (Math.abs(x) > most) most = Math.abs(x);
      if (x < least) least = x;
    }
    // shares of a whole are comparable from picture to picture, whatever the largest is
    const isSigned = this.signed === true || least < -1e-6 * most;
    return { limit: this.share ? 1 : most || 1, isSigned };
  }
}

const sizesOf = (nested) => (Array.isArray(nested) ? [nested.length, ...sizesOf(nested[0])] : []);

// mean and standard error of the entries that are numbers
function moments(entry, n) {
  let [sum, square, counted] = [0, 0, 0];
  for (let j = 0; j < n; j++) {
    const x = entry(j);
    if (Number.isNaN(x)) continue;
    sum += x;
    square += x * x;
    counted++;
  }
  const mean = sum / counted;
  const variance = Math.max(0, square / counted - mean * mean) * (counted / (counted - 1));
  return counted ? [mean, counted > 1 ? Math.sqrt(variance / counted) : NaN] : [NaN, NaN];
}

// about three digits, whatever the size
function compact(x, isSigned = false) {
  if (x === null || Number.isNaN(x)) return "–";
  const size = Math.abs(x);
  if (size !== 0 && (size < 0.0005 || size >= 1e5)) return x.toExponential(1).replace(/-/g, "−");
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return isSigned ? signed(x, digits) : plain(x, digits);
}

// two digits beside numbers as large as `limit`, three from one on: what is nothing beside them reads as nothing
function beside(x, limit, isSigned) {
  if (limit >= 1e5 || limit < 1e-3) return compact(x, isSigned);
  const digits = Math.max(0, Math.min(5, (limit < 1 ? 1 : 2) - Math.floor(Math.log10(limit) + 1e-6)));
  if (Number(fixed(x, digits)) === 0) return "0";
  return isSigned ? signed(x, digits) : plain(x, digits);
}

// ---- labels: a place in a text is its index and its token

const TOKENS = new Set(["pos", "query", "key", "position"]);
const AXES = new Map(Object.entries({
  pos: spoken("position"), query: spoken("query"), key: spoken("key"), position: spoken("position"), layer: spoken("layer"), head: spoken("head"), site: spoken("site"),
  component: spoken("component"), metric: spoken("metric"), batch: spoken("batch"), neuron: spoken("neuron"), sample: spoken("sample"), prompt: spoken("prompt"),
  kind: spoken("kind"), measure: spoken("measure"), number: spoken("number"), shade: spoken("shade"), text: spoken("text"), "part of it": spoken("part of it"), condition: spoken("condition"),
  intervention: spoken("intervention"), variant: spoken("variant"), weights: spoken("weights"), depth: spoken("depth"),
  mechanism: spoken("mechanism"), call: spoken("call"), length: spoken("length"), cost: spoken("cost"), threshold: spoken("threshold"),
}));
const axisName = (axis) => AXES.get(axis) ?? axis.replaceAll("_", " ");
const OF_OURS = new Set(["call", "mechanism"]); // whose labels are words of ours, and no tokens
const LETTERS = { layer: "L", head: "H" };

// what analyses of ours call their conditions, variants and measures; heads, sites and whatever users name stay as they are
const OURS = new Set(["condition", "intervention", "variant", "weights", "measure", "outcome", "component", "metric", "kind"]);
const CALLED = new Set([spoken("as it is"), spoken("first key masked"), spoken("first token dropped"), spoken("first token replaced"), spoken("neutral tokens in front"),
  spoken("window"), spoken("window with first keys"), spoken("without all of them"), spoken("first key cut"), spoken("earlier"), spoken("constants"), spoken("trained"),
  spoken("initial"), spoken("attention only"), spoken("+ MLP"), spoken("+ skip"), spoken("full"), spoken("written first"), spoken("written others"),
  spoken("value size ratio"), spoken("key size ratio"), spoken("score above others"), spoken("calibration error"), spoken("probability"), spoken("logit difference"), spoken("state"), spoken("mlp"), spoken("attn")]);
function called(label) {
  const part = /^without (L\d+ \w+)$/.exec(label);
  const said = part ? spoken("without {part}", { part: part[1] }) : spoken(label);
  return part || CALLED.has(said) ? said : label;
}

const placed = (label) => /^(\D*?)(\d+):([\s\S]*)$/.exec(String(label));
const readable = (text) => [...String(text)].map((c) => (c === " " ? c : marked(c) ?? c)).join("");
const placeOf = (site) => String(site).replace(/^(?:(\w+)\.)?blocks\.(\d+)\.(?:resid_)?(.+)$/, (_, stack, layer, rest) => `${stack ? `${stack} ` : ""}L${layer} ${rest}`);
const named = (axis, label) => (typeof label === "number" ? `${LETTERS[axis] ?? ""}${label}` : axis === "site" ? spokenLabel(placeOf(label))
  : OF_OURS.has(axis) ? spoken(String(label)) : OURS.has(axis) ? readable(called(label)) : readable(label));

function cut(text, most) {
  const characters = [...text];
  return characters.length <= most ? text : `${characters.slice(0, most - 1).join("")}…`;
}

function labelText(axis, label, most = 18) {
  const match = TOKENS.has(axis) ? placed(label) : null;
  return match ? `${match[1]}${match[2]} ${shortened(match[3], most - 4)}` : cut(named(axis, label), most);
}

function labelNode(axis, label) {
  const match = TOKENS.has(axis) ? placed(label) : null;
  if (match) return [`${axisName(axis)} ${match[1]}${match[2]} `, chip(match[3])];
  return [typeof label === "number" ? `${axisName(axis)} ${label}` : el("span", { class: "mono" }, named(axis, label))];
}

const textOfToken = (label) => placed(label)?.[3] ?? String(label);
// not where some places have a number alone, since texts differ there
const isText = (tensor, axis) => TOKENS.has(axis) && tensor.labels(axis).every((label) => placed(label) !== null);

// regions that scroll need names of their own
const regions = new Map();
function distinct(name) {
  regions.set(name, (regions.get(name) ?? 0) + 1);
  return regions.get(name) === 1 ? name : `${name} (${regions.get(name)})`;
}
const room = (name, ...children) => scroller(distinct(name), ...children);
const tallRoom = (name, ...children) => el("div", { class: "scroll scroll-both", tabindex: 0, role: "region", "aria-label": distinct(name) }, children);

// words with `code` in backticks
const inCode = (words) => words.split("`").map((part, i) => (i % 2 ? el("code", {}, part) : part));

// ---- choosing among entries of an axis

function choice(name, labels, first, chosen, now = 0) {
  const list = el("select", { onchange: (event) => chosen(Number(event.target.value)) },
    first === null ? null : el("option", { value: -1 }, first),
    labels.map((label, i) => el("option", { value: i, selected: first === null && i === now }, labelText(name, label, 40))));
  return el("label", { class: "choice" }, el("span", {}, axisName(name)), list);
}
