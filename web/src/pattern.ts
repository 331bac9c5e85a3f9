// Attention patterns: decoding, and drawing.

import type { Scale } from "./colours";
import type { Cell } from "./drawing/cursor";
import { drawPixels } from "./drawing/pixels";
import { signed as withSign } from "./numbers";
import { spoken } from "./words";

/** A pattern in a document: whole numbers of steps, packed. */
export interface PatternEntry {
  label: string;
  stack: string;
  part: string;
  layer: number;
  head: number;
  query: string;
  key: string;
  rows: number;
  columns: number;
  layout: "lower" | "full";
  signed: boolean;
  scale: number;
  steps: number;
  data: string;
}

/** Whole numbers from bytes of seven bits, lowest first, the eighth set where more follow; signed ones fold at zero. */
export function wholeNumbers(bytes: string, isSigned: boolean): Int32Array {
  const found: number[] = [];
  for (let i = 0, at = 0, value = 0; i < bytes.length; i++) {
    const byte = bytes.charCodeAt(i);
    value += (byte & 127) << at;
    at += 7;
    if (byte > 127) continue;
    found.push(!isSigned ? value : value % 2 ? -(value + 1) / 2 : value / 2);
    at = value = 0;
  }
  return Int32Array.from(found);
}

/** Rows and columns of numbers that can be drawn: a row for every query, a column for every key. */
export interface Cells {
  readonly rows: number;
  readonly columns: number;
  /** The query and the key of the first cell. */
  readonly first: Cell;
  /** Whether the mask forbids some keys to some queries. */
  readonly masks: boolean;
  /** The number of a cell; null where the mask forbids looking. */
  at(q: number, k: number): number | null;
  /** Draw into a canvas, one pixel per cell, or per square of `size` cells, which then shows the strongest. */
  draw(canvas: HTMLCanvasElement, size: number): void;
}

export class Pattern implements Cells {
  readonly label: string;
  readonly stack: string;
  readonly part: string;
  readonly layer: number;
  readonly head: number;
  readonly query: string;
  readonly key: string;
  readonly rows: number;
  readonly columns: number;
  readonly first = [0, 0] as const;
  readonly scale: Scale;
  readonly masks: boolean;
  private readonly isLower: boolean;
  private readonly counts: Int32Array; // of steps
  private readonly step: number;

  constructor(entry: PatternEntry) {
    this.label = entry.label;
    this.stack = entry.stack;
    this.part = entry.part;
    this.layer = entry.layer;
    this.head = entry.head;
    this.query = entry.query;
    this.key = entry.key;
    this.rows = entry.rows;
    this.columns = entry.columns;
    this.isLower = entry.layout === "lower";
    this.masks = this.isLower && entry.columns > 1;
    this.counts = wholeNumbers(atob(entry.data), entry.signed);
    this.step = entry.scale / entry.steps;
    // a weight is a share of 1 where rows are mixtures; elsewhere the head's own largest weight is the measure
    this.scale = { limit: !entry.signed && entry.scale <= 1.0001 ? 1 : entry.scale, isSigned: entry.signed };
  }

  at(q: number, k: number): number | null {
    if (this.isLower && k > q) return null;
    return this.step * this.counts[this.isLower ? (q * (q + 1)) / 2 + k : q * this.columns + k];
  }

  row(q: number): number[] {
    return Array.from({ length: this.columns }, (_, k) => this.at(q, k) ?? 0);
  }

  /** The query and key of the largest weight, either sign. */
  peak(): [number, number] {
    let best = 0;
    this.counts.forEach((steps, i) => {
      if (Math.abs(steps) > Math.abs(this.counts[best])) best = i;
    });
    if (!this.isLower) return [Math.floor(best / this.columns), best % this.columns];
    const q = Math.floor((Math.sqrt(8 * best + 1) - 1) / 2);
    return [q, best - (q * (q + 1)) / 2];
  }

  told(weight: number | null): string {
    return weight === null ? spoken("masked") : this.scale.isSigned ? withSign(weight, 3) : weight.toFixed(3);
  }

  draw(canvas: HTMLCanvasElement, size: number): void {
    const row = new Float32Array(this.columns).fill(NaN);
    const rowOf = (q: number) => {
      const start = this.isLower ? (q * (q + 1)) / 2 : q * this.columns;
      // rows of a lower triangle grow: what was filled stays filled
      const n = this.isLower ? Math.min(q + 1, this.columns) : this.columns;
      for (let k = 0; k < n; k++) row[k] = this.step * this.counts[start + k];
      return row;
    };
    drawPixels(canvas, [this.rows, this.columns], rowOf, this.scale, size);
  }
}

/** Longest side of a small picture, in CSS pixels. */
export const THUMB = 102;
