import { expect, test, vi } from "vitest";

import type { RunSpec } from "../src/explorer/api";
import { Explorer } from "../src/explorer/explorer.svelte";
import { half, readFrame } from "../src/explorer/frame";
import { read, written } from "../src/explorer/permalink";
import { HttpTransport, type Transport } from "../src/explorer/transport";
import schema from "../schema.json";
// @ts-expect-error: the text of a module
import api from "../src/explorer/api.ts?raw";
// @ts-expect-error: a script of the build
import { typesOf } from "../types.js";

test("the types of the API are those that its schema has", () => {
  expect(api).toBe(typesOf(schema));
});

test("sixteen bits are the number they stand for", () => {
  expect([0x3c00, 0xc000, 0x3555, 0x0001, 0x8000].map(half)).toEqual([1, -2, 0.333251953125, 2 ** -24, -0]);
  expect(half(0x7e00)).toBeNaN();
});

/** A frame of one array. */
function frame(sent: object, dtype: string, bytes: Uint8Array): ArrayBuffer {
  const told = JSON.stringify({
    question: "pattern",
    facts: {},
    python: "",
    arrays: { x: { axes: ["query", "key"], coords: {}, scale: 1, low: 0, ...sent } },
  });
  const header = new TextEncoder().encode(
    JSON.stringify({ __metadata__: { glassformer: told }, x: { dtype, shape: [], data_offsets: [0, bytes.length] } }),
  );
  const found = new Uint8Array(8 + header.length + bytes.length);
  new DataView(found.buffer).setBigUint64(0, BigInt(header.length), true);
  found.set(header, 8);
  found.set(bytes, 8 + header.length);
  return found.buffer;
}

test("codes of eight bits are decoded as they were made, and what has no number has none", () => {
  const root = readFrame(
    frame({ encoding: "sqrt8", packing: "full", shape: [1, 3], scale: 4 }, "U8", Uint8Array.of(0, 127, 255)),
  ).arrays.x;
  expect([root.at(0, 0), root.at(0, 1), root.at(0, 2)]).toEqual([0, 1, null]);
  const signed = readFrame(
    frame({ encoding: "signed8", packing: "full", shape: [1, 3], scale: 2 }, "I8", Uint8Array.of(127, 256 - 127, 128)),
  ).arrays.x;
  expect([signed.at(0, 0), signed.at(0, 1), signed.at(0, 2)]).toEqual([2, -2, null]);
});

test("what lies above the diagonal of a packed matrix is missing", () => {
  const { x } = readFrame(
    frame({ encoding: "lin8", packing: "tril", shape: [2, 2, 2], scale: 254 }, "U8", Uint8Array.of(1, 2, 3, 4, 5, 6)),
  ).arrays;
  expect([...x.values].map((value) => (Number.isNaN(value) ? null : value))).toEqual([1, null, 2, 3, 4, null, 5, 6]);
});

test("a permalink holds the whole state, and nothing is read from another fragment", async () => {
  const state = {
    a: { model: "m", text: "Zoë 中 \u202e</script>" },
    b: null,
    level: 2,
    show: "a",
    head: "L1H6",
    query: 3,
    key: 1,
    aim: { answer: null, against: 4 },
    tabs: {},
    chapter: null,
  } as const;
  const link = await written(state);
  expect(link).toMatch(/^[A-Za-z0-9._-]+$/);
  expect(await read(`#${link}`)).toEqual(state);
  // a chapter of the tour stands in front, or alone
  const told = { ...state, chapter: 3 };
  expect(await written(told)).toBe(`learn/3/${link}`);
  expect(await read(`#learn/3/${link}`)).toEqual(told);
  expect([
    await read("#learn/8"),
    await read("#learn/2/1.nothing"),
    await read("#learn/9"),
    await read("#learn/12"),
  ]).toEqual([{ chapter: 8 }, { chapter: 2 }, null, null]);
  expect([await read(""), await read("#main"), await read("#1.nothing"), await read(`#${link.slice(0, -9)}`)]).toEqual([
    null,
    null,
    null,
    null,
  ]);
});

test("a cursor is where the run that is shown has a place, and goes back when the longer one is shown again", async () => {
  const mixer = { path: "blocks.0.attn", heads: ["L0H0"], crosses: false };
  const model = { id: "m", loaded: true, layers: [{ stack: "", index: 0, mixers: [mixer] }] };
  const run = (spec: RunSpec) =>
    Promise.resolve({ id: spec.text, spec, tokens: [...spec.text!].map((text) => ({ text })) });
  const explorer = new Explorer({ models: async () => [model], run } as unknown as Transport);
  await explorer.open({ a: { model: "m", text: "abcdef" }, b: { model: "m", text: "abc" }, show: "a" });
  expect(explorer.cursor.query).toBe(5);
  explorer.select({ query: 4, key: 3 });
  explorer.chosen = "b";
  expect([explorer.cursor.query, explorer.cursor.key]).toEqual([2, 2]);
  explorer.chosen = "a";
  expect([explorer.cursor.query, explorer.cursor.key]).toEqual([4, 3]);
});

test("what a run borrows from is made again before it, where the server has let both go", async () => {
  const a: RunSpec = { model: "m", text: "a" };
  const b: RunSpec = { ...a, changes: [{ edit: "set", site: "L0H0.z", value: { run: "id-a" } }] };
  const kept = new Set<string>();
  const fault = { code: "NotFound", message: "", hint: "" };
  vi.stubGlobal("fetch", async (path: string, { body }: { body: string }) => {
    expect(path).toBe("/api/v1/runs");
    const spec = JSON.parse(body) as RunSpec;
    if (spec.changes && !kept.has("id-a")) return new Response(JSON.stringify({ fault }), { status: 404 });
    kept.add(spec.changes ? "id-b" : "id-a");
    return new Response(JSON.stringify({ id: spec.changes ? "id-b" : "id-a" }));
  });
  const transport = new HttpTransport();
  await transport.run(a);
  kept.clear();
  expect((await transport.run(b)).id).toBe("id-b");
  vi.unstubAllGlobals();
});
