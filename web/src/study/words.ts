// Words of studies: verdicts, clocks, and what was found.

import type { Claim, StudyRun } from "../documents/study";
import { short } from "../numbers";
import { spoken } from "../words";

export const VERDICTS: Readonly<Record<string, string>> = {
  holds: spoken("holds"),
  fails: spoken("fails"),
  undecided: spoken("undecided"),
  "not testable here": spoken("not testable here"),
  "not defined": spoken("not defined"),
};

export const CLOCKS = [
  ["cpu_seconds", spoken("CPU seconds")],
  ["wall_seconds", spoken("seconds by the clock, one thread")],
] as const;

/** What was measured of a claim, in words. */
export function found({ mean, low, high, counts, values }: Claim): string {
  const said = counts
    ? spoken("{n} of {all} seeds", { n: counts.count, all: Object.keys(values).length })
    : short(mean!);
  return low === null || low === high ? said : `${said} [${short(low)}, ${short(high!)}]`;
}

/** A point of the grid, by some of its axes. */
export const called = (point: StudyRun["point"], axes: readonly string[]): string =>
  axes.map((axis) => `${axis}=${point[axis]}`).join(spoken(", "));

export const average = (values: readonly number[]): number =>
  values.reduce((sum, value) => sum + value, 0) / values.length;

export const WIDTH = 460,
  LEFT = 46,
  RIGHT = 14; // of the charts of a study
