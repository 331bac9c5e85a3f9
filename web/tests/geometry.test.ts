import { expect, test } from "vitest";

import { fitOf, nearest, spots } from "../src/drawing/cloud";
import { ballAround, FACE_ON, facing, seen, turned, type Place } from "../src/drawing/turning";
import { pathOf, plus } from "../src/explorer/position/path";
import { Tensor } from "../src/tensor";

const TURNS = [FACE_ON, { around: 37, over: -20 }, { around: 180, over: 90 }, { around: -90, over: 0 }];
const cloud: readonly Place[] = Array.from({ length: 40 }, (_, i) => [
  5 * Math.sin(i),
  2 * Math.cos(3 * i),
  Math.sin(7 * i) ** 3,
]);

test("what lies across and what lies up are at right angles and of length one, however it is turned", () => {
  for (const turn of TURNS) {
    const { across, up } = facing(turn);
    const dot = (one: Place, other: Place) => one.reduce((sum, x, i) => sum + x * other[i], 0);
    expect(dot(across, across)).toBeCloseTo(1);
    expect(dot(up, up)).toBeCloseTo(1);
    expect(dot(across, up)).toBeCloseTo(0);
  }
  expect(turned([[1, 2, 3]], FACE_ON)).toEqual([[1, 2]]);
  const [[x, y]] = turned([[1, 2, 3]], { around: 90, over: 0 });
  expect([x, y].map((one) => Math.round(1e9 * one) / 1e9)).toEqual([3, 2]);
});

test("three sides at right angles see every coordinate twice, and face on the first two are seen", () => {
  const squares = [0, 1, 2].map((axis) => cloud.reduce((sum, point) => sum + point[axis] ** 2, 0));
  const whole = squares.reduce((a, b) => a + b) / 0.8; // three axes have four fifths of all there is
  const explained = squares.map((square) => square / whole);
  expect(seen(cloud, explained, FACE_ON)).toBeCloseTo(explained[0] + explained[1]);
  const sides = [FACE_ON, { around: 90, over: 0 }, { around: 0, over: 90 }];
  expect(sides.reduce((sum, turn) => sum + seen(cloud, explained, turn), 0)).toBeCloseTo(1.6);
  // of two coordinates all is seen face on
  expect(seen([[3, 4]], [0.25, 0.25], FACE_ON)).toBeCloseTo(0.5);
  expect(seen([[0, 0]], [0, 0], FACE_ON)).toBe(0);
});

test("a cloud stays on its canvas, however it is turned", () => {
  const fit = fitOf(500, 320, ballAround(cloud));
  for (const turn of TURNS)
    for (const [x, y] of spots(cloud, turn, fit)) {
      expect(Math.min(x, y)).toBeGreaterThan(0);
      expect(x).toBeLessThan(500);
      expect(y).toBeLessThan(320);
    }
  const at = spots(cloud, FACE_ON, fit);
  expect(nearest(at, [at[7][0] + 1, at[7][1]])).toBe(7);
  expect(nearest(at, [-100, -100])).toBe(null);
});

test("a path goes from zero on, and each arrow begins where the one before ended", () => {
  const zero = new Tensor({ axes: ["axis"], coords: {}, values: [1, -2] });
  const writes = new Tensor({
    axes: ["component", "direction"],
    coords: { component: ["token", "L0H3", "L0 mlp"] },
    values: [
      [1, 1],
      [0, 2],
      [-4, 0.5],
    ],
  });
  const path = pathOf(zero, writes);
  expect(path.map(({ name, kind }) => [name, kind])).toEqual([
    ["token", "faint"],
    ["L0H3", "full"],
    ["L0 mlp", "dashed"],
  ]);
  expect(path[0].from).toEqual([1, -2]);
  for (const [i, arrow] of path.entries()) {
    if (i) expect(arrow.from).toEqual(path[i - 1].to);
    expect(plus(arrow.from, Array.from(writes.pick("component", i).values))).toEqual(arrow.to);
  }
  expect(path.at(-1)!.to).toEqual([-2, 1.5]);
});
