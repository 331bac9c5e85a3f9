// An image as the patches that a model reads it by: its pixels, and numbers of patches drawn over them.

import { colour, css, ink, type Scale } from "../colours";
import type { Cell } from "../drawing/cursor";
import { Tensor, type TensorEntry } from "../tensor";
import { paint } from "../theme.svelte";

const LEAST_OUTLINED = 4; // of the screen's pixels for one of the image, from which on there is room for its outlines

/** Rows and columns of patches, and how many tokens stand before them. */
export type Grid = readonly [rows: number, columns: number, outside: number];

export class Patches {
  readonly rows: number;
  readonly columns: number;
  readonly outside: number;
  /** Rows and columns of pixels, and pixels along a side of a patch. */
  readonly height: number;
  readonly width: number;
  readonly side: number;
  readonly channels: number;
  /** The smallest number of the image and the largest: what is black, and what is white. */
  readonly range: readonly [least: number, most: number];
  private readonly image: Tensor;

  constructor([rows, columns, outside]: Grid, image: TensorEntry) {
    [this.rows, this.columns, this.outside] = [rows, columns, outside];
    this.image = new Tensor(image);
    [this.channels, this.height, this.width] = this.image.shape as [number, number, number];
    this.side = this.height / rows;
    let [least, most] = [Infinity, -Infinity];
    for (const x of this.image.values) [least, most] = [Math.min(least, x), Math.max(most, x)];
    this.range = [least, most];
  }

  /** The row and column of a token's patch; null for one that stands before them. */
  cellOf(token: number): Cell | null {
    const i = token - this.outside;
    return i < 0 ? null : [Math.floor(i / this.columns), i % this.columns];
  }
  tokenAt = ([row, column]: Cell): number => this.outside + row * this.columns + column;

  /** A pixel's share of the way from black to white: of three channels each, else the mean of all. */
  private shares(row: number, column: number): number[] {
    const [least, most] = this.range;
    const shares = Array.from({ length: this.channels }, (_, channel) =>
      most > least ? (this.image.at(channel, row, column)! - least) / (most - least) : 0,
    );
    return this.channels === 3 ? shares : [shares.reduce((a, b) => a + b, 0) / shares.length];
  }

  /** How far pixels differ, at most 1. */
  private difference = (one: readonly number[], other: readonly number[]): number =>
    Math.max(...one.map((share, i) => Math.abs(share - other[i])));

  /**
   * Draw the image into so many pixels across; or the numbers of its patches, and over them the image's outlines,
   * which leave every patch its colour.
   */
  draw(canvas: HTMLCanvasElement, room: number, weights: readonly number[] | null, scale: Scale, here: Cell | null) {
    const isOutlined = room >= LEAST_OUTLINED * this.width;
    const across = weights === null || isOutlined ? this.width : this.columns;
    const zoom = Math.max(1, Math.floor(room / across));
    const patch = (zoom * across) / this.columns;
    Object.assign(canvas, { width: patch * this.columns, height: patch * this.rows });
    const context = canvas.getContext("2d")!;
    if (weights === null) this.drawPixels(context, zoom);
    else {
      const fills = Array.from({ length: this.rows * this.columns }, (_, i) =>
        colour(weights[this.outside + i] ?? 0, scale),
      );
      fills.forEach((fill, i) => {
        context.fillStyle = css(fill);
        context.fillRect((i % this.columns) * patch, Math.floor(i / this.columns) * patch, patch, patch);
      });
      if (isOutlined) this.drawOutlines(context, zoom, fills.map(ink));
    }
    if (weights === null && patch >= 6) this.drawLines(context, patch);
    if (here) {
      context.strokeStyle = paint("--pick");
      context.lineWidth = Math.max(2, Math.round(patch / 12));
      context.strokeRect(here[1] * patch + 1, here[0] * patch + 1, patch - 2, patch - 2);
    }
  }

  private drawPixels(context: CanvasRenderingContext2D, zoom: number) {
    for (let y = 0; y < this.height; y++)
      for (let x = 0; x < this.width; x++) {
        const shares = this.shares(y, x);
        const [red, green, blue] = [0, 1, 2].map((i) => Math.round(255 * (shares[i] ?? shares[0])));
        context.fillStyle = css([red, green, blue]);
        context.fillRect(x * zoom, y * zoom, zoom, zoom);
      }
  }

  // a line between two pixels, as strong as they differ, in what is seen on the colour of its patch
  private drawOutlines(context: CanvasRenderingContext2D, zoom: number, inks: readonly string[]) {
    const thick = Math.max(1, Math.round(zoom / 8));
    for (let y = 0; y < this.height; y++)
      for (let x = 0; x < this.width; x++) {
        const own = this.shares(y, x);
        context.fillStyle = inks[Math.floor(y / this.side) * this.columns + Math.floor(x / this.side)];
        const [left, above] = [
          x ? this.difference(own, this.shares(y, x - 1)) : 0,
          y ? this.difference(own, this.shares(y - 1, x)) : 0,
        ];
        if (left) {
          context.globalAlpha = left;
          context.fillRect(x * zoom, y * zoom, thick, zoom);
        }
        if (above) {
          context.globalAlpha = above;
          context.fillRect(x * zoom, y * zoom, zoom, thick);
        }
      }
    context.globalAlpha = 1;
  }

  private drawLines(context: CanvasRenderingContext2D, patch: number) {
    context.fillStyle = "#80808099";
    for (let column = 1; column < this.columns; column++) context.fillRect(column * patch, 0, 1, patch * this.rows);
    for (let row = 1; row < this.rows; row++) context.fillRect(0, row * patch, patch * this.columns, 1);
  }
}
