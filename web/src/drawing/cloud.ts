// Points with names and arrows between places, on a canvas.

import { paint } from "../theme.svelte";
import { turned, type Place, type Turn } from "./turning";

export interface Arrow {
  from: Place;
  to: Place;
  name: string;
  /** How it is drawn: what is pointed out, a full line, a dashed one, or a faint one. */
  kind: "chosen" | "full" | "dashed" | "faint";
}

/** What is drawn: points by their names, in a colour of their own where they have one; and arrows. */
export interface Cloud {
  points: readonly Place[];
  names: readonly string[];
  colours?: readonly string[];
  arrows: readonly Arrow[];
}

/** From coordinates to CSS pixels: the middle of what is drawn, and pixels for each unit. */
export interface Fit {
  width: number;
  height: number;
  centre: Place;
  unit: number;
}

export type Spot = readonly [x: number, y: number];

const MARGIN = 26; // CSS pixels between what is drawn and the edge
const [DOT, HEAD] = [3.5, 7]; // CSS pixels: radius of a point, length of an arrow's head
const LABEL = 12; // CSS pixels of a name
const MOST = 90; // names at once: more would be no help to anybody

export function fitOf(width: number, height: number, { centre, radius }: { centre: Place; radius: number }): Fit {
  return { width, height, centre, unit: (Math.min(width, height) / 2 - MARGIN) / radius };
}

/** Where places lie on the canvas. */
export function spots(places: readonly Place[], turn: Turn, { width, height, centre, unit }: Fit): readonly Spot[] {
  const moved = places.map((place) => centre.map((c, axis) => (place[axis] ?? 0) - c));
  return turned(moved, turn).map(([x, y]) => [width / 2 + unit * x, height / 2 - unit * y] as const);
}

/** The nearest of some spots to another, if it is near enough to be meant. */
export function nearest(of: readonly Spot[], [x, y]: Spot, most = 16): number | null {
  let [best, found]: [number, number | null] = [most, null];
  of.forEach(([px, py], i) => {
    const far = Math.hypot(px - x, py - y);
    if (far < best) [best, found] = [far, i];
  });
  return found;
}

function arrowTo(context: CanvasRenderingContext2D, [x0, y0]: Spot, [x1, y1]: Spot): void {
  const [length, angle] = [Math.hypot(x1 - x0, y1 - y0), Math.atan2(y1 - y0, x1 - x0)];
  const head = Math.min(HEAD, length / 2);
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
  context.beginPath();
  context.moveTo(x1, y1);
  for (const side of [-0.4, 0.4])
    context.lineTo(x1 - head * Math.cos(angle + side), y1 - head * Math.sin(angle + side));
  context.closePath();
  context.fill();
}

const DASHES: Readonly<Record<Arrow["kind"], readonly number[]>> = { chosen: [], full: [], dashed: [4, 3], faint: [] };

/** Names beside spots, in the order of their weight, each where no other stands. */
class Names {
  private readonly taken: (readonly [number, number, number, number])[] = [];
  constructor(
    private readonly context: CanvasRenderingContext2D,
    private readonly fit: Fit,
  ) {}

  write(name: string, [x, y]: Spot, colour: string): void {
    const { context, fit, taken } = this;
    const width = context.measureText(name).width;
    const left = x + 7 + width < fit.width ? x + 7 : x - 7 - width;
    const box = [left - 2, y - LABEL / 2 - 1, left + width + 2, y + LABEL / 2 + 1] as const;
    if (taken.length >= MOST || box[0] < 0 || box[1] < 0 || box[3] > fit.height) return;
    if (taken.some(([x0, y0, x1, y1]) => box[0] < x1 && box[2] > x0 && box[1] < y1 && box[3] > y0)) return;
    taken.push(box);
    context.strokeStyle = paint("--card");
    context.strokeText(name, left, y);
    context.fillStyle = colour;
    context.fillText(name, left, y);
  }
}

/** Draw a cloud; the spots of its points and of where its arrows end are returned, to be pointed at. */
export function drawCloud(
  canvas: HTMLCanvasElement,
  { points, names, colours, arrows }: Cloud,
  turn: Turn,
  fit: Fit,
  chosen: number | null,
  lit: number | null,
): { points: readonly Spot[]; arrows: readonly Spot[] } {
  const sharp = devicePixelRatio || 1;
  const [width, height] = [fit.width * sharp, fit.height * sharp].map(Math.round);
  // a canvas that is given its size is made anew, which takes longer than to wipe it
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d")!;
  context.setTransform(sharp, 0, 0, sharp, 0, 0);
  context.clearRect(0, 0, fit.width, fit.height);
  const at = spots(points, turn, fit);
  const [from, to] = [arrows.map((arrow) => arrow.from), arrows.map((arrow) => arrow.to)].map((ends) =>
    spots(ends, turn, fit),
  );
  const [ink, soft, pick, card] = ["--ink", "--soft", "--pick", "--card"].map(paint);
  // where all coordinates are zero
  const [[x, y]] = spots([[0, 0, 0]], turn, fit);
  context.strokeStyle = paint("--line");
  context.lineWidth = 1;
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(0, y);
  context.lineTo(fit.width, y);
  context.moveTo(x, 0);
  context.lineTo(x, fit.height);
  context.stroke();
  points.forEach((_, i) => {
    context.beginPath();
    context.arc(...at[i], i === chosen ? DOT + 2 : DOT, 0, 2 * Math.PI);
    context.fillStyle = i === chosen && !colours ? pick : (colours?.[i] ?? soft);
    context.fill();
    context.strokeStyle = i === chosen ? pick : colours ? soft : card;
    context.lineWidth = i === chosen ? 2 : 1;
    context.stroke();
  });
  arrows.forEach(({ kind }, i) => {
    const colour = kind === "chosen" || i === lit ? pick : kind === "faint" ? soft : ink;
    Object.assign(context, { strokeStyle: colour, fillStyle: colour });
    context.lineWidth = kind === "chosen" || i === lit ? 2.5 : kind === "faint" ? 0.75 : 1.5;
    context.setLineDash(DASHES[kind]);
    arrowTo(context, from[i], to[i]);
  });
  context.setLineDash([]);
  context.font = `${LABEL}px ${paint("--mono")}`;
  context.textBaseline = "middle";
  context.lineWidth = 3;
  context.lineJoin = "round";
  const said = new Names(context, fit);
  // what is pointed out has its name where it ends, as nothing goes on from there
  const middle = (i: number): Spot =>
    arrows[i].kind === "chosen" ? to[i] : [(from[i][0] + to[i][0]) / 2, (from[i][1] + to[i][1]) / 2];
  const length = (i: number) => Math.hypot(to[i][0] - from[i][0], to[i][1] - from[i][1]);
  if (lit !== null && lit < arrows.length) said.write(arrows[lit].name, middle(lit), pick);
  if (chosen !== null && chosen < points.length) said.write(names[chosen], at[chosen], pick);
  const long = arrows.map((_, i) => i).filter((i) => arrows[i].name && length(i) > 2 * LABEL);
  for (const i of long.sort((a, b) => length(b) - length(a))) said.write(arrows[i].name, middle(i), ink);
  names.forEach((name, i) => i !== chosen && said.write(name, at[i], soft));
  return { points: at, arrows: to };
}
