// What every view of the explorer gets: the model, the runs A and B, where one looks, and what one may do about it.

import { getContext, setContext } from "svelte";

import type { Tensor } from "../tensor";
import type { Change, LayerCard, MixerCard, ModelCard, RunCard, TokenCard, Views } from "./api";
import type { Question, Transport } from "./transport";

/** One head, and one pair of positions. */
export interface Cursor {
  /** The attention that the head is of, `blocks.1.attn`: a layer may have several. */
  path: string;
  layer: number;
  /** Counted within its attention. */
  head: number;
  query: number;
  key: number;
}

/** Which run pictures show. */
export type Show = "a" | "b" | "difference";

/** Which logit is asked about: null is the likeliest, and nothing to subtract. */
export interface Aim {
  answer: number | null;
  against: number | null;
}

/** Where a number on the page comes from. */
export interface Source {
  /** What it is, in words. */
  name: string;
  value: number | null;
  /** The site or the array it stands in, with axes and sizes. */
  array: string;
  axes: readonly string[];
  shape: readonly number[];
  /** The entry of each axis. */
  index: readonly (string | number)[];
  /** How it was sent: `f32` is exact. */
  encoding: string;
  /** The library call that gives the array. */
  python: string;
  /** Sites that may be saved to a file. */
  sites?: readonly string[];
}

/** The parts of a place that differ from now; a head is named by its path, or by a label such as L1H6. */
export type Place = Partial<Cursor> & { label?: string };

export interface Looking {
  readonly api: Transport;
  readonly model: ModelCard;
  readonly a: RunCard;
  readonly b: RunCard | null;
  readonly show: Show;
  readonly cursor: Cursor;
  readonly aim: Aim;
  /** Where one looks: the cursor, or what the pointer is over. */
  readonly at: Cursor;
  /** The run that is shown: B for a difference. */
  readonly shown: RunCard;
  select(part: Place): void;
  hover(part: Place | null): void;
  aimAt(aim: Partial<Aim>): void;
  /** Add a change to run B, which is run A with changes where there is none yet. */
  change(...edits: readonly Change[]): void;
  inspect(source: Source): void;
}

const KEY = Symbol("looking");
export const provideLooking = <Of extends Looking>(looking: Of): Of => setContext(KEY, looking);
export const theLooking = (): Looking => getContext<Looking>(KEY);

/** A head: its name, and what it is a part of. */
export interface Head {
  label: string;
  layer: LayerCard;
  mixer: MixerCard;
  head: number;
}

const known = new WeakMap<ModelCard, Map<string, Head>>();

/** The heads of a model by their names, from the bottom up. */
export function headsOf(model: ModelCard): ReadonlyMap<string, Head> {
  if (!known.has(model)) {
    const found = model.layers.flatMap((layer) =>
      layer.mixers.flatMap((mixer) => mixer.heads.map((label, head) => ({ label, layer, mixer, head }))),
    );
    known.set(model, new Map(found.map((head) => [head.label, head])));
  }
  return known.get(model)!;
}

/** The head that a cursor is on; undefined in a model without any. */
export const headAt = (model: ModelCard, { path, head }: Pick<Cursor, "path" | "head">): Head | undefined =>
  headsOf(model).get(
    model.layers.flatMap((layer) => layer.mixers).find((mixer) => mixer.path === path)?.heads[head] ?? "",
  );

/** What the queries and the keys of a head are: the tokens of a side. */
export function textsOf(
  run: RunCard,
  { mixer, layer }: Head,
): { queries: readonly TokenCard[]; keys: readonly TokenCard[] } {
  const queries = layer.stack === "encoder" ? run.source_tokens : run.tokens;
  return { queries, keys: mixer.crosses ? run.source_tokens : queries };
}

/** The position that one looks from at first: where a class of the whole is said, or the end. */
export const askedAt = ({ logits_of }: ModelCard): number =>
  logits_of === "image_class" || logits_of === "text_class" ? 0 : Infinity;

/** A question about what is shown: of A, of B, or of B less A. */
export function ofShown<Name extends keyof Views>(
  looking: Looking,
  name: Name,
  where: Pick<Question, "head" | "index"> & { view?: Views[Name] } = {},
): Question<Name> {
  const minus = looking.show === "difference" && looking.b ? looking.a.id : undefined;
  return {
    name,
    of: { run: looking.shown.id },
    ...where,
    view: (minus ? { ...where.view, minus } : where.view) as Views[Name],
  };
}

/** A question about weights alone. */
export const ofWeights = <Name extends keyof Views>(
  looking: Pick<Looking, "model">,
  name: Name,
  where: Pick<Question, "head"> & { view?: Views[Name] } = {},
): Question<Name> => ({
  name,
  of: { model: looking.model.id },
  ...where,
});

/** What an array has along its last axes, with its place along the others: once, or for each map of several. */
export const placedMapsOf = (tensor: Tensor, axes: number): readonly { map: Tensor; place: readonly number[] }[] =>
  tensor.axes.length <= axes
    ? [{ map: tensor, place: [] }]
    : Array.from({ length: tensor.shape[0] }, (_, i) =>
        placedMapsOf(tensor.pick(tensor.axes[0], i), axes).map(({ map, place }) => ({ map, place: [i, ...place] })),
      ).flat();

/** The same without places. */
export const mapsOf = (tensor: Tensor, axes: number): readonly Tensor[] =>
  placedMapsOf(tensor, axes).map(({ map }) => map);
