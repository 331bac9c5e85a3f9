// Which heads read what earlier ones write: pairs with a score, above what random matrices of the same shape have.

import type { Composition } from "../../pictures/HeadGraph.svelte";
import type { Tensor } from "../../tensor";

export interface Edge extends Composition {
  /** Mean and standard deviation of the scores of random pairs. */
  chance: number;
  spread: number;
  /** How many standard deviations the score lies above chance. */
  spreads: number;
  index: readonly [kind: number, earlier: number, later: number];
}

/** All pairs that have a score, the one furthest above chance first. */
export function edgesOf({ scores, null_mean, null_sd }: Readonly<Record<string, Tensor>>): Edge[] {
  const found: Edge[] = [];
  const [kinds, earlier, later] = ["kind", "earlier", "later"].map((axis) => scores.labels(axis));
  kinds.forEach((kind, k) =>
    earlier.forEach((from, e) =>
      later.forEach((to, l) => {
        const score = scores.at(k, e, l);
        const [chance, spread] = [null_mean?.at(k, e, l) ?? 0, null_sd?.at(k, e, l) ?? 0];
        if (score === null) return;
        const excess = score - chance;
        found.push({
          kind: kind as Edge["kind"],
          earlier: String(from),
          later: String(to),
          score,
          excess,
          chance,
          spread,
          spreads: spread > 0 ? excess / spread : 0,
          index: [k, e, l],
        });
      }),
    ),
  );
  return found.sort((a, b) => b.spreads - a.spreads);
}

/** What is drawn: edges of some kinds at least so many spreads above chance; at most so many, the furthest above. */
export const above = (edges: readonly Edge[], spreads: number, kinds: ReadonlySet<string>, most: number): Edge[] =>
  edges.filter((edge) => edge.excess > 0 && edge.spreads >= spreads && kinds.has(edge.kind)).slice(0, most);
