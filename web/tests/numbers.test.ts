import { expect, test } from "vitest";

import { ticksOf } from "../src/drawing/axes";
import { Pattern, wholeNumbers } from "../src/pattern";
import { arranged } from "../src/results/figures";
import { layoutOf, type Routes } from "../src/results/routes";
import { Tensor } from "../src/tensor";

const packed = (numbers: readonly number[]) =>
  String.fromCharCode(...numbers.flatMap((n) => (n < 128 ? [n] : [128 | (n & 127), n >> 7])));

function pattern(rows: number, counts: readonly number[]): Pattern {
  return new Pattern({
    label: "L0H0",
    stack: "",
    part: "attn",
    layer: 0,
    head: 0,
    query: "tokens",
    key: "tokens",
    rows,
    columns: rows,
    layout: "lower",
    signed: false,
    scale: 1,
    steps: 1000,
    data: btoa(packed(counts)),
  });
}

test("packed numbers come back, those with a sign unfolded at zero", () => {
  expect([...wholeNumbers(packed([0, 1, 127, 128, 1000]), false)]).toEqual([0, 1, 127, 128, 1000]);
  expect([...wholeNumbers(packed([0, 1, 2, 3, 4]), true)]).toEqual([0, -1, 1, -2, 2]);
});

test("a lone bright cell survives in a picture of fewer pixels than cells, and what is masked stays empty", () => {
  const rows = 40,
    [q, k] = [29, 13];
  const counts = Array.from({ length: (rows * (rows + 1)) / 2 }, (_, i) => (i === (q * (q + 1)) / 2 + k ? 1000 : 0));
  const found = pattern(rows, counts);
  expect(found.peak()).toEqual([q, k]);
  const image = { data: new Uint8ClampedArray(4 * 10 * 10) };
  found.draw(
    {
      getContext: () => ({ createImageData: () => image, putImageData: () => undefined }),
    } as unknown as HTMLCanvasElement,
    4,
  );
  const lit = Array.from({ length: 100 }, (_, i) => i).filter((i) => image.data[4 * i + 1] === 1); // the last colour of the ramp
  expect(lit).toEqual([10 * Math.floor(q / 4) + Math.floor(k / 4)]);
  expect(image.data[4 * 9 + 3]).toBe(0);
});

test("a mean is over what is defined, its error that of a mean, and a row of a batch leaves its padding behind", () => {
  const tensor = new Tensor({
    axes: ["batch", "pos"],
    coords: {},
    rows: {
      pos: [
        ["a", null],
        ["b", "c"],
      ],
    },
    values: [
      [1, 7],
      [3, null],
    ],
  });
  expect([...tensor.mean("batch").values]).toEqual([2, 7]);
  expect(tensor.error("batch").at(0)).toBeCloseTo(1);
  expect(tensor.error("batch").at(1)).toBeNull();
  expect([...tensor.pick("batch", 0).values]).toEqual([1]);
  expect(tensor.pick("batch", 1).labels("pos")).toEqual(["b", "c"]);
});

test("ticks are multiples of one step within the axis", () => {
  for (const [low, high] of [
    [0, 1],
    [-3.2, 17],
    [1e-5, 2e-5],
    [1e6, 9e6],
  ]) {
    const ticks = ticksOf(low, high);
    expect(ticks.length).toBeGreaterThan(1);
    for (const [i, tick] of ticks.entries()) {
      expect(tick).toBeGreaterThanOrEqual(low);
      expect(tick).toBeLessThanOrEqual(high * (1 + 1e-9));
      if (i) expect(tick - ticks[i - 1]).toBeCloseTo(ticks[1] - ticks[0], 9);
    }
  }
});

test("every axis of a tensor is averaged, chosen from or drawn, and at most two are drawn", () => {
  for (const axes of [
    ["layer", "head"],
    ["metric", "layer", "pos", "prompt"],
    ["batch"],
    ["head", "measure"],
    ["kind", "layer", "query", "key"],
    ["layer", "depth"],
  ]) {
    const plan = arranged(
      new Tensor({ axes, coords: {}, shape: axes.map(() => 2), values: new Float32Array(2 ** axes.length) }),
    );
    expect([...plan.averaged, ...plan.chosen, ...plan.drawn].sort()).toEqual([...axes].sort());
    expect(plan.drawn.length).toBeLessThanOrEqual(2);
  }
});

test("a higher threshold draws some of the routes that a lower one draws, and no other", () => {
  const place = (i: number) => `L${i} | 0: a`;
  const shares = [0.9, 0.2, 0.6, 0.4];
  const routes: Routes = {
    nodes: shares.map((_, i) => ({ label: place(i), place: `L${i}`, importance: 1 })),
    edges: shares.map((share, i) => ({
      above: place(3),
      below: place(i % 3),
      via: `L${i}H0`,
      share,
      whole_share: share,
    })),
    threshold: 0,
    inputs: { axes: ["key"], coords: { key: ["0: a"] }, values: [1] },
  };
  const drawn = [0, 0.3, 0.5, 0.95].map((threshold) =>
    layoutOf(routes, threshold)
      .lines.map(({ edge }) => edge.via)
      .sort(),
  );
  expect(drawn.map((vias) => vias.length)).toEqual([4, 3, 2, 0]);
  for (const [i, vias] of drawn.slice(1).entries()) expect(drawn[i]).toEqual(expect.arrayContaining(vias));
});
