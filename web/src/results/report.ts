// What the sections of a page of results share: the document, and what is said and drawn of each result.

import { isResult, type Result, type ResultsDocument } from "../documents/results";
import { type Fact } from "../frame/Facts.svelte";
import { compact, count } from "../numbers";
import { isTensor } from "../tensor";
import { readable, visible } from "../tokens";
import { capitalised, cut, inCode, spoken, type Piece } from "../words";
import { FACTS, factName, kindName, READERS, SUMS } from "./words";

/** What costs have beside those of fused attention, and how they grow with length. */
export const RATIOS = [
  "ratio",
  "ratio_low",
  "ratio_high",
  "ratio_least",
  "ratio_largest",
  "same_low",
  "same_high",
  "memory_ratio",
] as const;
export const GROWTH = ["growth", "growth_low", "growth_high"] as const;

// tensors that a picture of its own shows already, or that are ids
const SHOWN: Readonly<Record<string, readonly string[]>> = {
  AttentionCosts: [...RATIOS, ...GROWTH],
  LensGrid: ["top", "top_probability", "answers"],
  BackwardLens: ["norm", "small", "most", "least", "writes", "answers"],
  FeatureExamples: ["activations", "density"],
  FeatureTokens: ["raised", "lowered", "raised_tokens", "lowered_tokens"],
  DirectLogitAttribution: ["answer", "against", "position"],
  Acdc: ["in_circuit"],
  InputGradients: ["answers", "against"],
  TokenPairs: ["values", "rows", "columns"],
  SkipTrigrams: ["contribution", "sources", "destinations", "outputs"],
  TokenCircuits: ["raised", "lowered", "sought", "raised_tokens", "lowered_tokens", "sought_tokens"],
};

const NOT_FIELDS = ["derived", "result", "denied", "notes", "provenance"];
const LISTS_OF_NAMES = ["words", "names", "output_names"];
// settings whose values are words of ours; other strings may be tokens, which are never translated
const SETTINGS = new Set(["norm", "mlps", "order"]);
const MOST_MAIN = 4; // figures that are drawn at once

/** One direction of patching, over families of sites. */
export type Sweep = Result & {
  tables: Readonly<Record<string, Result>>;
  direction: string;
  rows: number;
  work: number;
};

export const entriesOf = (result: Result): [string, unknown][] =>
  Object.entries({
    ...result.derived,
    ...Object.fromEntries(Object.entries(result).filter(([name]) => !NOT_FIELDS.includes(name))),
  });

const isObject = (value: unknown): value is Readonly<Record<string, unknown>> =>
  value !== null && typeof value === "object";

function brief(value: unknown): string | null {
  if (typeof value === "number") return Number.isInteger(value) ? count(value) : compact(value);
  if (typeof value === "boolean") return value ? spoken("yes") : spoken("no");
  if (typeof value === "string") return value.startsWith(" ") || value.endsWith(" ") ? visible(value) : readable(value);
  return null;
}

/** Those entries that can be said in a few words, as facts. */
export function factsOf(
  entries: readonly (readonly [string, unknown])[],
  explained: (name: string) => string = () => "",
  labels = FACTS,
): Fact[] {
  return entries.map(([name, value]): Fact => {
    const isSetting = typeof value === "string" && SETTINGS.has(name);
    const list = Array.isArray(value) && value.length && value.length <= 8 ? value.map(brief) : null;
    const words = list
      ? list.includes(null)
        ? null
        : list.join(spoken(", "))
      : brief(isSetting ? spoken(value) : value);
    const label = Object.hasOwn(labels, name) && (isSetting || !SETTINGS.has(name)) ? labels[name] : factName(name);
    return [label, words && cut(words, 240), explained(name)];
  });
}

export class Report {
  constructor(readonly data: ResultsDocument) {}

  titleOf(result: Result): string {
    // fields of these names hold numbers in some results
    const named = [result.method, result.direction].find((manner) => typeof manner === "string");
    const manner = named ?? (result.tuned ? "tuned" : null);
    const title = `${kindName(result.result)}${manner ? `${spoken(": ")}${spoken(manner.replaceAll("_", " "))}` : ""}`;
    return result.denied ? spoken("{title}: nothing found", { title }) : title;
  }

  /** What an analysis answers, in a sentence for readers where there is one. */
  answers(result: Result): Piece {
    return READERS[result.result]?.[0] ?? inCode(this.data.about[result.result]?.summary ?? "");
  }

  headline(result: Result): readonly string[] {
    return this.data.about[result.result].headline;
  }

  private meaning = (result: Result, field: string) =>
    capitalised((this.data.about[result.result]?.fields[field] ?? "").replaceAll("`", ""));

  /** What was asked stands above already, or in the title, and what is nothing need not be said. */
  private isSaid(result: Result, name: string, value: unknown): boolean {
    const asked = this.data.given?.[name] ?? this.data.given?.[name.replace(/s$/, "")];
    const inTitle = ["method", "direction", "tuned"].includes(name);
    const isNothing = value === false || (value === 0 && ["constants", "dropped"].includes(name));
    const isSum = name === "sum" && SUMS[result.result];
    return (
      isNothing ||
      inTitle ||
      Boolean(isSum) ||
      (asked !== undefined && SHOWN[result.result]?.includes(name)) ||
      JSON.stringify(this.data.given?.[name]) === JSON.stringify(value)
    );
  }

  facts(result: Result): Fact[] {
    return factsOf(
      entriesOf(result).filter(([name, value]) => !this.isSaid(result, name, value)),
      (name) => this.meaning(result, name),
    );
  }

  /** What the code says of every field that there is. */
  fields(result: Result): { name: string; meaning: Piece }[] {
    return Object.entries(this.data.about[result.result]?.fields ?? {})
      .filter(([name]) => (result.derived?.[name] ?? result[name] ?? null) !== null)
      .map(([name, words]) => ({ name, meaning: inCode(words) }));
  }

  /** Names of tensors: what the class draws first, and the others; without those that a view of its own shows. */
  tensors(result: Result): { main: string[]; rest: string[]; hasAny: boolean } {
    const names = entriesOf(result)
      .filter(([, value]) => isTensor(value))
      .map(([name]) => name);
    const isFree = (name: string) =>
      names.includes(name) && (Boolean(result.denied) || !SHOWN[result.result]?.includes(name));
    const main = this.headline(result).filter(isFree).slice(0, MOST_MAIN);
    const isBeside = (name: string) => name.endsWith("_error") && names.includes(name.slice(0, -"_error".length));
    return {
      main,
      rest: names.filter((name) => isFree(name) && !main.includes(name) && !isBeside(name)),
      hasAny: names.length > 0,
    };
  }
}

/** Mappings from names to words, such as what was left out and why. */
export const wordLists = (result: Result): [string, Record<string, string>][] =>
  entriesOf(result).filter((entry): entry is [string, Record<string, string>] => {
    const [name, value] = entry;
    return (
      isObject(value) &&
      !Array.isArray(value) &&
      !isTensor(value) &&
      !isResult(value) &&
      !LISTS_OF_NAMES.includes(name) &&
      Object.keys(value).length > 0 &&
      Object.values(value).every((v) => typeof v === "string")
    );
  });

/** Results within a result: tables of a sweep, circuits of a range of thresholds. */
export const inside = (result: Result): [string, Result][] =>
  entriesOf(result).flatMap(([name, value]): [string, Result][] => {
    if (isResult(value)) return [[name, value]];
    if (!isObject(value) || isTensor(value)) return [];
    return Object.entries(value)
      .filter((entry): entry is [string, Result] => isResult(entry[1]))
      .map(([key, v]) => [
        Array.isArray(value)
          ? `${name} ${Number(key) + 1}${v.threshold === undefined ? "" : spoken(": threshold {threshold}", { threshold: v.threshold as number })}`
          : key,
        v,
      ]);
  });
