// Which picture a labelled tensor gets, by its axes. Entries of different units never share a colour scale.

import { Tensor } from "../tensor";

const AVERAGED = new Set(["batch", "sample", "prompt", "pair"]);
export const UNITS = new Set(["metric", "measure", "outcome"]);
// read one at a time, where there are too many axes
const CHOSEN_FIRST = ["metric", "weights", "bound", "kind", "variant"];
const CURVES = new Set(["count", "threshold", "depth", "length"]);
const POWERS = new Set(["length"]); // numbers grow as powers along it: both axes are logarithmic
const SHARES = new Set(["class", "distance"]);
/** More small maps than this are a list. */
const MOST_SMALL = 48;
const FEW_MAPS = 4,
  NARROW = 16; // so many maps of so few columns stand beside each other

export const isAveraged = (axis: string): boolean => AVERAGED.has(axis);
export const isPower = (axis: string): boolean => POWERS.has(axis);

/** Which axes are averaged, chosen from, and drawn, and how; entries of `pictured` are small maps to choose among. */
export interface Arrangement {
  averaged: readonly string[];
  chosen: readonly string[];
  drawn: readonly string[];
  kind: "one" | "curves" | "shares" | "units" | "map";
  pictured?: string;
  /** Whether the maps of `pictured` stand beside each other. */
  isBeside: boolean;
}

export function arranged(tensor: Tensor): Arrangement {
  const averaged = tensor.axes.filter((axis) => AVERAGED.has(axis));
  const drawn = tensor.axes.filter((axis) => !AVERAGED.has(axis));
  if (!drawn.length) drawn.push(averaged.pop()!);
  const last = drawn.at(-1)!;
  const most = drawn.includes("measure") || drawn.includes("outcome") || !UNITS.has(last) ? 2 : 1;
  const chosen: string[] = [];
  const take = (axis: string) => {
    chosen.push(axis);
    drawn.splice(drawn.indexOf(axis), 1);
  };
  for (const axis of CHOSEN_FIRST)
    if (drawn.includes(axis) && (drawn.length > most || (axis === "metric" && drawn.length > 1))) take(axis);
  while (drawn.length > most) take(drawn[0]);
  const axis = drawn.at(-1)!;
  const kind = CURVES.has(axis)
    ? "curves"
    : drawn.length === 1
      ? "one"
      : SHARES.has(axis)
        ? "shares"
        : UNITS.has(axis)
          ? "units"
          : "map";
  const pictured =
    kind === "map" ? chosen.filter((name) => !UNITS.has(name) && tensor.size(name) <= MOST_SMALL).at(-1) : undefined;
  const isBeside = pictured !== undefined && tensor.size(pictured) <= FEW_MAPS && tensor.size(axis) <= NARROW;
  return { averaged, chosen, drawn, kind, pictured, isBeside };
}

const isBare = (place: unknown): boolean => /^\d+$/.test(String(place));

/** With the tokens of a single pair of prompts as names of places; of several pairs, places keep their names. */
export function withTokens(tensor: Tensor, pairs: readonly (readonly string[])[]): Tensor {
  const [row, ...others] = pairs;
  if (!row || others.length || !tensor.axes.includes("pos") || !tensor.labels("pos").some(isBare)) return tensor;
  const pos = tensor
    .labels("pos")
    .map((place) => (isBare(place) && row[Number(place)] !== undefined ? `${place}:${row[Number(place)]}` : place));
  return new Tensor({ ...tensor, coords: { ...tensor.coords, pos } });
}
