// One token more: what is computed for it, what was before, and what never is.

import type { Tensor } from "../../tensor";

/** How many pairs of a pattern the last query computes, how many the earlier ones did, and how many none may. */
export interface Pairs {
  added: number;
  done: number;
  never: number;
}

/** The pairs of a pattern `query key` whose last row is new; what has no number is masked. */
export function pairsOf(pattern: Tensor): Pairs {
  const [rows, columns] = pattern.shape;
  const found = { added: 0, done: 0, never: 0 };
  for (let q = 0; q < rows; q++)
    for (let k = 0; k < columns; k++) {
      if (pattern.at(q, k) === null) found.never += 1;
      else if (q === rows - 1) found.added += 1;
      else found.done += 1;
    }
  return found;
}

/** Of each row the stretches of cells of one kind, so that a picture has few shapes. */
export function stretchesOf(pattern: Tensor): { row: number; from: number; to: number; kind: keyof Pairs }[] {
  const [rows, columns] = pattern.shape;
  const kindOf = (q: number, k: number): keyof Pairs =>
    pattern.at(q, k) === null ? "never" : q === rows - 1 ? "added" : "done";
  return Array.from({ length: rows }, (_, row) => {
    const found: { row: number; from: number; to: number; kind: keyof Pairs }[] = [];
    for (let k = 0; k < columns; k++) {
      const kind = kindOf(row, k);
      const last = found.at(-1);
      if (last?.kind === kind) last.to = k + 1;
      else found.push({ row, from: k, to: k + 1, kind });
    }
    return found;
  }).flat();
}
