// How a token is drawn: what each stage, from logits on, leaves of the candidates.

export interface Stage {
  name: string;
  setting: number | null;
  /** Tokens that can still be drawn. */
  kept: number;
  /** Of each candidate; null once it is removed. */
  logits: readonly (number | null)[];
  probabilities: readonly number[];
}

export interface Drawn {
  token: { id: number; text: string; log_prob: number };
  /** The random number it was drawn with; null of greedy choice. */
  uniform: number | null;
  candidates: readonly { id: number; text: string }[];
  stages: readonly Stage[];
  notes: readonly string[];
}

/** What a text goes on from. */
export interface Opening {
  position: number;
  seed: number;
  python: string;
}

export interface Settings {
  temperature: number;
  top_k: number | null;
  top_p: number | null;
  min_p: number | null;
  repetition_penalty: number;
  seed: number;
}

export const plainly = (): Settings => ({
  temperature: 1,
  top_k: null,
  top_p: null,
  min_p: null,
  repetition_penalty: 1,
  seed: 0,
});

/** The stage that removes each candidate, by its place; null for those that are left. */
export const removedBy = ({ stages, candidates }: Pick<Drawn, "stages" | "candidates">): (number | null)[] =>
  candidates.map((_, c) => {
    const at = stages.findIndex(({ logits }) => logits[c] === null);
    return at < 0 ? null : at;
  });
