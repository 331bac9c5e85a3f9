// A matrix as dots: the area of each is the size of its number.

import { colour, css, type Scale } from "../colours";
import type { Image, Place } from "./largePattern";
import type { Matrix } from "./matrix";

const LEAST = 5; // CSS pixels of the room of a dot: where cells are smaller, one stands for the strongest of several

/** The radius of a dot in a room that one of the largest number fills: the area, not the radius, follows the number. */
export const radius = (value: number, limit: number, room: number): number =>
  limit > 0 ? (room / 2) * Math.sqrt(Math.min(1, Math.abs(value) / limit)) : 0;

/** The colour of a dot: of the end of the ramp on its side of zero, since its area has the size. */
export const dotColour = (value: number, scale: Scale): string => css(colour(Math.sign(value) * scale.limit, scale));

/** The dots of a matrix as an image, in the colours of now. */
export function dotsOf(matrix: Matrix, { width: cell }: Place): Image {
  const sharp = devicePixelRatio || 1;
  const size = Math.max(1, Math.ceil(LEAST / cell));
  const room = cell * size;
  const { scale } = matrix;
  const pixels = document.createElement("canvas");
  Object.assign(pixels, {
    width: Math.ceil(matrix.columns * cell * sharp),
    height: Math.ceil(matrix.rows * cell * sharp),
  });
  const context = pixels.getContext("2d")!;
  context.scale(sharp, sharp);
  const [, across] = [matrix.rows, matrix.columns].map((n) => Math.ceil(n / size));
  matrix.strongest(size).forEach((value, i) => {
    if (Number.isNaN(value)) return;
    const [x, y] = [(i % across) * room, Math.floor(i / across) * room];
    // what the mask hides keeps its hatched ground
    context.fillStyle = css(colour(0, scale));
    context.fillRect(x, y, room, room);
    context.fillStyle = dotColour(value, scale);
    context.beginPath();
    context.arc(x + room / 2, y + room / 2, radius(value, scale.limit, room - 1), 0, 2 * Math.PI);
    context.fill();
  });
  return { pixels, size: 1 / (cell * sharp) };
}
