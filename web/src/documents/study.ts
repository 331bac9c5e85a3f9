// The report of a study, format version 2: `glassformer.study.report`.

import type { Document } from "./shared";

type Given = { text: string; quantity?: string; expected?: string; met?: boolean };

export interface Claim {
  text: string;
  quantity: string;
  expected: string;
  low: number | null;
  high: number | null;
  mean: number | null;
  /** The range in which seeds count, and how many do, where these are counted. */
  counts?: { count: number; range: { low: number | null; high: number | null } } | null;
  range: { low: number | null; high: number | null };
  values: Readonly<Record<string, number>>;
  verdict: string;
  given: readonly Given[];
  exact?: string | null;
  why?: string | null;
  near?: boolean;
  earlier: readonly {
    quantity?: string;
    expected: string;
    verdict: string;
    seeds?: number;
    settings?: Readonly<Record<string, unknown>>;
    given?: readonly Given[];
  }[];
}

export interface Measure {
  name: string;
  about?: string;
  unit?: string;
  analysis?: string;
  question?: string;
  source?: string;
}

export interface StudyRun {
  point: Readonly<Record<string, string | number | boolean>>;
  seed: number;
  measures: Readonly<Record<string, number | null | undefined>>;
  undefined: Readonly<Record<string, string | undefined>>;
  error?: string | null;
  cpu_seconds: number | null;
  wall_seconds: number | null;
}

export interface StudyDocument extends Document {
  study: string;
  question: string;
  paper: string;
  scale: string;
  seeds: number;
  grid: Readonly<Record<string, unknown>>;
  claims: readonly Claim[];
  chance: { by_interval: number; false_holds: number };
  measures: readonly Measure[];
  runs: readonly StudyRun[];
  found: Readonly<Record<string, number | null>>;
  machines: readonly Readonly<Record<string, string>>[];
  differs: readonly string[];
  cpu_seconds: number | null;
  wall_seconds: number | null;
}
