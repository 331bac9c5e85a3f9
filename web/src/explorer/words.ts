// Words of the explorer for what the server has names for.

import { spoken } from "../words";
import type { Change, ModelCard, RunCard, RunSpec, TokenCard } from "./api";
import type { Show } from "./looking";

export const STAGES = ["products", "scores", "weights", "value_weighted"] as const;
export type Stage = (typeof STAGES)[number];

export const stageName = (stage: Stage): string =>
  ({
    products: spoken("q · k"),
    scores: spoken("scores, masked"),
    weights: spoken("weights"),
    value_weighted: spoken("weights × |v|"),
  })[stage];

/** A stage of one map, of so many that a head has. */
export const stageOfMap = (stage: Stage, map: number, maps: number): string =>
  maps > 1 ? `${stageName(stage)}${spoken(", ")}${spoken("map {n}", { n: map })}` : stageName(stage);

export const showName = (show: Show): string => ({ a: "A", b: "B", difference: "B − A" })[show];

/** What kind of refusal a fault is; of one that is not named here, as Python calls it. */
export const faultName = (code: string): string =>
  ({
    AnalysisUnavailable: spoken("Not defined here"),
    NoPattern: spoken("Not defined here"),
    ShapeMismatch: spoken("No such place, or lengths that differ"),
    UnknownSite: spoken("No such head or site"),
    TextError: spoken("This text cannot be read"),
    NotFound: spoken("Not kept any more"),
    TooLarge: spoken("More than this server takes"),
    OutOfMemory: spoken("Not enough memory"),
    ConfigError: spoken("Asked in a way the server does not know"),
    Busy: spoken("The model is busy"),
    Refused: spoken("This server is not open to this page"),
    Unexpected: spoken("Something went wrong"),
  })[code] ?? code;

export const KINDS: Readonly<Record<string, string>> = {
  decoder: spoken("decoder"),
  encoder: spoken("encoder"),
  encoder_decoder: spoken("encoder-decoder"),
};

/** A change in words: the site, what is done to it, and where. */
export function changeWords({ edit, site, value, at }: Change): string {
  const places = Object.entries(at ?? {}).filter(([, place]) => place !== null && place !== undefined);
  const where = places.map(([axis, place]) => `${axis}=${place}`).join(", ");
  const what =
    typeof value === "number"
      ? edit === "scale" && value === 0
        ? spoken("is zero")
        : `${{ scale: "×", add: "+", set: "=", project: "∥" }[edit]} ${value}`
      : "run" in value
        ? value.mean?.length
          ? spoken("is its mean in the other run")
          : spoken("is that of the other run")
        : spoken("{edit} a vector", { edit });
  return [site, where && `(${where})`, what].filter(Boolean).join(" ");
}

/** The tokens of a side as a text, with what is odd about some. */
export const asText = (
  tokens: readonly TokenCard[],
): { tokens: readonly string[]; odd: ReadonlyMap<number, { index: number; unknown: boolean }> } => ({
  tokens: tokens.map(tokenText),
  odd: new Map(tokens.flatMap(({ unknown }, index) => (unknown ? [[index, { index, unknown }] as const] : []))),
});

/** What a token reads as; of a part of a character its bytes. */
export const tokenText = ({ text, bytes }: TokenCard): string =>
  text.includes("\ufffd") && bytes ? `⟨${bytes.toUpperCase().replace(/(..)(?=.)/g, "$1 ")}⟩` : text;

export const spentWords = (run: RunCard): string =>
  run.blocks_run < run.blocks
    ? spoken("{n} of {all} blocks ran, {ms} ms", {
        n: run.blocks_run,
        all: run.blocks,
        ms: run.milliseconds.toFixed(0),
      })
    : spoken("{n} blocks ran, {ms} ms", { n: run.blocks_run, ms: run.milliseconds.toFixed(0) });

/** What a run reads, of what was typed: a text, or token ids behind `ids:`. */
export function readOf(typed: string): Pick<RunSpec, "text" | "ids"> {
  const ids = /^ids:([\d\s,]+)$/.exec(typed)?.[1].match(/\d+/g);
  return ids ? { ids: ids.map(Number) } : { text: typed };
}

/** What a run of a model reads, of what was typed or chosen: of one that reads images the name of an image. */
export const givenTo = (model: ModelCard | undefined, typed: string): Pick<RunSpec, "text" | "ids" | "image"> =>
  model?.images.length ? { image: typed } : readOf(typed);

/** What a model begins with, as it is typed or chosen: the first of its images, or a text. */
export const beginningOf = ({ images, example }: ModelCard): string => images[0] ?? example;

/** What is typed or chosen for a run to read the same. */
export const typedOf = ({ text, ids, image }: Pick<RunSpec, "text" | "ids" | "image">): string =>
  image ?? text ?? (ids ? `ids: ${ids.join(" ")}` : "");
