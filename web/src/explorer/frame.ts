// Frames: arrays in the layout of safetensors, as the server sends them: 8 bytes of length, a header of JSON, numbers.

import { Tensor, type Label } from "../tensor";

/** How an array was sent: what its numbers are, and how to read them. */
export interface Sent {
  axes: readonly string[];
  coords: Readonly<Record<string, readonly Label[]>>;
  encoding: "f32" | "f16" | "sqrt8" | "signed8" | "lin8";
  packing: "full" | "tril";
  shape: readonly number[];
  scale: number;
  low: number;
}

export interface Told {
  question: string;
  facts: Readonly<Record<string, unknown>>;
  python: string;
  arrays: Readonly<Record<string, Sent>>;
}

interface Header {
  [name: string]: { dtype: string; shape: readonly number[]; data_offsets: readonly [number, number] };
}

/** The number that sixteen bits stand for. */
export function half(bits: number): number {
  const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
}

/** Of each code of an encoding, the number it stands for. */
function codes({ encoding, scale, low }: Sent): Float32Array {
  if (encoding === "f16") return Float32Array.from({ length: 65536 }, (_, i) => half(i) * scale);
  return Float32Array.from({ length: 256 }, (_, i) => {
    if (encoding === "sqrt8") return i === 255 ? NaN : (i / 254) ** 2 * scale;
    if (encoding === "lin8") return i === 255 ? NaN : (i / 254) * scale + low;
    const signed = i > 127 ? i - 256 : i;
    return signed === -128 ? NaN : Math.sign(signed) * (signed / 127) ** 2 * scale;
  });
}

/** The numbers of codes; of matrices packed row behind row, as far as the diagonal, there are none above it. */
function decoded(raw: ArrayLike<number>, table: Float32Array | null, { shape, packing }: Sent): Float32Array {
  const number = (at: number) => (table ? table[raw[at]] : raw[at]);
  if (packing === "full") {
    const found = new Float32Array(raw.length);
    for (let i = 0; i < found.length; i++) found[i] = number(i);
    return found;
  }
  const n = shape.at(-1)!;
  const packed = (n * (n + 1)) / 2;
  const found = new Float32Array((raw.length / packed) * n * n);
  for (let row = 0, at = 0, to = 0; at < raw.length; row = (row + 1) % n, to += n) {
    for (let k = 0; k <= row; k++) found[to + k] = number(at++);
    found.fill(NaN, to + row + 1, to + n);
  }
  return found;
}

export function readFrame(content: ArrayBuffer): { told: Told; arrays: Record<string, Tensor> } {
  const length = Number(new DataView(content).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(content, 8, length))) as Header & {
    __metadata__: { glassformer: string };
  };
  const told = JSON.parse(header.__metadata__.glassformer) as Told;
  const arrays: Record<string, Tensor> = {};
  for (const [name, sent] of Object.entries(told.arrays)) {
    const [start, end] = header[name].data_offsets;
    const bytes = content.slice(8 + length + start, 8 + length + end);
    const raw = new { f32: Float32Array, f16: Uint16Array, sqrt8: Uint8Array, signed8: Uint8Array, lin8: Uint8Array }[
      sent.encoding
    ](bytes);
    const isThere = raw instanceof Float32Array && sent.packing === "full";
    const values = isThere ? raw : decoded(raw, sent.encoding === "f32" ? null : codes(sent), sent);
    arrays[name] = new Tensor({ ...sent, values });
  }
  return { told, arrays };
}
