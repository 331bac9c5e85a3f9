// How pictures reach numbers: by requests, which the server of this page answers, or the kernel of a notebook, alike.

import type { Ask } from "../frame/cell";
import type { Tensor } from "../tensor";
import { spoken } from "../words";
import type {
  Fault,
  GenerateSpec,
  ModelCard,
  RunCard,
  RunSpec,
  SweepSpec,
  TokenCard,
  TokenizeSpec,
  Views,
} from "./api";
import { readFrame, type Sent } from "./frame";

/** A question: what it is asked of, and how its answer is wanted. */
export interface Question<Name extends keyof Views = keyof Views> {
  name: Name;
  /** A run by its id, or a model by its name, for what weights alone answer. */
  of: { run: string } | { model: string };
  /** `L1H6`, for questions about one head. */
  head?: string;
  /** A position, for questions about one. */
  index?: number;
  view?: Views[Name];
}

/** What a question is answered with: labelled arrays, further facts, and the Python that gives the same. */
export interface Answer {
  question: string;
  arrays: Readonly<Record<string, Tensor>>;
  /** How each array was sent. */
  sent: Readonly<Record<string, Sent>>;
  facts: Readonly<Record<string, unknown>>;
  python: string;
}

/** The server's refusal, in its words: what a mechanism does not define, a limit, a mistake. */
export class Refusal extends Error {
  constructor(readonly fault: Fault) {
    super(fault.message);
  }
}

/** The fault of a server that does not answer: it ended, or is being started again. */
export const UNREACHABLE = "Unreachable";

/** Whether something was asked for and then not wanted any more, which nobody is told. */
export const isDropped = (error: unknown): boolean =>
  (error instanceof DOMException && error.name === "AbortError") ||
  (error instanceof Refusal && error.fault.code === "Superseded");

export interface Transport {
  models(): Promise<readonly ModelCard[]>;
  load(model: string): Promise<ModelCard>;
  tokenize(spec: TokenizeSpec, signal?: AbortSignal): Promise<readonly TokenCard[]>;
  run(spec: RunSpec, signal?: AbortSignal): Promise<RunCard>;
  /** In one lane only the latest question is answered. */
  ask(question: Question, options?: { lane?: string; signal?: AbortSignal }): Promise<Answer>;
  /** Answers that come piece by piece; whoever stops reading ends them. */
  steps<Step>(kind: "sweeps", spec: SweepSpec, signal?: AbortSignal): AsyncGenerator<Step>;
  steps<Step>(kind: "generate", spec: GenerateSpec, signal?: AbortSignal): AsyncGenerator<Step>;
  /** Where a file of sites of a run lies, or the page of a whole run, which is of no sites. */
  file(run: string, sites: readonly string[], form: "npz" | "safetensors" | "csv" | "html"): string;
}

const ROOT = "/api/v1";

const MOST = 2 ** 26; // bytes of answers that are kept

async function answered(found: Response): Promise<Answer> {
  const { told, arrays } = readFrame(await found.arrayBuffer());
  return { question: told.question, facts: told.facts, python: told.python, sent: told.arrays, arrays };
}

const sizeOf = ({ arrays }: Answer): number =>
  Object.values(arrays).reduce((sum, array) => sum + array.values.byteLength, 1024);

export class HttpTransport implements Transport {
  /** `asking` is what reaches whoever answers requests: a server, or what a notebook's kernel has of one. */
  constructor(private readonly asking: Ask = (path, options) => fetch(path, options)) {}

  // what makes each run: a server lets go of runs, and one that was started anew has none
  private readonly made = new Map<string, RunSpec>();
  private readonly answers = new Map<string, { answer: Promise<Answer>; size: number }>();
  // lanes of two pages do not meet
  private readonly page = crypto.getRandomValues(new Uint32Array(2)).join("-");

  models = async () => (await this.fetched("/models")).json() as Promise<readonly ModelCard[]>;
  load = async (model: string) => (await this.posted("/models/load", { model })).json() as Promise<ModelCard>;
  tokenize = async (spec: TokenizeSpec, signal?: AbortSignal) =>
    (await this.posted("/tokenize", spec, { signal })).json() as Promise<readonly TokenCard[]>;

  async run(spec: RunSpec, signal?: AbortSignal): Promise<RunCard> {
    const lenders = (spec.changes ?? []).flatMap(({ value }) =>
      typeof value === "object" && "run" in value ? [value.run] : [],
    );
    const card = (await (await this.kept(lenders, () => this.posted("/runs", spec, { signal }))).json()) as RunCard;
    this.made.set(card.id, spec);
    return card;
  }

  async ask(
    { name, of, head, index, view }: Question,
    { lane, signal }: { lane?: string; signal?: AbortSignal } = {},
  ): Promise<Answer> {
    const path = [
      "run" in of ? `/runs/${of.run}` : `/models/${encodeURIComponent(of.model)}`,
      name,
      head,
      index,
    ].filter((part) => part !== undefined);
    const said = Object.entries({ ...view, form: "frame" })
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([key, value]) => [key, String(value)]);
    const address = `${path.join("/")}?${new URLSearchParams(said)}`;
    const known = this.answers.get(address);
    try {
      if (known) return await known.answer;
    } catch (error) {
      // whoever asked first did not want it any more
      if (!isDropped(error) || signal?.aborted) throw error;
    }
    const runs = ["run" in of ? of.run : undefined, view?.minus ?? undefined];
    const asked = this.kept(runs, () => this.fetched(address, { signal, lane })).then(answered);
    this.remember(address, asked);
    return asked;
  }

  /** Keep an answer, which never changes, for whoever asks the same; the oldest go when they are many. */
  private remember(address: string, answer: Promise<Answer>): void {
    const entry = { answer, size: 0 }; // until it is there
    this.answers.set(address, entry);
    answer.then(
      (found) => {
        entry.size = sizeOf(found);
        let held = 0;
        for (const { size } of this.answers.values()) held += size;
        for (const [oldest, { size }] of this.answers) {
          if (held <= MOST || oldest === address) break;
          this.answers.delete(oldest);
          held -= size;
        }
      },
      () => this.answers.get(address) === entry && this.answers.delete(address),
    );
  }

  async *steps<Step>(
    kind: "sweeps" | "generate",
    spec: SweepSpec | GenerateSpec,
    signal?: AbortSignal,
  ): AsyncGenerator<Step> {
    const own = new AbortController();
    const either = signal ? AbortSignal.any([signal, own.signal]) : own.signal;
    const runs = [spec.run, ("donor" in spec && spec.donor) || undefined];
    const found = await this.kept(runs, () => this.posted(`/${kind}`, spec, { signal: either }));
    const reader = found.body!.pipeThrough(new TextDecoderStream()).getReader();
    try {
      for (let rest = "", part = await reader.read(); !part.done; part = await reader.read()) {
        const lines = (rest + part.value).split("\n");
        rest = lines.pop()!;
        for (const line of lines) {
          const step = JSON.parse(line) as { fault?: Fault };
          if (step.fault) throw new Refusal(step.fault);
          yield step as Awaited<Step>;
        }
      }
    } finally {
      own.abort();
    }
  }

  file = (run: string, sites: readonly string[], form: string): string =>
    `${ROOT}/runs/${run}/export?${new URLSearchParams({ form, sites: sites.join(",") })}`;

  /** Ask about runs, which are made again if the server has let them go. */
  private async kept(runs: readonly (string | undefined)[], ask: () => Promise<Response>): Promise<Response> {
    try {
      return await ask();
    } catch (error) {
      const specs = runs.flatMap((id) => this.made.get(id ?? "") ?? []);
      if (!(error instanceof Refusal) || error.fault.code !== "NotFound" || !specs.length) throw error;
      for (const spec of specs) await this.run(spec);
      return ask();
    }
  }

  private posted(path: string, body: unknown, options: { signal?: AbortSignal } = {}): Promise<Response> {
    return this.fetched(path, {
      ...options,
      method: "POST",
      body: JSON.stringify(body),
      headers: { "content-type": "application/json" },
    });
  }

  private async fetched(
    path: string,
    { lane, headers, ...options }: RequestInit & { lane?: string; headers?: Record<string, string> } = {},
  ): Promise<Response> {
    const found = await this.asking(ROOT + path, {
      ...options,
      headers: lane ? { ...headers, "glassformer-lane": `${this.page}/${lane}` } : headers,
    }).catch((error: unknown) => {
      // a browser says no more of it than that the request failed
      if (!(error instanceof TypeError)) throw error;
      throw new Refusal({
        code: UNREACHABLE,
        message: spoken("the server of this page does not answer; it is asked again until it does."),
        hint: spoken(
          "Start it again: with the same --port and --token this page goes on. Else open the address that it prints, with what stands behind # in the address of this page.",
        ),
      });
    });
    if (found.ok) return found;
    const told = (await found.json().catch(() => null)) as { fault: Fault } | null;
    throw new Refusal(told?.fault ?? { code: "Unexpected", message: `HTTP ${found.status}`, hint: "" });
  }
}
