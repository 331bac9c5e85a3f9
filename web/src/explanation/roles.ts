// Roles of heads as pieces of a line.

import type { Role } from "../documents/explanation";
import { spoken, type Inline } from "../words";
import { inGeneral, isNamed, roleName } from "./explained";

/** A role with its score, as a chip. */
export function roleChip(role: Role & { score: number }): Inline {
  const title = spoken(
    role.model_wide === null
      ? "mean over {n} positions"
      : "mean over {n} positions; in brackets, on repeated random tokens",
    { n: role.positions },
  );
  return {
    tag: "span",
    class: role.score >= 0.5 && isNamed(role) ? "role strong" : "role",
    title,
    words: [
      isNamed(role) ? roleName(role.role) : spoken("resembles {role}", { role: roleName(role.role) }),
      ` ${role.score.toFixed(2)}${inGeneral(role)}`,
    ],
  };
}
