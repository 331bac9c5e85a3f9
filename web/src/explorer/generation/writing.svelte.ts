// A text that goes on, token by token, each when it is asked for.

import type { Fault, GenerateSpec } from "../api";
import { faultOf } from "../explorer.svelte";
import { isDropped, type Transport } from "../transport";
import type { Drawn, Opening } from "./drawing";

export class Writing {
  opening = $state.raw<Opening | null>(null);
  steps = $state.raw<readonly Drawn[]>([]);
  fault = $state.raw<Fault | null>(null);
  isStreaming = $state(false);
  isWaiting = $state(false);
  /** Whether nothing follows: the text ended, or is as long as was asked for. */
  isOver = $state(false);
  private leaving = new AbortController();

  constructor(private readonly api: Transport) {}

  /** One more token. */
  next = (spec: GenerateSpec): Promise<void> =>
    this.write({ ...spec, max_new_tokens: Math.min(this.steps.length + 1, spec.max_new_tokens!) }, spec);

  /** All that comes. */
  async stream(spec: GenerateSpec): Promise<void> {
    this.isStreaming = true;
    await this.write(spec, spec);
    this.isStreaming = false;
  }

  /** Show no more, and let the server write no more; what was written stays, and may go on. */
  stop = (): void => {
    this.leaving.abort();
    this.leaving = new AbortController();
    this.isStreaming = this.isWaiting = false;
  };

  /** Begin anew. */
  leave = (): void => {
    this.stop();
    [this.opening, this.steps, this.fault, this.isOver] = [null, [], null, false];
  };

  /** Have as many tokens written as are asked for now: the seed makes those that are there already the same again. */
  private async write(asked: GenerateSpec, whole: GenerateSpec): Promise<void> {
    if (this.isOver || this.isWaiting) return;
    const { signal } = this.leaving;
    this.isWaiting = true;
    let found = 0;
    try {
      for await (const step of this.api.steps<Opening | Drawn>("generate", asked, signal)) {
        if (signal.aborted) return;
        if (!("token" in step)) this.opening = step;
        else if (found++ >= this.steps.length) this.steps = [...this.steps, step];
      }
      this.isOver = found < asked.max_new_tokens! || found >= whole.max_new_tokens!;
    } catch (error) {
      if (!isDropped(error) && !signal.aborted) [this.fault, this.isOver] = [faultOf(error), true];
    } finally {
      if (!signal.aborted) this.isWaiting = false;
    }
  }
}
