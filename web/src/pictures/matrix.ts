// A matrix of numbers as it came, drawn cell by cell: half a million of them in a few milliseconds.

import { ramp, type Scale } from "../colours";
import type { Cell } from "../drawing/cursor";
import type { Cells } from "../pattern";
import type { Tensor } from "../tensor";

export class Matrix implements Cells {
  readonly rows: number;
  readonly columns: number;
  readonly masks: boolean;

  /** The part of a tensor of two axes from `first` on; what has no number is masked. */
  constructor(
    private readonly tensor: Tensor,
    readonly scale: Scale,
    readonly first: Cell = [0, 0],
    size: Cell = [tensor.shape[0], tensor.shape[1]],
  ) {
    [this.rows, this.columns] = size;
    this.masks = tensor.values.some(Number.isNaN);
  }

  at(q: number, k: number): number | null {
    return this.tensor.at(this.first[0] + q, this.first[1] + k);
  }

  window(first: Cell, size: Cell): Matrix {
    return new Matrix(this.tensor, this.scale, first, size);
  }

  draw(canvas: HTMLCanvasElement, size: number): void {
    const [height, width] = [Math.ceil(this.rows / size), Math.ceil(this.columns / size)];
    Object.assign(canvas, { width, height });
    const context = canvas.getContext("2d")!;
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const { limit, isSigned } = this.scale;
    // little-endian: the last byte is opacity
    const table = Uint32Array.from(
      ramp(isSigned),
      ([red, green, blue]) => 0xff000000 + (blue << 16) + (green << 8) + red,
    );
    const [start, step, columns] = [
      this.first[0] * this.tensor.shape[1] + this.first[1],
      this.tensor.shape[1],
      this.columns,
    ];
    const { values } = this.tensor;
    const strongest = new Float32Array(width * height).fill(NaN);
    for (let q = 0; q < this.rows; q++) {
      const [from, into] = [start + q * step, Math.floor(q / size) * width];
      for (let k = 0; k < columns; k++) {
        const value = values[from + k];
        const at = size === 1 ? into + k : into + Math.floor(k / size);
        if (value === value && !(Math.abs(strongest[at]) >= Math.abs(value))) strongest[at] = value;
      }
    }
    const [zero, reach] = isSigned ? [128, 128] : [0, 256];
    for (let at = 0; at < strongest.length; at++) {
      const value = strongest[at];
      if (value !== value) continue;
      const share = Math.sqrt(Math.min(1, Math.abs(value) / limit));
      pixels[at] = table[Math.round(value < 0 ? (isSigned ? zero - reach * share : 0) : zero + reach * share)];
    }
    context.putImageData(image, 0, 0);
  }
}
