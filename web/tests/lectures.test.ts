import { expect, test } from "vitest";

import { pairsOf, stretchesOf } from "../src/explorer/head/carried";
import { maskedWords, readWords } from "../src/explorer/head/orientation";
import { laneWindow, linksOf } from "../src/explorer/model/lanes";
import { mixtureOf, rowsOfHeads, sumText } from "../src/explorer/position/mixture";
import { radius } from "../src/pictures/dots";
import { Matrix, transposed } from "../src/pictures/matrix";
import { Tensor } from "../src/tensor";

const causal = (n: number) =>
  new Tensor({
    axes: ["query", "key"],
    coords: {},
    shape: [n, n],
    values: Float32Array.from({ length: n * n }, (_, i) => (i % n > Math.floor(i / n) ? NaN : 1 + i)),
  });

test("the area of a dot is the number, and none is larger than its room", () => {
  for (const x of [0, 0.1, 0.5, 1]) expect(radius(-x, 1, 20) ** 2).toBeCloseTo(x * radius(1, 1, 20) ** 2);
  expect([radius(3, 1, 20), radius(1, 0, 20)]).toEqual([10, 0]);
});

test("a dot of several cells has the number of largest size among them", () => {
  const tensor = new Tensor({
    axes: ["a", "b"],
    coords: {},
    values: [
      [1, -5, 2],
      [3, 4, NaN],
      [NaN, NaN, 0],
    ] as never,
  });
  const matrix = new Matrix(tensor, { limit: 5, isSigned: true });
  expect([...matrix.strongest(2)]).toEqual([-5, 2, NaN, 0]);
  expect([...matrix.window([1, 0], [1, 2]).strongest(1)]).toEqual([3, 4]);
});

test("a pattern turned about its diagonal has keys as rows, and turned again is itself", () => {
  const [one, other] = [causal(5), transposed(causal(5))];
  expect(other.axes).toEqual(["key", "query"]);
  for (let q = 0; q < 5; q++) for (let k = 0; k < 5; k++) expect(other.at(k, q)).toBe(one.at(q, k));
  expect([...transposed(other).values]).toEqual([...one.values]);
});

test("words say which way a pattern reads, and which triangle is masked", () => {
  const layer = { support: "causal", window: null, crosses: false } as const;
  expect(readWords(false)).toMatch(/^Rows are queries/);
  expect(readWords(true)).toMatch(/^Rows are keys/);
  expect(maskedWords(layer, "weights", false)).toMatch(/^The upper right triangle/);
  expect(maskedWords(layer, "weights", true)).toMatch(/^The lower left triangle/);
  expect(maskedWords({ ...layer, window: 3 }, "scores", false)).toMatch(/window of 3/);
  expect(maskedWords(layer, "products", false)).toBe("Nothing is masked yet.");
  expect(maskedWords({ ...layer, support: "full" }, "weights", true)).toMatch(/looks both ways/);
});

test("the last row is computed now, and stretches of a row cover each of its cells once", () => {
  const pairs = pairsOf(causal(6));
  expect(pairs).toEqual({ added: 6, done: 15, never: 15 });
  const cells = stretchesOf(causal(6));
  expect(cells.reduce((sum, { from, to }) => sum + to - from, 0)).toBe(36);
  expect(cells.filter(({ kind }) => kind === "added")).toEqual([{ row: 5, from: 0, to: 6, kind: "added" }]);
});

test("lanes around the cursor are seen, and all of them where there is room", () => {
  expect(laneWindow(10, 20, 3)).toEqual({ first: 0, last: 10 });
  for (let at = 0; at < 100; at++) {
    const { first, last } = laneWindow(100, 12, at);
    expect(last - first).toBe(12);
    expect(first <= at && at < last).toBe(true);
  }
});

test("links are the largest shares of a row, whatever its weights sum to", () => {
  const rows = new Tensor({
    axes: ["head", "key"],
    coords: { head: ["L1H0", "L1H1"] },
    values: [
      [0.1, 0.7, 0.2],
      [-30, 10, NaN],
    ] as never,
  });
  const found = linksOf({ "blocks.1.attn": rows, other: rows }, (path) => (path === "other" ? undefined : 1), 0.2, 1);
  expect(found.map(({ head, key, weight }) => [head, key, Math.fround(weight)])).toEqual([
    ["L1H1", 0, -30],
    ["L1H0", 1, Math.fround(0.7)],
  ]);
  expect(found[0].share).toBeCloseTo(0.75);
  expect(rows.at(...found[0].index)).toBe(found[0].weight);
});

test("parts of a mixture fill its bar, and up to the last they sum to the row", () => {
  const weights = [0.5, null, 0.3, 0.1999, 0.0001];
  const parts = mixtureOf(weights);
  expect(parts.map(({ key }) => key)).toEqual([0, 2, 3, null]);
  expect(parts.reduce((sum, { share }) => sum + share, 0)).toBeCloseTo(1);
  const all = mixtureOf([2, -3, 0.5], Infinity);
  expect(all.map(({ key }) => key)).toEqual([1, 0, 2]);
  expect(sumText(all.at(-1)!.sum)).toBe("−0.5000");
  expect(mixtureOf([null, null])).toEqual([]);
});

test("rows of heads with several maps are told apart, head by head", () => {
  const weights = new Tensor({
    axes: ["value_stream", "head", "key"],
    coords: { head: ["L0H0", "L0H1"] },
    shape: [2, 2, 3],
    values: Float32Array.from({ length: 12 }, (_, i) => i),
  });
  const rows = rowsOfHeads(weights);
  expect(rows.map(({ label }) => label)).toEqual(["L0H0/0", "L0H0/1", "L0H1/0", "L0H1/1"]);
  expect(rows[1].weights).toEqual([6, 7, 8]);
});
