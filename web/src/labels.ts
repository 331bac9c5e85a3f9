// Labels of axes and of their entries: a place in a text is its index and its token.

import type { Label, Tensor } from "./tensor";
import { readable, shortened } from "./tokens";
import { chip, cut, mono, spoken, spokenLabel, type Piece } from "./words";

/** Axes whose entries are places in a text. */
export const TOKENS = new Set(["pos", "query", "key", "position"]);

const AXES = new Map(
  Object.entries({
    pos: spoken("position"),
    query: spoken("query"),
    key: spoken("key"),
    position: spoken("position"),
    layer: spoken("layer"),
    head: spoken("head"),
    site: spoken("site"),
    component: spoken("component"),
    metric: spoken("metric"),
    batch: spoken("batch"),
    neuron: spoken("neuron"),
    sample: spoken("sample"),
    prompt: spoken("prompt"),
    kind: spoken("kind"),
    measure: spoken("measure"),
    number: spoken("number"),
    shade: spoken("shade"),
    text: spoken("text"),
    "part of it": spoken("part of it"),
    condition: spoken("condition"),
    intervention: spoken("intervention"),
    variant: spoken("variant"),
    weights: spoken("weights"),
    depth: spoken("depth"),
    mechanism: spoken("mechanism"),
    call: spoken("call"),
    length: spoken("length"),
    cost: spoken("cost"),
    threshold: spoken("threshold"),
  }),
);

export const axisName = (axis: string): string => AXES.get(axis) ?? axis.replaceAll("_", " ");

const OF_OURS = new Set(["call", "mechanism"]); // whose labels are words of ours, and no tokens
const LETTERS: Readonly<Record<string, string>> = { layer: "L", head: "H" };

// what analyses of ours call their conditions, variants and measures; heads, sites and what users name stay as they are
const OURS = new Set([
  "condition",
  "intervention",
  "variant",
  "weights",
  "measure",
  "outcome",
  "component",
  "metric",
  "kind",
]);
const CALLED = new Set([
  spoken("as it is"),
  spoken("first key masked"),
  spoken("first token dropped"),
  spoken("first token replaced"),
  spoken("neutral tokens in front"),
  spoken("window"),
  spoken("window with first keys"),
  spoken("without all of them"),
  spoken("first key cut"),
  spoken("earlier"),
  spoken("constants"),
  spoken("trained"),
  spoken("initial"),
  spoken("attention only"),
  spoken("+ MLP"),
  spoken("+ skip"),
  spoken("full"),
  spoken("written first"),
  spoken("written others"),
  spoken("value size ratio"),
  spoken("key size ratio"),
  spoken("score above others"),
  spoken("calibration error"),
  spoken("probability"),
  spoken("logit difference"),
  spoken("state"),
  spoken("mlp"),
  spoken("attn"),
]);

function called(label: string): string {
  const part = /^without (L\d+ \w+)$/.exec(label);
  const said = part ? spoken("without {part}", { part: part[1] }) : spoken(label);
  return part || CALLED.has(said) ? said : label;
}

/** The parts of a label that names a place: words before the index, the index, and the token behind it. */
export const placed = (label: Label): RegExpExecArray | null => /^(\D*?)(\d+):([\s\S]*)$/.exec(String(label));

/** A site as a place in the model: `blocks.3.attn.z` is `L3 attn.z`. */
export const placeOf = (site: Label): string =>
  String(site).replace(
    /^(?:(\w+)\.)?blocks\.(\d+)\.(?:resid_)?(.+)$/,
    (_, stack, layer, rest) => `${stack ? `${stack} ` : ""}L${layer} ${rest}`,
  );

const named = (axis: string, label: Label): string =>
  typeof label === "number"
    ? `${LETTERS[axis] ?? ""}${label}`
    : axis === "site"
      ? spokenLabel(placeOf(label))
      : OF_OURS.has(axis)
        ? spoken(String(label))
        : OURS.has(axis)
          ? readable(called(label))
          : readable(label);

export function labelText(axis: string, label: Label, most = 18): string {
  const match = TOKENS.has(axis) ? placed(label) : null;
  return match ? `${match[1]}${match[2]} ${shortened(match[3], most - 4)}` : cut(named(axis, label), most);
}

export function labelPiece(axis: string, label: Label): readonly Piece[] {
  const match = TOKENS.has(axis) ? placed(label) : null;
  if (match) return [`${axisName(axis)} ${match[1]}${match[2]} `, chip(match[3])];
  return [typeof label === "number" ? `${axisName(axis)} ${label}` : mono(named(axis, label))];
}

export const textOfToken = (label: Label): string => placed(label)?.[3] ?? String(label);

/** Whether an axis is a text: not where some places have a number alone, since texts differ there. */
export const isText = (tensor: Tensor, axis: string): boolean =>
  TOKENS.has(axis) && tensor.labels(axis).every((label) => placed(label) !== null);

/** A text is read from its end: its last position has seen all of it. */
export const firstOf = (tensor: Tensor, axis: string): number => (isText(tensor, axis) ? tensor.size(axis) - 1 : 0);
