// The document of an explanation, format version 2: `docs/explain-json.md`.

import type { PatternEntry } from "../pattern";
import type { Grid } from "../pictures/patches";
import type { TensorEntry } from "../tensor";
import type { Document, Model, TokenEntry } from "./shared";

export interface Candidate {
  id: number;
  text: string;
  probability: number;
  logit: number;
  rank?: number;
}

export interface Outcome extends Candidate {
  rank: number;
}

export interface Stage {
  stage: string;
  name: string;
  shape: Readonly<Record<string, number>>;
  numbers: Readonly<Record<string, number>>;
  note?: string;
}

export interface SamplingStep {
  name: string;
  setting?: number | null;
  kept: number;
  entropy_bits: number;
  candidates: readonly Candidate[];
}

export interface Sampling {
  settings: Readonly<Record<string, number | null>>;
  steps: readonly SamplingStep[];
  draw: Candidate | null;
}

export interface TranslationStep {
  index: number;
  input: string;
  output: string;
  probability: number;
}

export interface LensRow {
  label: string;
  candidates: readonly Candidate[];
  answer?: Outcome | null;
  against?: Outcome | null;
  entropy_bits: number;
  kl_bits: number;
}

export interface LensMap {
  labels: readonly string[];
  positions: readonly number[];
  words: Readonly<Record<string, string>>;
  top: number[][][];
  probability: number[][][];
  entropy_bits: number[][];
  kl_bits: number[][];
}

export interface Component {
  label: string;
  kind: string;
  layer: number | null;
  head: number | null;
  contribution: number;
}

export interface Role {
  role: string;
  score: number | null;
  positions: number;
  /** The same on repeated random tokens. */
  model_wide: number | null;
  /** Whether the head plays the role in general. */
  named?: boolean;
}

export interface Head {
  label: string;
  stack: string;
  layer: number;
  head: number;
  contribution: number | null;
  roles: readonly Role[];
  sink?: { mass: number; moved: number } | null;
}

export interface TopHead {
  label: string;
  because: string;
  basis: string;
  contribution: number | null;
  key: TextName;
  weights: readonly number[];
  sources: readonly number[];
}

/** What a layer with a memory drew on; null for what it does not have. */
export interface MemoryUse {
  label: string;
  window: number | null;
  persistent: number | null;
  memory: number | null;
  gate: number | null;
  surprise: number | null;
  mean_surprise: number | null;
}

export type TextName = "tokens" | "source_tokens";

export interface ExplanationDocument extends Document {
  model: Model & { kind: string };
  text?: string | null;
  position: number;
  tokens: readonly TokenEntry[];
  source_tokens?: readonly TokenEntry[] | null;
  answer: Outcome;
  against?: Outcome | null;
  pipeline: readonly Stage[];
  sampling: Sampling;
  translation?: { text: string; generated: boolean; steps: readonly TranslationStep[] } | null;
  next_token: { entropy_bits: number; candidates: readonly Candidate[] };
  lens: readonly LensRow[];
  lens_map?: LensMap | null;
  attribution: { target: string; components: readonly Component[]; sum: number; total: number };
  inputs?: { target: string; values: readonly number[]; source_values?: readonly number[] | null } | null;
  heads: readonly Head[];
  top_heads: readonly TopHead[];
  patterns: readonly PatternEntry[];
  /** Of an image alone. */
  grid?: Grid | null;
  /** Its numbers: channel, row, column. */
  image?: TensorEntry | null;
  /** Of layers with a memory. */
  memories?: readonly MemoryUse[];
}
