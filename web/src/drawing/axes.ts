// Numbers along an axis of a chart.

/** About five round numbers from low to high. */
export function ticksOf(low: number, high: number): number[] {
  const span = high - low || 1;
  const rough = span / 4;
  const base = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * base).find((s) => s >= rough)!;
  const found: number[] = [];
  // multiples of the step, as sums of it miss zero
  for (let i = Math.ceil(low / step); i * step <= high + 1e-9 * span; i++)
    found.push(Number((i * step).toPrecision(10)));
  return found;
}

/** The powers of ten from low to high and, where they are few, their doubles and fives. */
export function decadesOf(low: number, high: number): number[] {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const within = (factors: readonly number[]) =>
    Array.from({ length: last - first + 1 }, (_, i) => factors.map((f) => f * 10 ** (first + i)))
      .flat()
      .filter((t) => t >= low * 0.999 && t <= high * 1.001);
  return within([1]).length > 2 ? within([1]) : within([1, 2, 5]);
}

/** Numbers onto a stretch of the picture; `byFactors` for axes that grow by factors. */
export function stretched(
  values: readonly number[],
  from: number,
  to: number,
  byFactors = false,
): (x: number) => number {
  const size = byFactors ? Math.log : (x: number) => x;
  const [low, high] = [size(Math.min(...values)), size(Math.max(...values))];
  return (x) => from + ((size(x) - low) / (high - low || 1)) * (to - from);
}
