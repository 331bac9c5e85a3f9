// What pictures anywhere on a page need to know of the text it is about.

import { getContext, setContext } from "svelte";

export interface Reading {
  /** How many positions training gave the model at once; null if that is not known. */
  trained: number | null;
  /** The tokens of each prompt, where places in a pair of prompts have no other names. */
  pairs: readonly (readonly string[])[];
}

const KEY = Symbol("reading");
const CELL = Symbol("cell");

export const provideReading = (reading: Reading): Reading => setContext(KEY, reading);
export const theReading = (): Reading => getContext<Reading | undefined>(KEY) ?? { trained: null, pairs: [] };

/** The context of a page, which stands in the document itself or in a cell of another one. */
export const contextOfPage = (isInCell: boolean): Map<symbol, unknown> => new Map([[CELL, isInCell]]);
/** The element that holds what a page is about: a document has one main part, and a cell is a section of it. */
export const mainElement = (): "main" | "section" => (getContext<boolean>(CELL) ? "section" : "main");
