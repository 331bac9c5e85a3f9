// A matrix of numbers as it came: half a million cells are drawn in a few milliseconds.

import type { Scale } from "../colours";
import type { Cell } from "../drawing/cursor";
import { drawPixels } from "../drawing/pixels";
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
    masks = tensor.values.some(Number.isNaN),
  ) {
    [this.rows, this.columns] = size;
    this.masks = masks;
  }

  at(q: number, k: number): number | null {
    const value = this.tensor.values[(this.first[0] + q) * this.tensor.shape[1] + this.first[1] + k];
    return Number.isNaN(value) ? null : value;
  }

  window(first: Cell, size: Cell): Matrix {
    return new Matrix(this.tensor, this.scale, first, size, this.masks);
  }

  draw(canvas: HTMLCanvasElement, size: number): void {
    const { values, shape } = this.tensor;
    const rowOf = (q: number) => {
      const start = (this.first[0] + q) * shape[1] + this.first[1];
      return values.subarray(start, start + this.columns);
    };
    drawPixels(canvas, [this.rows, this.columns], rowOf, this.scale, size);
  }
}
