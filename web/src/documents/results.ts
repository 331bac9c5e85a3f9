// The document of a page of results: `glassformer.render.page.results`.

import type { TensorEntry } from "../tensor";
import type { Mark } from "../tokens";
import type { Document, Model } from "./shared";

/** A result as it packs itself: its class, what it derives, and its fields. */
export interface Result {
  result: string;
  derived?: Readonly<Record<string, unknown>>;
  denied?: boolean;
  [field: string]: unknown;
}

/** What a class of results says in its docstring, and which fields are drawn first. */
export interface About {
  summary: string;
  fields: Readonly<Record<string, string>>;
  headline: readonly string[];
}

export interface ResultsDocument extends Document {
  model?: Partial<Model> & { name: string };
  command?: string;
  given?: Readonly<Record<string, unknown>>;
  reading?: {
    tokens: Readonly<Record<string, readonly (readonly string[])[]>>;
    marks?: Readonly<Record<string, readonly Mark[]>>;
  };
  results: readonly Result[];
  about: Readonly<Record<string, About>>;
}

export const isResult = (value: unknown): value is Result =>
  value !== null && typeof value === "object" && "result" in value;

/** A field of a result, or what it derives under that name. */
export const fieldOf = (result: Result, name: string): unknown => result.derived?.[name] ?? result[name];
export const tensorOf = (result: Result, name: string): TensorEntry => fieldOf(result, name) as TensorEntry;
