// Labelled tensors as a page holds them: unpacking, picking and averaging along axes.

import type { Scale } from "./colours";

export type Label = string | number;
type Nested = number | null | Nested[];

/** A tensor in a document: numbers as base64 of little-endian float32, or as nested lists. */
export interface TensorEntry {
  axes: readonly string[];
  coords: Readonly<Record<string, readonly Label[]>>;
  /** Labels that differ from row to row of `batch`. */
  rows?: Readonly<Record<string, readonly (readonly (Label | null)[])[]>>;
  shape?: readonly number[];
  float32?: string;
  values?: Float32Array | readonly Nested[] | Nested;
  signed?: boolean;
  /** Whether numbers are shares of a whole, so that 1 is their limit. */
  share?: boolean;
}

export const isTensor = (value: unknown): value is TensorEntry =>
  value !== null && typeof value === "object" && "float32" in value;

const product = (sizes: readonly number[]) => sizes.reduce((a, b) => a * b, 1);
const sizesOf = (nested: unknown): number[] => (Array.isArray(nested) ? [nested.length, ...sizesOf(nested[0])] : []);

type Entry = (j: number) => number;

/** Mean and standard error of the entries that are numbers. */
function moments(entry: Entry, n: number): [number, number] {
  let [sum, square, counted] = [0, 0, 0];
  for (let j = 0; j < n; j++) {
    const x = entry(j);
    if (Number.isNaN(x)) continue;
    sum += x;
    square += x * x;
    counted++;
  }
  const mean = sum / counted;
  const variance = Math.max(0, square / counted - mean * mean) * (counted / (counted - 1));
  return counted ? [mean, counted > 1 ? Math.sqrt(variance / counted) : NaN] : [NaN, NaN];
}

export class Tensor {
  readonly axes: readonly string[];
  readonly coords: Readonly<Record<string, readonly Label[]>>;
  readonly rows: NonNullable<TensorEntry["rows"]>;
  readonly shape: readonly number[];
  readonly values: Float32Array;
  readonly signed?: boolean;
  readonly share: boolean;

  constructor({ axes, coords, rows = {}, shape, float32, values, signed, share = false }: TensorEntry) {
    this.axes = axes;
    this.coords = coords;
    this.rows = rows;
    this.signed = signed;
    this.share = share;
    this.shape = shape ?? sizesOf(values);
    // little-endian, as every machine with a browser keeps them
    if (float32 !== undefined)
      this.values = new Float32Array(Uint8Array.from(atob(float32), (c) => c.charCodeAt(0)).buffer);
    else
      this.values =
        values instanceof Float32Array
          ? values
          : Float32Array.from(([values] as unknown[]).flat(Infinity as 1) as (number | null)[], (x) => x ?? NaN);
  }

  size(axis: string): number {
    return this.shape[this.axes.indexOf(axis)];
  }
  labels(axis: string): readonly Label[] {
    return this.coords[axis] ?? Array.from({ length: this.size(axis) }, (_, i) => i);
  }

  /** The number at an index per axis; null where there is none. */
  at(...index: number[]): number | null {
    const value = this.values[index.reduce((flat, i, d) => flat * this.shape[d] + i, 0)];
    return value === undefined || Number.isNaN(value) ? null : value;
  }

  /** Without an axis: each entry is made of the numbers along it. */
  private reduced(axis: string, make: (entry: Entry, n: number) => number): Tensor {
    const d = this.axes.indexOf(axis);
    const n = this.shape[d];
    const inner = product(this.shape.slice(d + 1));
    const values = new Float32Array(this.values.length / n);
    for (let i = 0; i < values.length; i++) {
      const start = Math.floor(i / inner) * inner * n + (i % inner);
      values[i] = make((j) => this.values[start + j * inner], n);
    }
    const without = <T>(list: readonly T[]) => list.filter((_, i) => i !== d);
    const rows =
      axis === "batch" ? {} : Object.fromEntries(Object.entries(this.rows).filter(([name]) => name !== axis));
    return new Tensor({ ...this, axes: without(this.axes), rows, shape: without(this.shape), values });
  }

  /** One entry of an axis; one row of a batch brings its own labels, and leaves its padding behind. */
  pick(axis: string, i: number): Tensor {
    const picked = this.reduced(axis, (entry) => entry(i));
    return axis !== "batch"
      ? picked
      : Object.entries(this.rows).reduce((t, [name, byRow]) => t.named(name, byRow[i]), picked);
  }

  /** With labels along an axis, and without the entries that have none. */
  private named(axis: string, labels: readonly (Label | null)[]): Tensor {
    const d = this.axes.indexOf(axis);
    const real = labels.flatMap((label, i) => (label === null ? [] : [i]));
    const inner = product(this.shape.slice(d + 1));
    const shape = this.shape.map((n, i) => (i === d ? real.length : n));
    const values = Float32Array.from({ length: product(shape) }, (_, flat) => {
      const [outer, at] = [Math.floor(flat / (inner * real.length)), Math.floor(flat / inner) % real.length];
      return this.values[(outer * labels.length + real[at]) * inner + (flat % inner)];
    });
    return new Tensor({ ...this, coords: { ...this.coords, [axis]: real.map((i) => labels[i]!) }, shape, values });
  }

  mean(axis: string): Tensor {
    return this.reduced(axis, (entry, n) => moments(entry, n)[0]);
  }
  error(axis: string): Tensor {
    return this.reduced(axis, (entry, n) => moments(entry, n)[1]);
  }

  /** Largest size, and whether numbers have a sign: the result says so, or one is negative beyond rounding. */
  range(): Scale {
    let [most, least] = [0, 0];
    for (const x of this.values) {
      if (Math.abs(x) > most) most = Math.abs(x);
      if (x < least) least = x;
    }
    // shares of a whole are comparable from picture to picture, whatever the largest is
    return { limit: this.share ? 1 : most || 1, isSigned: this.signed === true || least < -1e-6 * most };
  }
}
