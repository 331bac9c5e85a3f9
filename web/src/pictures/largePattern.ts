// One attention pattern, large: cells, the names of tokens beside them, and a cursor.

import type { Cell, Lattice } from "../drawing/cursor";
import type { Cells } from "../pattern";
import { paint } from "../theme.svelte";
import { shortened, type Text } from "../tokens";

const LABEL = 13; // CSS pixels of a token's name, at most
const LEAST_LABEL = 11; // of the smallest cell that has a name beside it
const GAP = 6; // CSS pixels between names and cells
const NUMBER_ROOM = [34, 20]; // CSS pixels beside and above the picture where tokens have numbers in place of names
const END = 14; // CSS pixels behind the picture, which the last number reaches into
const TRAINED_LINE = 1.5; // CSS pixels
const HATCH = 7; // CSS pixels between the lines over masked cells

/** Where cells stand, and whether there is room for the names of tokens. */
export interface Place extends Lattice {
  isLabelled: boolean;
}

export interface Texts {
  query: Text;
  key: Text;
}

/** Where cells stand, if the picture has so much room; a cell is no smaller than `least` CSS pixels. */
export function placeIn(room: number, cells: Cells, texts: Texts, least = 1): Place {
  const { rows, columns } = cells;
  const fit = ([left, top]: readonly number[], end = 0) =>
    Math.min((room - left - end) / columns, (room - top - end) / rows);
  const named = fit([0, 0]) >= LEAST_LABEL ? roomOfNames(cells, texts) : null;
  const isLabelled = named !== null && fit(named) >= LEAST_LABEL;
  const [left, top] = isLabelled ? named : NUMBER_ROOM;
  const size = Math.max(least, Math.min(40, fit([left, top], END)));
  const cell = size >= 8 ? Math.floor(size) : size;
  return { left, top, width: cell, height: cell, isLabelled };
}

const nameOf = (token: string): string => shortened(token, 11);

// as wide as the longest name that is drawn, beside the picture and above it
function roomOfNames({ rows, columns, first }: Cells, { query, key }: Texts): [left: number, top: number] {
  const context = document.createElement("canvas").getContext("2d")!;
  context.font = `${LABEL}px ${paint("--mono")}`;
  const widest = ({ tokens }: Text, from: number, count: number) =>
    Math.max(0, ...tokens.slice(from, from + count).map((token) => context.measureText(nameOf(token)).width));
  return [Math.ceil(widest(query, first[0], rows)) + 2 * GAP, Math.ceil(widest(key, first[1], columns)) + 2 * GAP];
}

/** The cells of a pattern as an image, in the colours of now: a cursor that moves does not change it. */
export interface Image {
  pixels: HTMLCanvasElement;
  /** How many cells a pixel stands for, each way. */
  size: number;
}

export function imageOf(pattern: Cells, { width: cell }: Place): Image {
  const pixels = document.createElement("canvas");
  // where cells outnumber pixels, a pixel shows the strongest of them
  const size = Math.max(1, Math.ceil(1 / (cell * (devicePixelRatio || 1))));
  pattern.draw(pixels, size);
  return { pixels, size };
}

export function drawLarge(
  canvas: HTMLCanvasElement,
  pattern: Cells,
  { pixels, size }: Image,
  place: Place,
  texts: Texts,
  cursor: Cell,
  trained: number | null,
): void {
  const { left, top, width: cell, isLabelled } = place;
  const [across, down] = [cell * pattern.columns, cell * pattern.rows];
  const [width, height] = [left + across + (isLabelled ? 2 : END), top + down + 2];
  const sharp = devicePixelRatio || 1;
  Object.assign(canvas, { width: width * sharp, height: height * sharp });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d")!;
  context.scale(sharp, sharp);
  if (pattern.masks) drawHatch(context, place, pattern);
  context.imageSmoothingEnabled = false;
  context.drawImage(pixels, left, top, pixels.width * size * cell, pixels.height * size * cell);
  // lines between cells, so that they hide no weight
  context.fillStyle = paint("--trained");
  const [beyondRow, beyondColumn] = pattern.first.map((first) => (trained ?? Infinity) - first);
  if (beyondColumn > 0 && beyondColumn < pattern.columns)
    context.fillRect(left + beyondColumn * cell - TRAINED_LINE / 2, top, TRAINED_LINE, down);
  if (beyondRow > 0 && beyondRow < pattern.rows)
    context.fillRect(left, top + beyondRow * cell - TRAINED_LINE / 2, across, TRAINED_LINE);
  drawLabels(context, place, pattern, texts, cursor);
  drawCursor(context, place, pattern, cursor);
}

// oblique lines, which show through the cells that the mask forbids: a weight of zero, too, has a colour and hides them
function drawHatch(context: CanvasRenderingContext2D, { left, top, width: cell }: Place, pattern: Cells) {
  const [width, height] = [cell * pattern.columns, cell * pattern.rows];
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  context.beginPath();
  for (let x = left - height; x < left + width; x += HATCH) {
    context.moveTo(x, top + height);
    context.lineTo(x + height, top);
  }
  context.strokeStyle = paint("--edge");
  context.lineWidth = 0.75;
  context.stroke();
  context.restore();
}

function drawLabels(
  context: CanvasRenderingContext2D,
  { left, top, width: cell, isLabelled }: Place,
  pattern: Cells,
  texts: Texts,
  [atQuery, atKey]: Cell,
) {
  context.font = `${isLabelled ? Math.min(LABEL, cell) : 10}px ${paint("--mono")}`;
  context.textBaseline = "middle";
  const every = isLabelled ? 1 : 2 ** Math.ceil(Math.log2(28 / cell));
  const name = ({ tokens }: Text, i: number) => (isLabelled ? nameOf(tokens[i]) : String(i));
  const [firstQuery, firstKey] = pattern.first;
  const tint = (isChosen: boolean) => {
    context.fillStyle = paint(isChosen ? "--pick" : "--soft");
  };
  context.textAlign = "right";
  for (let q = 0; q < pattern.rows; q += every) {
    tint(q === atQuery);
    context.fillText(name(texts.query, firstQuery + q), left - GAP, top + (q + 0.5) * cell);
  }
  for (let k = 0; k < pattern.columns; k += every) {
    tint(k === atKey);
    context.save();
    context.translate(left + (k + 0.5) * cell, top - GAP);
    if (isLabelled) context.rotate(-Math.PI / 2);
    context.textAlign = isLabelled ? "left" : "center";
    context.fillText(name(texts.key, firstKey + k), 0, isLabelled ? 0 : -4);
    context.restore();
  }
}

function drawCursor(
  context: CanvasRenderingContext2D,
  { left, top, width: cell }: Place,
  pattern: Cells,
  [q, k]: Cell,
) {
  context.strokeStyle = paint("--line");
  context.strokeRect(left - 0.5, top - 0.5, cell * pattern.columns + 1, cell * pattern.rows + 1);
  if (q < 0 || k < 0 || q >= pattern.rows || k >= pattern.columns) return;
  context.strokeStyle = paint("--pick");
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top + q * cell - 0.5, cell * pattern.columns + 1, cell + 1);
  context.lineWidth = 2;
  const grow = Math.max(0, 5 - cell);
  context.strokeRect(left + k * cell - grow, top + q * cell - grow, cell + 2 * grow, cell + 2 * grow);
}
