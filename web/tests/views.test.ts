import { beforeAll, expect, test, vi } from "vitest";

import type { GenerateSpec, SweepSpec } from "../src/explorer/api";
import { above, edgesOf, type Edge } from "../src/explorer/composition/edges";
import { removedBy, type Drawn, type Opening } from "../src/explorer/generation/drawing";
import { Writing } from "../src/explorer/generation/writing.svelte";
import { shares } from "../src/explorer/position/attribution";
import { barcodes } from "../src/explorer/position/rows";
import { changeOf, Sweep, type Begun, type Cell } from "../src/explorer/sweep/sweep.svelte";
import type { Answer, Transport } from "../src/explorer/transport";
import type { Cells } from "../src/pattern";
import { placeIn } from "../src/pictures/largePattern";
import { Tensor } from "../src/tensor";
import { textOf } from "../src/tokens";

beforeAll(() => {
  vi.stubGlobal("requestAnimationFrame", (draw: () => void) => setTimeout(draw, 0));
});

test("shares hold every component once, in the order of the pass, and add up to the same", () => {
  const components = Array.from({ length: 24 }, (_, i) => ({
    label: `c${i}`,
    kind: "head",
    layer: i < 2 ? null : Math.floor(i / 6),
    head: i,
  }));
  const values = components.map((_, i) => Math.sin(3 * i) * i);
  for (const most of [0, 5, 24]) {
    const found = shares(components, values, most);
    expect(found.flatMap((share) => share.components).sort((a, b) => a - b)).toEqual([...components.keys()]);
    expect(found.reduce((sum, { value }) => sum + value, 0)).toBeCloseTo(values.reduce((a, b) => a + b));
    const layers = found.map(({ layer }) => layer ?? -1);
    expect(layers).toEqual([...layers].sort((a, b) => a - b));
  }
});

test("the rows of all heads are the numbers they come from, the last layer first, streams apart", () => {
  const head = {
    axes: ["head", "key"],
    coords: { head: ["L0H0", "L0H1"] },
    values: [
      [1, 2],
      [3, 4],
    ],
  };
  const streams = { axes: ["stream", "head", "key"], coords: { head: ["L1H0"] }, values: [[[5, 6]], [[7, 8]]] };
  const cross = { axes: ["head", "key"], coords: { head: ["L1X0"] }, values: [[9, 10, 11]] };
  const arrays: Record<string, Tensor> = {
    below: new Tensor(head),
    above: new Tensor(streams),
    cross: new Tensor(cross),
  };
  const found = barcodes({ arrays } as unknown as Answer, (path) => path === "cross");
  expect(found.map(({ lines }) => lines.map(({ label }) => label))).toEqual([
    ["L1H0/0", "L1H0/1", "L0H0", "L0H1"],
    ["L1X0"],
  ]);
  for (const { map, lines } of found) {
    lines.forEach(({ array, index }, row) => {
      const place = (key: number) => index.with(arrays[array].axes.indexOf("key"), key);
      for (let key = 0; key < map.size("key"); key++) expect(map.at(row, key)).toBe(arrays[array].at(...place(key)));
    });
  }
});

test("a higher threshold draws some of the edges that a lower one draws, and the furthest above chance first", () => {
  const cube = (value: (i: number) => number) =>
    new Tensor({
      axes: ["kind", "earlier", "later"],
      coords: { kind: ["Q", "K", "V"], earlier: ["L0H0", "L0H1"], later: ["L1H0", "L1H1"] },
      shape: [3, 2, 2],
      values: Float32Array.from({ length: 12 }, (_, i) => value(i)),
    });
  const edges = edgesOf({
    scores: cube((i) => (i === 3 ? NaN : Math.cos(i))),
    null_mean: cube(() => 0.1),
    null_sd: cube(() => 0.05),
  });
  expect(edges.length).toBe(11);
  const drawn = [0, 2, 12, 1e9].map((spreads) => above(edges, spreads, new Set(["Q", "V"]), 100));
  const names = (list: Edge[]) => list.map(({ index }) => index.join());
  expect(drawn[0].length).toBeGreaterThan(drawn[2].length);
  for (const [i, list] of drawn.slice(1).entries())
    expect(names(drawn[i])).toEqual(expect.arrayContaining(names(list)));
  for (const list of drawn)
    expect(list.map(({ spreads }) => spreads)).toEqual(list.map(({ spreads }) => spreads).sort((a, b) => b - a));
  expect(drawn.flat().every(({ kind, score, chance }) => kind !== "K" && score > chance)).toBe(true);
  expect(above(edges, 0, new Set(["Q", "K", "V"]), 2).length).toBe(2);
});

test("a candidate is removed by the first stage that leaves it no logit", () => {
  const stage = (logits: (number | null)[]) => ({ name: "", setting: null, kept: 0, probabilities: [], logits });
  const candidates = [0, 1, 2].map((id) => ({ id, text: "" }));
  const stages = [stage([3, 2, 1]), stage([3, 2, null]), stage([3, null, null])];
  expect(removedBy({ candidates, stages })).toEqual([null, 2, 1]);
});

/** A server that sends these steps, as many new tokens as are asked for, and knows whether it may go on. */
function sends(steps: readonly unknown[]) {
  const sent: { signal?: AbortSignal; count: number } = { count: 0 };
  async function* all(_kind: string, { max_new_tokens }: Partial<GenerateSpec>, signal?: AbortSignal) {
    sent.signal = signal;
    for (const step of steps.slice(0, max_new_tokens && max_new_tokens + 1)) {
      await new Promise((later) => setTimeout(later, 0));
      if (signal?.aborted) throw new DOMException("", "AbortError");
      sent.count += 1;
      yield step;
    }
  }
  return { api: { steps: all } as unknown as Transport, sent };
}

const begun: Begun = {
  sweep: "ablate_heads",
  answer: 1,
  against: null,
  rows: ["blocks.0.attn", "blocks.1.attn"],
  columns: 2,
  cells: 4,
  base: 5,
  python: "",
};
const cells: Cell[] = [0, 1, 2, 3].map((n) => ({ i: n >> 1, j: n % 2, at: `L${n >> 1}H${n % 2}`, value: 5 - n }));
const spec: SweepSpec = { run: "x", sweep: "ablate_heads" };

test("a sweep fills in, the last layer at the top, and a stop leaves what came and tells the server", async () => {
  const whole = new Sweep(sends([begun, ...cells]).api);
  await whole.start(spec);
  expect([...whole.map!.values]).toEqual([-2, -3, 0, -1]);
  expect(whole.map!.labels("site")).toEqual(["blocks.1.attn", "blocks.0.attn"]);
  expect([whole.at(0, 1)?.at, whole.isRunning, whole.all]).toEqual(["L1H1", false, 4]);

  const { api, sent } = sends([begun, ...cells]);
  const cut = new Sweep(api);
  const running = cut.start(spec);
  await vi.waitUntil(() => cut.cells.length > 0, { interval: 1 });
  cut.stop();
  await running;
  expect([sent.signal!.aborted, cut.isRunning, cut.fault]).toEqual([true, false, null]);
  expect(cut.cells.length).toBeLessThan(4);
});

test("what a sweep did for a cell is a change of a run", () => {
  const value = { run: "a" };
  expect(changeOf(cells[3], begun)).toEqual({ edit: "scale", site: "L1H1.z", value: 0 });
  expect(changeOf(cells[3], { ...begun, sweep: "patch_heads" })).toEqual({ edit: "set", site: "L1H1.z", value });
  const stream = { ...begun, sweep: "patch_positions" as const, rows: ["blocks.0.resid_pre", "blocks.1.resid_pre"] };
  const change = { edit: "set", site: "blocks.1.resid_pre", value, at: { pos: 7 } };
  expect(changeOf({ i: 1, j: 7, at: "7: a:b", value: 0 }, stream)).toEqual(change);
});

test("a text goes on a token for each asking, or all at once until it is stopped", async () => {
  const opening: Opening = { position: 0, seed: 7, python: "" };
  const drawn = Array.from({ length: 5 }, (_, id) => ({ token: { id, text: "", log_prob: 0 } }) as unknown as Drawn);
  const { api, sent } = sends([opening, ...drawn]);
  const [writing, asked] = [new Writing(api), { run: "x", max_new_tokens: 5 } as GenerateSpec];
  await writing.next(asked);
  // nothing is written ahead of time
  expect([writing.steps.length, writing.opening?.seed, sent.count, writing.isOver]).toEqual([1, 7, 2, false]);
  const streaming = writing.stream(asked);
  await vi.waitUntil(() => writing.steps.length >= 2, { interval: 1 });
  writing.stop();
  await streaming;
  const stopped = writing.steps.length;
  expect(stopped).toBeLessThan(5);
  await writing.stream(asked);
  expect([writing.steps.map(({ token }) => token.id), writing.isOver]).toEqual([[0, 1, 2, 3, 4], true]);
  writing.leave();
  expect([writing.steps.length, writing.isOver, sent.signal!.aborted]).toEqual([0, false, true]);
});

test("names beside a picture have the room of the longest that is drawn, and cells never need more than there is", () => {
  const context = { font: "", measureText: (words: string) => ({ width: 8 * [...words].length }) };
  vi.stubGlobal("document", { createElement: () => ({ getContext: () => context }), documentElement: {} });
  vi.stubGlobal("getComputedStyle", () => ({ getPropertyValue: () => "" }));
  const room = 700;
  for (const [query, key] of [
    [1, 1],
    [3, 9],
    [12, 2],
  ]) {
    for (const [rows, columns] of [
      [4, 4],
      [20, 30],
      [55, 20],
      [300, 300],
    ]) {
      const ofLength = (length: number, count: number) =>
        textOf(Array.from({ length: count }, () => "x".repeat(length)));
      const texts = { query: ofLength(query, rows), key: ofLength(key, columns) };
      const place = placeIn(room, { rows, columns, first: [0, 0] } as unknown as Cells, texts, 0);
      expect(place.left + columns * place.width).toBeLessThanOrEqual(room);
      expect(place.top + rows * place.height).toBeLessThanOrEqual(room);
      expect(place.isLabelled).toBe(rows < 300);
      if (!place.isLabelled) continue;
      for (const [given, length] of [
        [place.left, query],
        [place.top, key],
      ]) {
        expect(given).toBeGreaterThan(8 * Math.min(11, length));
        expect(given).toBeLessThan(8 * Math.min(11, length) + 16);
      }
    }
  }
});
