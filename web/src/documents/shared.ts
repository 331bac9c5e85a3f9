// What documents of all kinds hold.

import type { Mark } from "../tokens";

export interface Note {
  seen: string;
  meaning?: string;
  advice?: string;
  /** Whether it denies that anything was found. */
  denies?: boolean;
}

export interface Provenance {
  analysis?: string;
  model?: string;
  digest?: string;
  /** Why the digest of the weights is not known. */
  why?: string;
  trained_length?: number | null;
  dtype?: string;
  device?: string;
  seed?: number | null;
  version?: string;
  torch?: string;
  input?: readonly { shown: string; size: string; sha256?: string }[];
}

export interface Model {
  name: string;
  kind?: string;
  parameters: number;
  n_layers: number;
  n_heads: number;
  d_model: number;
  vocab_size: number;
  output_vocab_size?: number | null;
  max_len: number;
  trained_length?: number | null;
  mechanisms?: readonly string[];
  logits_of?: string;
}

export interface TokenEntry extends Mark {
  text: string;
  id: number;
}

/** What the document of every page holds. */
export interface Document {
  format: string;
  version: number;
  notes?: readonly Note[];
  provenance?: Provenance | null;
}

/** The document that a page carries under a name. */
export const carried = <D extends Document>(name: string): D => JSON.parse(document.getElementById(name)!.textContent!);
