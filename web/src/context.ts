// What pictures anywhere on a page need to know of the text it is about.

import { getContext, setContext } from "svelte";

export interface Reading {
  /** How many positions training gave the model at once; null if that is not known. */
  trained: number | null;
  /** The tokens of each prompt, where places in a pair of prompts have no other names. */
  pairs: readonly (readonly string[])[];
}

const KEY = Symbol("reading");

export const provideReading = (reading: Reading): Reading => setContext(KEY, reading);
export const theReading = (): Reading => getContext<Reading | undefined>(KEY) ?? { trained: null, pairs: [] };
