// The state of the page: the runs A and B and how they came about, where one looks, and what is shown of it.

import type { Change, Fault, ModelCard, RunCard, RunSpec } from "./api";
import {
  headAt,
  askedAt,
  headsOf,
  textsOf,
  type Aim,
  type Cursor,
  type Looking,
  type Place,
  type Show,
  type Source,
} from "./looking";
import { isDropped, Refusal, type Transport } from "./transport";
import { beginningOf, givenTo } from "./words";

/** What makes the two runs. */
export interface Specs {
  a: RunSpec;
  b: RunSpec | null;
}

export type Level = 1 | 2 | 3;

/** What a narrow page shows, which has room for one thing at a time. */
export type Panel = "view" | "runs" | "numbers";

/** All that a permalink has. */
export interface State extends Specs {
  level: Level;
  show: Show;
  /** The name of the head, and the pair of positions. */
  head: string | null;
  query: number;
  key: number;
  aim: Aim;
  tabs: Readonly<Record<string, string>>;
  /** Of the tour, while it is open. */
  chapter: number | null;
}

export const faultOf = (error: unknown): Fault =>
  error instanceof Refusal ? error.fault : { code: "Unexpected", message: String(error), hint: "" };

/** What a change names the run that B began from, whatever that is at the time. */
export const OF_A = "a";

/** A change whose value is what run A has, with the id of that run. */
const lent = (change: Change, a: string): Change =>
  typeof change.value === "object" && "run" in change.value && change.value.run === OF_A
    ? { ...change, value: { ...change.value, run: a } }
    : change;

const NOWHERE: Cursor = { path: "", layer: 0, head: 0, query: 0, key: 0 };
const same = (one: unknown, other: unknown) => JSON.stringify(one) === JSON.stringify(other);

export class Explorer implements Looking {
  models = $state.raw<readonly ModelCard[]>([]);
  runs = $state.raw<{ a: RunCard; b: RunCard | null } | null>(null);
  /** Every pair of runs there was, so that each may be gone back to. */
  past = $state.raw<readonly Specs[]>([]);
  now = $state(-1);
  isRunning = $state(false);
  fault = $state.raw<Fault | null>(null);
  /** Milliseconds between asking for the latest runs and having them. */
  took = $state(0);

  chosen = $state.raw<Show>("a");
  private looked = $state.raw<Level>(1);
  panel = $state.raw<Panel>("view");
  tabs = $state.raw<Readonly<Record<string, string>>>({});
  /** Where one went last: the run or the model that is shown may have no such place. */
  private wanted = $state.raw<Cursor>(NOWHERE);
  hovered = $state.raw<Place | null>(null);
  aim = $state.raw<Aim>({ answer: null, against: null });
  source = $state.raw<Source | null>(null);
  /** The chapter of the tour that is open. */
  chapter = $state<number | null>(null);
  /** Whether the page is yet to be brought to what the chapter is about: it was opened, or another text ran. */
  isArriving = $state(false);
  private running = new AbortController();

  constructor(readonly api: Transport) {}

  // ------------------------------------------------------------------------------------------------ what is shown

  get level(): Level {
    return this.looked;
  }
  /** Whoever goes to a level looks at it. */
  set level(level: Level) {
    [this.looked, this.panel] = [level, "view"];
  }

  a = $derived(this.runs!.a);
  b = $derived(this.runs?.b ?? null);
  show = $derived<Show>(this.b ? this.chosen : "a");
  shown = $derived(this.show === "a" ? this.a : this.b!);
  /** The model of what is shown: A and B may be of two. */
  model = $derived(this.models.find((model) => model.id === this.shown.spec.model)!);
  cursor = $derived<Cursor>(this.runs ? this.within(this.wanted) : NOWHERE);
  at = $derived<Cursor>(this.hovered ? { ...this.cursor, ...this.placed(this.hovered) } : this.cursor);
  head = $derived(headAt(this.model, this.cursor));
  specs = $derived<Specs | null>(this.past[this.now] ?? null);
  changes = $derived(this.specs?.b?.changes ?? []);

  // ------------------------------------------------------------------------------------------------ runs

  /** Learn of the models, and make the runs of a state; without one, of the text that the first model begins with. */
  async open(state: Partial<State> | null): Promise<void> {
    this.models = await this.api.models();
    // an address of a chapter alone is about what there is
    this.learn(state?.chapter ?? null, !state?.a);
    if (!state?.a && state?.chapter && this.runs) return;
    if (!state?.a) await this.loaded(this.models[0].id);
    // who ran a text in the meantime sees that one
    if (!state?.a && (this.isRunning || this.runs)) return;
    const first = this.models[0];
    const { a = { model: first.id, ...givenTo(first, beginningOf(first)) }, b = null, ...rest } = state ?? {};
    this.chosen = rest.show ?? "a";
    this.level = rest.level ?? 1;
    this.aim = rest.aim ?? this.aim;
    this.tabs = rest.tabs ?? {};
    if (!a.text && !a.ids && !a.image) return;
    await this.make({ a, b });
    if (this.runs && rest.head) this.select({ label: rest.head, query: rest.query, key: rest.key });
  }

  /** Make runs, and remember them; what was undone is forgotten. */
  async make(specs: Specs): Promise<void> {
    if (same(specs, this.specs) && this.runs) return;
    const past = [...this.past.slice(0, this.now + 1), specs];
    await this.ran(past, past.length - 1);
  }

  async goTo(index: number): Promise<void> {
    if (index >= 0 && index < this.past.length) await this.ran(this.past, index);
  }

  undo = () => this.goTo(this.now - 1);
  redo = () => this.goTo(this.now + 1);

  /** Have a model loaded, so that its card says what it is made of. */
  loaded = async (id: string): Promise<void> => {
    if (this.models.find((model) => model.id === id)?.loaded !== false) return;
    try {
      const card = await this.api.load(id);
      this.models = this.models.map((model) => (model.id === id ? card : model));
    } catch (error) {
      this.fault = faultOf(error);
    }
  };

  /** Ask for the runs of a place in the past; of two askings at once the later counts. */
  private async ran(past: readonly Specs[], now: number): Promise<void> {
    const { a, b } = past[now];
    this.running.abort();
    const { signal } = (this.running = new AbortController());
    [this.isRunning, this.fault] = [true, null];
    const started = performance.now();
    try {
      for (const { model } of b ? [a, b] : [a]) await this.loaded(model);
      const before = this.runs;
      const runs = { a: await this.api.run(a, signal), b: null as RunCard | null };
      if (b)
        runs.b = await this.api.run({ ...b, changes: b.changes?.map((change) => lent(change, runs.a.id)) }, signal);
      if (signal.aborted) return;
      [this.runs, this.past, this.now] = [runs, past, now];
      this.took = performance.now() - started;
      this.isRunning = false;
      this.settle(before);
    } catch (error) {
      if (!isDropped(error) && !signal.aborted) [this.fault, this.isRunning] = [faultOf(error), false];
    }
  }

  /** Look from where a text of another length is asked about, and at no number of before. */
  private settle(before: { a: RunCard } | null): void {
    if (before?.a.tokens.length !== this.a.tokens.length) this.wanted = { ...this.cursor, query: askedAt(this.model) };
    if (before?.a.spec.model !== this.a.spec.model) this.aim = { answer: null, against: null };
    this.source = null;
    if (before?.a.id !== this.a.id && before) this.isArriving = this.chapter !== null;
  }

  // ------------------------------------------------------------------------------------------------ doing

  change = (...edits: readonly Change[]): void => {
    if (!this.specs) return;
    const base = this.specs.b ?? this.specs.a;
    if (this.chosen === "a") this.chosen = "b";
    void this.make({ ...this.specs, b: { ...base, changes: [...(base.changes ?? []), ...edits] } });
  };

  /** Take a change back, by its place in the list. */
  withdraw = (index: number): void => {
    const changes = this.changes.filter((_, i) => i !== index);
    this.compare(changes.length || !this.isSame() ? { ...this.specs!.b!, changes } : null);
  };

  /** Run B: another text, another model, or none. */
  compare = (b: RunSpec | null): void => {
    void this.make({ a: this.specs!.a, b });
  };

  /** Whether B reads what A does. */
  isSame = (): boolean => same({ ...this.specs!.a, changes: [] }, { ...this.specs!.b!, changes: [] });

  select = (place: Place): void => {
    [this.wanted, this.hovered] = [this.within({ ...this.cursor, ...this.placed(place) }), null];
  };
  hover = (place: Place | null): void => {
    this.hovered = place;
  };
  aimAt = (aim: Partial<Aim>): void => {
    this.aim = { ...this.aim, ...aim };
  };
  /** Open a chapter of the tour, or close it; the page is brought there unless an address has said where one looks. */
  learn = (chapter: number | null, isArriving = true): void => {
    [this.chapter, this.isArriving] = [chapter, isArriving && chapter !== null];
  };
  inspect = (source: Source): void => {
    this.source = source;
  };
  turn = (name: string, to: string): void => {
    this.tabs = { ...this.tabs, [name]: to };
  };

  /** A head by its label as a path and an index. */
  private placed({ label, ...place }: Place): Partial<Cursor> {
    const head = label === undefined ? undefined : headsOf(this.model).get(label);
    const given = Object.fromEntries(Object.entries(place).filter(([, value]) => value !== undefined));
    return head ? { ...given, path: head.mixer.path, layer: head.layer.index, head: head.head } : given;
  }

  /** The place nearest to a cursor that what is shown has: its head, or the last one; positions of its texts. */
  private within(cursor: Cursor): Cursor {
    const head = headAt(this.model, cursor) ?? [...headsOf(this.model).values()].at(-1);
    if (!head) return NOWHERE;
    const { queries, keys } = textsOf(this.shown, head);
    const into = (i: number, n: number) => Math.min(Math.max(i, 0), n - 1);
    return {
      path: head.mixer.path,
      layer: head.layer.index,
      head: head.head,
      query: into(cursor.query, queries.length),
      key: into(cursor.key, keys.length),
    };
  }

  /** What a permalink has of now. */
  get state(): State | null {
    if (!this.specs) return null;
    const {
      cursor: { query, key },
      level,
      chosen,
      aim,
      tabs,
      chapter,
    } = this;
    return { ...this.specs, level, show: chosen, head: this.head?.label ?? null, query, key, aim, tabs, chapter };
  }
}
