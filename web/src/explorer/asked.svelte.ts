// A question whose answer follows what it depends on: asked again when that changes, the latest alone being waited for.

import type { Fault } from "./api";
import { isDropped, Refusal, type Answer, type Question, type Transport } from "./transport";

let lanes = 0;

export class Asked {
  /** The latest answer, which stays while the next is waited for. */
  answer = $state.raw<Answer | null>(null);
  /** Why there is none. */
  fault = $state.raw<Fault | null>(null);
  isWaiting = $state(false);
  /** The question that was answered last. */
  question = $state.raw<Question | null>(null);

  /** Asks while the component it is made in lives. `make` gives null while there is nothing to ask. */
  constructor(api: Transport, make: () => Question | null) {
    const lane = `asked-${(lanes += 1)}`;
    const key = $derived(JSON.stringify(make()));
    $effect(() => {
      const question = JSON.parse(key) as Question | null;
      this.isWaiting = question !== null;
      if (!question) {
        this.answer = this.fault = this.question = null;
        return;
      }
      const leaving = new AbortController();
      const settled = (answer: Answer | null, fault: Fault | null) => {
        if (leaving.signal.aborted) return;
        [this.answer, this.fault, this.question, this.isWaiting] = [answer, fault, question, false];
      };
      api.ask(question, { lane, signal: leaving.signal }).then(
        (answer) => settled(answer, null),
        (error: unknown) => {
          if (!isDropped(error))
            settled(
              null,
              error instanceof Refusal ? error.fault : { code: "Unexpected", message: String(error), hint: "" },
            );
        },
      );
      return () => leaving.abort();
    });
  }
}
