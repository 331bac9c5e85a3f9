// The document of a circuits report, format version 1: `docs/circuits-json.md`.

import type { Series } from "../pictures/Curves.svelte";
import type { Composition } from "../pictures/HeadGraph.svelte";
import type { Document, Model } from "./shared";

export interface CircuitHead {
  label: string;
  stack: string;
  layer: number;
  part: string;
  reading?: string;
  roles: Readonly<Record<string, number | null | undefined>>;
  copying_measured: number | null;
  copying: number | null;
  copying_through: number | null;
  offset: number | null;
  offset_score: number | null;
  ablation_loss: number | null;
  ablation_icl: number | null;
  read_dimensions: number | null;
  write_dimensions: number | null;
  verdict: readonly string[];
  doubts: readonly string[];
}

export interface Edge extends Composition {
  baseline: number;
  spread: number;
}

export interface InductionCircuit {
  previous: string;
  induction: string;
  kind: string;
  role: number | null;
  match: number | null;
  copy: number | null;
  composition: number | null;
  role_seen: number | null;
  prefix_matching: number | null;
}

export interface Pair {
  first: string;
  second: string;
  value: number;
}

export interface Trigram {
  head: string;
  source: string;
  destination: string;
  out: string;
  attention: number;
  effect: number;
  score: number;
}

export interface CircuitsDocument extends Document {
  model: Model & { mechanisms: readonly string[] };
  findings: readonly string[];
  heads: readonly CircuitHead[];
  edges: readonly Edge[];
  induction: readonly InductionCircuit[];
  eigenvalues: readonly { label: string; values: readonly (readonly [number, number])[]; ratio: number | null }[];
  pairs: readonly { label: string; ov: readonly Pair[]; ov_caption: string; qk: readonly Pair[]; qk_caption: string }[];
  trigrams: readonly Trigram[];
  importance: readonly { name: string; loss: number; marginal: number; terms: number }[];
  losses: readonly {
    name: string;
    positions: readonly number[];
    loss: readonly (number | null)[];
    icl: number;
    low: number;
    high: number;
  }[];
  training?: { change: number | null; charts: readonly { y: string; series: readonly Series[] }[] } | null;
  unavailable: readonly { analysis: string; why: string }[];
}
