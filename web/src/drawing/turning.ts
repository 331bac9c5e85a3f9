// Points of up to three coordinates, looked at from a side: face on, the first lies across and the second up.

/** Degrees: about the upright axis, and about the one across. */
export interface Turn {
  around: number;
  over: number;
}

export const FACE_ON: Turn = { around: 0, over: 0 };

/** The coordinates of one point; those that it has not are zero. */
export type Place = readonly number[];

const dot = (one: Place, other: Place): number => one.reduce((sum, x, i) => sum + x * (other[i] ?? 0), 0);

/** The directions that lie across and up, as far as three coordinates go. */
export function facing({ around, over }: Turn): { across: Place; up: Place } {
  const [a, o] = [around, over].map((degrees) => (degrees * Math.PI) / 180);
  const [sa, ca, so, co] = [Math.sin(a), Math.cos(a), Math.sin(o), Math.cos(o)];
  return { across: [ca, 0, sa], up: [sa * so, co, -ca * so] };
}

/** Where points lie across and up, as they are turned. */
export function turned(points: readonly Place[], turn: Turn): readonly (readonly [x: number, y: number])[] {
  const { across, up } = facing(turn);
  return points.map((point) => [dot(point, across), dot(point, up)] as const);
}

/** The share of what the points have in all dimensions that is seen from a side, by the share along each coordinate. */
export function seen(points: readonly Place[], explained: readonly number[], turn: Turn): number {
  const squares = (of: readonly Place[]) => of.reduce((sum, point) => sum + dot(point, point), 0);
  const within = explained.reduce((sum, share) => sum + share, 0);
  const whole = squares(points);
  return whole ? (within * squares(turned(points, turn))) / whole : 0;
}

/** A ball around points: however they are turned, they stay in it. */
export function ballAround(points: readonly Place[]): { centre: Place; radius: number } {
  const ends = [0, 1, 2].map((axis) => {
    const along = points.map((point) => point[axis] ?? 0);
    return [along.reduce((a, b) => Math.min(a, b), Infinity), along.reduce((a, b) => Math.max(a, b), -Infinity)];
  });
  const centre = ends.map(([low, high]) => (points.length ? (low + high) / 2 : 0));
  const far = points.map((point) => Math.hypot(...centre.map((c, axis) => (point[axis] ?? 0) - c)));
  return { centre, radius: far.reduce((a, b) => Math.max(a, b), 0) || 1 };
}
