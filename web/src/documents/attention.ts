// The document of a page of attention: `glassformer.analysis.reports.attention`.

import type { PatternEntry } from "../pattern";
import type { Document, Model, TokenEntry } from "./shared";

export interface AttentionDocument extends Document {
  model: Partial<Model> & { name: string };
  tokens: readonly TokenEntry[];
  source_tokens?: readonly TokenEntry[] | null;
  patterns: readonly PatternEntry[];
}
